package manage

import (
	"context"
	"crypto/rand"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"time"

	"go.uber.org/zap"

	"sluice/internal/refusal"
	"sluice/internal/store"
	"sluice/internal/tenant"
)

// clientTime is for how long the gateway waits for the nodes.
const clientTime = 10 * time.Second

// client does what a gateway does with a client's own PUT or DELETE. Status 0 is an answer
// that the client did not get, or one that leaves the outcome open.
func (g *rig) client(method, name, contentType, body string, header ...string) answered {
	g.tb.Helper()
	p := NewProtocol(ProtocolOptions{
		Streams: g.options.Streams, Reconciler: g.options.Reconciler, Log: zap.NewNop(), Random: rand.Reader, Region: "eu",
	})
	h := http.Header{}
	for i := 0; i+1 < len(header); i += 2 {
		h.Set(header[i], header[i+1])
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(g.tb.Context()), clientTime)
	defer cancel()
	attempt, err := p.Begin(ctx, StreamChange{
		Account: testAccount, Stream: tenant.StreamName(name), Remove: method == http.MethodDelete,
		ContentType: contentType, Incarnation: h.Get(incarnationHeader), Deadline: time.Now().Add(clientTime),
		KeyID: "key_1", Client: netip.MustParseAddr("192.0.2.1"), RequestID: "r1",
	})
	if err != nil {
		var r *refusal.Refusal
		if !errors.As(err, &r) {
			g.tb.Fatalf("no refusal: %v", err)
		}
		rec := httptest.NewRecorder()
		_ = refusal.Write(rec, method, r)
		return answered{g.tb, rec.Code, rec.Header(), rec.Body.String()}
	}
	if contentType != "" {
		h.Set("Content-Type", contentType)
	}
	return g.forward(ctx, attempt, method, name, body, h)
}

// forward sends what was begun, a DELETE for what it is for.
func (g *rig) forward(ctx context.Context, attempt *Attempt, method, name, body string, h http.Header) answered {
	g.tb.Helper()
	known := attempt.Incarnation()
	if len(h[incarnationHeader]) > 0 {
		known = ""
	}
	for {
		req, err := http.NewRequestWithContext(ctx, method, tenant.StreamPath(testAccount, tenant.StreamName(name)), strings.NewReader(body))
		if err != nil {
			g.tb.Fatal(err)
		}
		req.Header = h.Clone()
		if known != "" {
			req.Header.Set(incarnationHeader, known)
		}
		res, err := g.clientNodes.Do(req)
		if errors.Is(err, ErrNotApplied) {
			attempt.Unsent(ctx)
			return answered{g.tb, http.StatusServiceUnavailable, http.Header{"Retry-After": {"1"}}, ""}
		}
		if err != nil {
			return answered{tb: g.tb}
		}
		text, _ := io.ReadAll(res.Body)
		_ = res.Body.Close()
		if known != "" && res.StatusCode == http.StatusPreconditionFailed {
			known = res.Header.Get(incarnationHeader)
			continue
		}
		a := answered{g.tb, res.StatusCode, res.Header, string(text)}
		code := ""
		if a.status >= 400 && strings.HasPrefix(a.body, "{") {
			code = a.text("error", "code")
		}
		attempt.End(ctx, a.status, a.header, code)
		return a
	}
}

// content is what a stream holds at the node.
func (g *rig) content(name string) string {
	g.tb.Helper()
	req := httptest.NewRequestWithContext(context.WithoutCancel(g.tb.Context()), http.MethodGet, tenant.StreamPath(testAccount, tenant.StreamName(name))+"?offset=-1", nil)
	res, err := handlerNodes{g.cluster.Node(0).Handler()}.Do(req)
	if err != nil {
		g.tb.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		g.tb.Fatal(err)
	}
	return string(text)
}

// listed is a stream as the API shows it; its status is 404 where there is none.
func (g *rig) listed(name string) answered {
	g.tb.Helper()
	return g.own(http.MethodGet, "/v1/streams/"+name, "")
}

// isState checks what the API says of a stream; "" = that there is none.
func (g *rig) isState(name string, want store.StreamState) {
	g.tb.Helper()
	got := g.listed(name)
	if state := got.text("state"); state != string(want) || (want == "") != (got.status == http.StatusNotFound) {
		g.tb.Errorf("%s: %d, state %q, want %q", name, got.status, state, want)
	}
}
