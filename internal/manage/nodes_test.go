package manage

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"sluice/internal/syncbuf"
	"sluice/internal/tenant"
)

// answerFunc answers one request of the keeper; an error is a broken exchange.
type answerFunc func(r *http.Request) (status int, contentType string, err error)

// nodes is a cluster that a test writes.
type nodes struct {
	mu     sync.Mutex
	asked  []string // "METHOD path"
	times  []time.Time
	bodies int // answers whose body was closed
	answer answerFunc
}

func (n *nodes) Do(r *http.Request) (*http.Response, error) {
	n.mu.Lock()
	n.asked = append(n.asked, r.Method+" "+r.URL.String())
	n.times = append(n.times, time.Now())
	answer := n.answer
	n.mu.Unlock()
	status, contentType, err := answer(r)
	if err != nil {
		return nil, err
	}
	h := http.Header{}
	if contentType != "" {
		h.Set("Content-Type", contentType)
	}
	return &http.Response{StatusCode: status, Header: h, Body: &countedBody{Reader: strings.NewReader("x"), n: n}, Request: r}, nil
}

type countedBody struct {
	io.Reader
	n *nodes
}

func (b *countedBody) Close() error {
	b.n.mu.Lock()
	defer b.n.mu.Unlock()
	b.n.bodies++
	return nil
}

func (n *nodes) set(a answerFunc) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.answer = a
}

// requests are those so far, in order, and when they came.
func (n *nodes) requests() ([]string, []time.Time) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Clone(n.asked), slices.Clone(n.times)
}

func always(status int, contentType string) answerFunc {
	return func(*http.Request) (int, string, error) { return status, contentType, nil }
}

// inTurn answers HEAD with the first and PUT with the second status.
func inTurn(head, put int) answerFunc {
	return func(r *http.Request) (int, string, error) {
		if r.Method == http.MethodPut {
			return put, "", nil
		}
		return head, "application/json", nil
	}
}

// newKeeper makes a keeper whose log is kept from warnings on.
func newKeeper(t testing.TB, n Nodes, retry, most time.Duration) (*Keeper, *syncbuf.Buffer) {
	t.Helper()
	log := &syncbuf.Buffer{}
	core := zapcore.NewCore(zapcore.NewJSONEncoder(zap.NewProductionEncoderConfig()), zapcore.AddSync(log), zapcore.InfoLevel)
	k := NewKeeper(KeeperOptions{Nodes: n, Log: zap.New(core), Retry: retry, MaxRetry: most})
	t.Cleanup(k.Close)
	return k, log
}

func stream(name string) tenant.Stream {
	return tenant.Stream{Account: "acme", Name: tenant.StreamName(name), ContentType: "application/json"}
}

func wait(t testing.TB, k *Keeper) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if err := k.Wait(ctx); err != nil {
		t.Fatal(err)
	}
}

// handlerNodes asks a handler.
type handlerNodes struct{ http.Handler }

func (h handlerNodes) Do(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.RequestURI = r.URL.RequestURI()
	if r.Body == nil {
		r.Body = http.NoBody
	}
	rec := httptest.NewRecorder()
	h.ServeHTTP(rec, r)
	return rec.Result(), nil
}
