package manage

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"

	"sluice/auth"
	"sluice/internal/store"
	"sluice/internal/tenant"
	"sluice/internal/ursulatest"
)

const (
	testOrigin  = "https://streams.example.com"
	testAccount = tenant.AccountID("acme")
)

// rig is a Management API on a real store and the stand-in for Ursula.
type rig struct {
	tb      testing.TB
	store   *store.Store
	cluster *ursulatest.Cluster
	nodes   Nodes
	// clientNodes is the way of what clients send at the stream's own URL.
	clientNodes Nodes
	owner       *API
	operator    *API
	key         string // of testAccount, that may manage
	options     Options

	keys, ids map[string]string // of keys, by what they are
}

// newRig makes a rig with an account and its first key. change may spoil the parts.
func newRig(tb testing.TB, change ...func(*ReconcilerOptions, *Options)) *rig {
	tb.Helper()
	g := &rig{tb: tb, cluster: ursulatest.New(ursulatest.Options{}), keys: map[string]string{}, ids: map[string]string{}}
	tb.Cleanup(func() { _ = g.cluster.Close() })
	g.nodes = handlerNodes{g.cluster.Node(0).Handler()}
	g.clientNodes = g.nodes
	g.store = openStore(tb)
	r, o := g.parts()
	for _, f := range change {
		f(&r, &o)
	}
	o.Reconciler = NewReconciler(r)
	tb.Cleanup(o.Reconciler.Close)
	g.options, g.owner, g.operator = o, NewOwner(o), NewOperator(o)
	g.key = g.newAccount(testAccount)
	return g
}

func openStore(tb testing.TB) *store.Store {
	tb.Helper()
	s, err := store.Open(context.Background(), store.Options{URL: "sqlite:" + filepath.Join(tb.TempDir(), "sluice.db"), Now: time.Now, Random: rand.Reader})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = s.Close() })
	return s
}

// parts are those of an API on the rig's store and nodes.
func (g *rig) parts() (ReconcilerOptions, Options) {
	log := zap.NewNop()
	directory := storeDirectory{g.store}
	return ReconcilerOptions{Store: g.store, Nodes: g.nodes, Log: log, Random: rand.Reader, Holder: "one"}, Options{
		Streams: g.store, Keys: g.store, Accounts: g.store, Audit: g.store, Usage: g.store, Log: log, Random: rand.Reader,
		Origin: testOrigin, Region: "eu", DefaultLimits: tenant.DefaultLimits(),
		Authenticator: auth.New(auth.Options{Directory: directory, Now: time.Now}), Directory: directory,
	}
}

// storeDirectory answers the request path's questions from the store itself.
type storeDirectory struct{ *store.Store }

func (d storeDirectory) Key(ctx context.Context, digest tenant.Digest) (*tenant.Key, error) {
	k, err := d.KeyOf(ctx, digest)
	return &k, err
}

func (d storeDirectory) Account(ctx context.Context, id tenant.AccountID) (*tenant.Account, error) {
	a, err := d.Store.Account(ctx, id)
	return &tenant.Account{ID: a.ID, State: a.State, Limits: over(a.Limits, tenant.DefaultLimits())}, err
}

func (d storeDirectory) Stream(ctx context.Context, account tenant.AccountID, name tenant.StreamName) (*tenant.Stream, error) {
	s, err := d.Store.Stream(ctx, account, name)
	return &s.Stream, err
}

func (storeDirectory) Cutoff(string) time.Time { return time.Time{} }

func (storeDirectory) Watch(func(tenant.Change)) func() { return func() {} }

// newAccount makes an account as the operator does, and returns its first key.
func (g *rig) newAccount(id tenant.AccountID) string {
	g.tb.Helper()
	got := g.ask(g.operator, "", http.MethodPost, "/v1/accounts", `{"id":"`+string(id)+`"}`)
	if got.status != http.StatusCreated {
		g.tb.Fatalf("account %s: %d %s", id, got.status, got.body)
	}
	return got.text("api_key", "key")
}

// answered is an answer of the API.
type answered struct {
	tb     testing.TB
	status int
	header http.Header
	body   string
}

// at finds a value in the body.
func (a answered) at(path ...string) any {
	a.tb.Helper()
	var value any
	if err := json.Unmarshal([]byte(a.body), &value); err != nil {
		a.tb.Fatalf("body %q: %v", a.body, err)
	}
	for _, name := range path {
		object, ok := value.(map[string]any)
		if !ok {
			return nil
		}
		value = object[name]
	}
	return value
}

func (a answered) text(path ...string) string {
	a.tb.Helper()
	s, _ := a.at(path...).(string)
	return s
}

// refused is the code of a refusal, with the field behind it.
func (a answered) refused() string {
	if a.status < 400 {
		return ""
	}
	code := a.text("error", "code")
	if field := a.text("error", "field"); field != "" {
		code += " " + field
	}
	return code
}

// request makes a request; a body is JSON.
func (g *rig) request(key, method, target, body string) *http.Request {
	var in io.Reader
	if body != "" {
		in = strings.NewReader(body)
	}
	r := httptest.NewRequestWithContext(context.WithoutCancel(g.tb.Context()), method, target, in)
	if body != "" {
		r.Header.Set("Content-Type", "application/json")
	}
	if key != "" {
		r.Header.Set("Authorization", "Bearer "+key)
	}
	return r
}

// ask sends a request to one of the APIs.
func (g *rig) ask(a *API, key, method, target, body string) answered {
	g.tb.Helper()
	return g.send(a, g.request(key, method, target, body))
}

func (g *rig) send(a *API, r *http.Request) answered {
	g.tb.Helper()
	rec := httptest.NewRecorder()
	a.ServeHTTP(rec, r)
	return g.held(r, answered{g.tb, rec.Code, rec.Header(), rec.Body.String()})
}

// own asks as the account's owner.
func (g *rig) own(method, target, body string) answered {
	g.tb.Helper()
	return g.ask(g.owner, g.key, method, target, body)
}

// inUrsula is the incarnation of a stream at the node; "" = there is none.
func (g *rig) inUrsula(name string) string {
	g.tb.Helper()
	req := httptest.NewRequestWithContext(context.WithoutCancel(g.tb.Context()), http.MethodHead, tenant.StreamPath(testAccount, tenant.StreamName(name)), nil)
	res, err := handlerNodes{g.cluster.Node(0).Handler()}.Do(req)
	if err != nil {
		g.tb.Fatal(err)
	}
	_ = res.Body.Close()
	if res.StatusCode == http.StatusNotFound {
		return ""
	}
	return res.Header.Get(incarnationHeader)
}

// row is what the store holds of a stream; nil = nothing.
func (g *rig) row(name string) *store.Stream {
	g.tb.Helper()
	s, err := g.store.Stream(context.WithoutCancel(g.tb.Context()), testAccount, tenant.StreamName(name))
	if errors.Is(err, store.ErrNotFound) {
		return nil
	}
	if err != nil {
		g.tb.Fatal(err)
	}
	return &s
}
