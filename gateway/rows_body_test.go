package gateway

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"sluice/internal/tenant"
)

// headRefusal is a refusal that is decided from a request's head.
type headRefusal struct {
	name, path, keyName string
	rig                 rigOptions
	status              int
	code                string
}

func headRefusals() []headRefusal {
	closed := rigOptions{limits: func(l *tenant.Limits) { l.Burst = 0 }, change: stopClock}
	return []headRefusal{
		{"401", "/acme/s.priv", "", rigOptions{}, 401, "INVALID_CREDENTIAL"},
		{"401 expired", "/acme/s.priv", "expired", rigOptions{}, 401, "CREDENTIAL_EXPIRED"},
		{"402", "/poor/s.priv", "poor.full", rigOptions{}, 402, "PAYMENT_REQUIRED"},
		{"403", "/acme/s.priv", "read", rigOptions{}, 403, "FORBIDDEN"},
		{"404", "/acme", "", rigOptions{}, 404, "NOT_FOUND"},
		{"503 keys", "/acme/s.priv", key, without(faultyDirectory{keys: true}), 503, "AUTHENTICATION_UNAVAILABLE"},
		{"503 accounts", "/acme/s.priv", key, without(faultyDirectory{accounts: true}), 503, "AUTHORIZATION_UNAVAILABLE"},
		{"429", "/acme/s.priv", key, closed, 429, "RATE_LIMITED"},
	}
}

// Facts B1, B5: a client that sends all of its 8 MiB before it reads gets the
// refusal that was decided from the head, with the headers that the same request
// without a body gets, and its connection carries the next request.
func TestRefusalOfALargeBody(t *testing.T) {
	const size = 8 << 20
	body := strings.Repeat("x", size)
	for _, tc := range headRefusals() {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			rg := newRig(t, tc.rig)
			bare := rg.Do(t, http.MethodPost, tc.path, tc.keyName, "", "Content-Type", rigType)
			head := "POST " + tc.path + " HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n" + bearer(rg.Keys[tc.keyName])
			for framing, rest := range map[string]string{
				"length":  fmt.Sprintf("Content-Length: %d\r\n\r\n%s", size, body),
				"chunked": fmt.Sprintf("Transfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n", size, body),
			} {
				conn := rg.dial(t)
				br := bufio.NewReader(conn)
				for range 2 { // the second on the connection that the first left
					rg.write(t, conn, head+rest)
					tc.compare(t, framing, readAnswer(t, br, http.MethodPost), bare)
				}
			}
			for _, framed := range []io.Reader{strings.NewReader(body), undeclared{strings.NewReader(body)}} {
				tc.compare(t, "HTTP/2", rg.post(t, protocols(t)["h2"], tc.path, tc.keyName, framed), bare)
			}
			if seen := rg.reached(); len(seen) != 0 {
				t.Errorf("the node saw %q, want nothing", seen)
			}
			if got := drained(t, rg, "read"); got != 6 {
				t.Errorf("%v bodies counted as read, want 6", got)
			}
		})
	}
}

// compare holds the refusal of a request with a body against that of one without.
func (tc headRefusal) compare(t *testing.T, how string, got, bare answer) {
	t.Helper()
	if got.StatusCode != tc.status || got.code() != tc.code || got.Close {
		t.Errorf("%s: got %d %s, close %t; want %d %s and an open connection", how, got.StatusCode, got.Text, got.Close, tc.status, tc.code)
	}
	own := func(a answer) http.Header {
		h := a.Header.Clone()
		for _, name := range []string{"Date", requestIDHeader, "Connection"} { // the rig's client closes its own
			h.Del(name)
		}
		return h
	}
	if diff := cmp.Diff(own(bare), own(got)); diff != "" {
		t.Errorf("%s: headers without a body and with one (-without +with):\n%s", how, diff)
	}
	if got.Text != bare.Text {
		t.Errorf("%s: %s, without a body %s", how, got.Text, bare.Text)
	}
}

// post sends a body over a client of the test's choice.
func (rg *rig) post(t *testing.T, c *http.Client, path, keyName string, body io.Reader) answer {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, rg.URL+path, body)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", rigType)
	if keyName != "" {
		req.Header.Set("Authorization", "Bearer "+rg.Keys[keyName])
	}
	res, err := c.Do(req)
	if err != nil {
		t.Fatalf("POST %s: %v", path, err)
	}
	defer func() { _ = res.Body.Close() }()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatalf("POST %s: body: %v", path, err)
	}
	return answer{res, string(text)}
}

// Facts B3: a refused body whose client leaves in the middle counts as cut, and
// holds nothing. Those that stall or time out: TestBodiesOnTheContractsClock.
func TestRefusedBodyDroppedEarly(t *testing.T) {
	for framing, rest := range map[string]string{
		"length":  "Content-Length: 1000\r\n\r\nsome of it",
		"chunked": "Transfer-Encoding: chunked\r\n\r\na\r\nsome of it\r\n",
	} {
		t.Run(framing, func(t *testing.T) {
			rg := newRig(t, rigOptions{})
			conn := rg.dial(t)
			rg.write(t, conn, "POST /acme/s.priv HTTP/1.1\r\nHost: x\r\n"+rest)
			_ = conn.Close()
			poll(t, "the body counted as cut", func() bool { return drained(t, rg, "cut") == 1 })
			line := rg.awaitLines(t, 1)[0]
			if line["code"] != "INVALID_CREDENTIAL" && line["end"] != "client_closed" {
				t.Errorf("access line %v", line)
			}
			if seen := rg.reached(); len(seen) != 0 {
				t.Errorf("the node saw %q, want nothing", seen)
			}
		})
	}
}

// Facts B4: of a refused body no more is read than anybody may send.
func TestRefusedBodyIsReadToTheLimit(t *testing.T) {
	const limit, sent = 100_000, 5 << 20
	rg := newRig(t, rigOptions{
		limits: func(l *tenant.Limits) { l.RequestBytes = 10 },
		change: func(o *Options) { o.MaxRequestBytes = limit },
	})
	conn := rg.dial(t)
	written := make(chan struct{})
	go func() {
		defer close(written)
		head := "POST /acme/s.priv HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
		_, _ = io.WriteString(conn, head+fmt.Sprintf("%x\r\n", sent)+strings.Repeat("x", sent)+"\r\n0\r\n\r\n")
	}()
	res := readAnswer(t, bufio.NewReader(conn), http.MethodPost)
	if res.code() != "INVALID_CREDENTIAL" || !res.Close {
		t.Errorf("got %d %s, close %t; want the refusal and the end", res.StatusCode, res.Text, res.Close)
	}
	_ = conn.Close()
	<-written
	if got, ok := rg.awaitLines(t, 1)[0]["bytes_in"].(float64); !ok || got > limit+1 {
		t.Errorf("%v bytes were read of a refused body, want %d at the most", got, limit+1)
	}
	if got := drained(t, rg, "cut"); got != 1 {
		t.Errorf("%v bodies counted as cut, want 1", got)
	}
}

// Facts B6: what an upload is refused for reaches a client that sends first, and
// its connection goes on: the account's limit, declared or found out, and the
// budget. Over HTTP/2 the connection goes on whatever the body's size.
func TestUploadRefusalsKeepTheConnection(t *testing.T) {
	const post = "POST /acme/s.priv HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nAuthorization: Bearer {full}\r\n"
	for name, tc := range map[string]refusedBody{
		"413 account's limit": {post, 413, "REQUEST_TOO_LARGE", limited(smallRequests), 200},
		"503 budget": {post, 503, "UPLOAD_BUDGET_EXHAUSTED", rigOptions{change: func(o *Options) {
			o.Budget, o.Pace.BudgetWait = NewBodyBudget(1000), 10*time.Millisecond
		}}, 200},
	} {
		for framing, sent := range framings(`"` + strings.Repeat("x", 1<<20) + `"`) {
			t.Run(name+"/"+framing, func(t *testing.T) {
				t.Parallel()
				tc.run(t, sent)
			})
		}
		t.Run(name+"/HTTP2", func(t *testing.T) {
			t.Parallel()
			rg, c := newRig(t, tc.rig), protocols(t)["h2"]
			for _, size := range []int{2000, 1 << 20, 7 << 20} {
				for _, in := range []io.Reader{bytes.NewReader(make([]byte, size)), undeclared{bytes.NewReader(make([]byte, size))}} {
					if res := rg.post(t, c, "/acme/s.priv", key, in); res.StatusCode != tc.status || res.code() != tc.code {
						t.Errorf("%d bytes: got %d %s, want %d %s", size, res.StatusCode, res.Text, tc.status, tc.code)
					}
				}
			}
			if seen := rg.reached(); len(seen) != 0 {
				t.Errorf("the node saw %q, want nothing", seen)
			}
			poll(t, "the budget given back", func() bool { return rg.Options.Budget.Used() == 0 })
		})
	}
}
