package gateway

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"

	"sluice/gateway/upstream"
)

// Issue 3, style fact 3: a node's answer that was cut ended cleanly for the
// client, who took half a stream for all of it. It is cut for the client too: on
// HTTP/1.1 without the last chunk or short of its Content-Length, on HTTP/2 by
// RST_STREAM.
func TestCutIsPassedOn(t *testing.T) {
	const head = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
	half := strings.Repeat("half", 4<<10)
	scripts := map[string]string{
		"sse":    sseHead + chunk("data: 1\n\n"),
		"chunks": head + "Transfer-Encoding: chunked\r\n\r\n" + chunk(half),
		"inside": head + "Transfer-Encoding: chunked\r\n\r\nFFFFF\r\n" + half,
		"length": head + "Content-Length: 100000\r\n\r\n" + half,
	}
	rg, _ := newUpRig(t, func(c *upConn, r *upRequest) {
		_, how, _ := strings.Cut(r.Target, "how=")
		name, end, _ := strings.Cut(how, ".")
		c.say(scripts[name])
		if end == "rst" {
			c.reset()
			return
		}
		_ = c.Close()
	}, rigOptions{})
	clients := protocols(t)
	for name := range scripts {
		for _, end := range []string{"fin", "rst"} {
			t.Run(name+" "+end, func(t *testing.T) {
				path := "/acme/s.priv?how=" + name + "." + end
				raw := rg.raw(t, "GET "+path+" HTTP/1.1\r\nHost: gw\r\nAuthorization: Bearer "+rg.Keys[key]+"\r\n\r\n")
				// A reset at the node may overtake bytes that it had sent, so the head
				// need not have come; what came must not look whole.
				if strings.HasSuffix(raw, "0\r\n\r\n") || end == "fin" && !strings.HasPrefix(raw, "HTTP/1.1 200 OK\r\n") {
					t.Errorf("h1: %q", raw)
				}
				if end == "rst" {
					return
				}
				res, _ := rg.open(t, clients["h1"], path, key)
				if body, err := io.ReadAll(res.Body); !errors.Is(err, io.ErrUnexpectedEOF) {
					t.Errorf("h1: read %q, %v; want an unexpected EOF", body, err)
				}
				res, _ = rg.open(t, clients["h2"], path, key)
				body, err := io.ReadAll(res.Body)
				var reset http2.StreamError
				if !errors.As(err, &reset) || reset.Code != http2.ErrCodeInternal {
					t.Errorf("h2: read %q, %v; want RST_STREAM", body, err)
				}
			})
		}
	}
}

// The same where the cut comes so early that the gateway still holds the head
// back: the client gets no answer at all, which cannot be taken for a whole one.
func TestCutBeforeTheHeadIsOut(t *testing.T) {
	rg, _ := newUpRig(t, func(c *upConn, _ *upRequest) {
		c.say("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\nhalf")
		_ = c.Close()
	}, rigOptions{})
	for name, c := range protocols(t) {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, rg.URL+"/acme/s.priv", nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+rg.Keys[key])
		res, err := c.Do(req)
		if err != nil {
			continue
		}
		body, err := io.ReadAll(res.Body)
		_ = res.Body.Close()
		if err == nil {
			t.Errorf("%s: a clean end after %d %q", name, res.StatusCode, body)
		}
	}
}

// broken is a node's answer whose body fails by err, or panics without one.
type broken struct {
	Upstream
	err error
}

func (b broken) Send(_ context.Context, r *http.Request, _ upstream.Meta) (*http.Response, error) {
	half := io.MultiReader(strings.NewReader("half"), readerFunc(func([]byte) (int, error) {
		if b.err == nil {
			panic("broken part")
		}
		return 0, b.err
	}))
	return &http.Response{StatusCode: http.StatusOK, Header: http.Header{}, Body: io.NopCloser(half), ContentLength: -1, Request: r}, nil
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

// Style fact 3: a recovery that swallows everything turns a cut body into a
// clean end. Ours goes on with http.ErrAbortHandler once the head is out, for a
// node's cut and for a fault of our own alike.
func TestRecoveryPanicsOn(t *testing.T) {
	rg := newRig(t, rigOptions{noNodes: true})
	for _, tc := range []struct {
		name string
		err  error
		end  string
	}{
		{"a node's cut", io.ErrUnexpectedEOF, "cut"},
		{"a panic of our own", nil, "panic"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			o := rg.Options
			o.Upstream = broken{rg.Pool, tc.err}
			rg.Gateway.Swap(o)
			before := len(rg.requestLines(t))
			// ReverseProxy lets a copy's failure pass outside a server.
			ctx := context.WithValue(t.Context(), http.ServerContextKey, &http.Server{}) //nolint:gosec // serves nothing
			req := httptest.NewRequestWithContext(ctx, http.MethodGet, "/acme/s.priv", nil)
			req.Header.Set("Authorization", "Bearer "+rg.Keys[key])
			rec := httptest.NewRecorder()
			got := func() (p any) {
				defer func() { p = recover() }()
				rg.Gateway.ServeHTTP(rec, req)
				return nil
			}()
			if err, ok := got.(error); !ok || !errors.Is(err, http.ErrAbortHandler) {
				t.Errorf("panics with %v, want http.ErrAbortHandler", got)
			}
			if lines := rg.requestLines(t)[before:]; len(lines) != 1 || lines[0]["end"] != tc.end {
				t.Errorf("access lines %v, want one that ends %q", lines, tc.end)
			}
		})
	}
}
