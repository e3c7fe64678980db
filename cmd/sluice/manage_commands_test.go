package main

import (
	"context"
	"crypto/rand"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"

	"sluice/auth"
	"sluice/internal/manage"
	"sluice/internal/store"
	"sluice/internal/tenant"
	"sluice/internal/ursulatest"
)

// newManaged is the Management API on an empty store, with its two listeners, before
// the stand-in for Ursula, which answers the data path itself.
func newManaged(t *testing.T) (public, admin string) {
	t.Helper()
	cluster := ursulatest.New(ursulatest.Options{})
	s, err := store.Open(t.Context(), store.Options{URL: "sqlite:" + filepath.Join(t.TempDir(), "sluice.db"), Now: time.Now, Random: rand.Reader})
	if err != nil {
		t.Fatal(err)
	}
	log, node := zap.NewNop(), cluster.Node(0).Handler()
	reconciler := manage.NewReconciler(manage.ReconcilerOptions{Store: s, Nodes: handlerNodes{node}, Log: log, Random: rand.Reader, Holder: "one"})
	mux := http.NewServeMux()
	owner := httptest.NewServer(mux)
	directory := storeDirectory{s}
	o := manage.Options{
		Streams: s, Keys: s, Accounts: s, Log: log, Random: rand.Reader, Reconciler: reconciler,
		Origin: owner.URL, Region: "eu", DefaultLimits: tenant.DefaultLimits(),
		Authenticator: auth.New(auth.Options{Directory: directory, Now: time.Now}), Directory: directory,
	}
	mux.Handle(manage.Prefix, manage.NewOwner(o))
	mux.Handle("/", node)
	operator := httptest.NewServer(manage.NewOperator(o))
	t.Cleanup(func() {
		_ = cluster.Close() // ends tails, for which a server waits
		owner.Close()
		operator.Close()
		reconciler.Close()
		_ = s.Close()
	})
	return owner.URL, operator.URL
}

// handlerNodes asks a node's handler.
type handlerNodes struct{ http.Handler }

func (h handlerNodes) Do(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.RequestURI = r.URL.RequestURI()
	if r.Body == nil {
		r.Body = http.NoBody
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w.Result(), nil
}

// storeDirectory answers the request path's questions from the store itself.
type storeDirectory struct{ *store.Store }

func (d storeDirectory) Key(ctx context.Context, digest tenant.Digest) (*tenant.Key, error) {
	k, err := d.KeyOf(ctx, digest)
	return &k, err
}

func (d storeDirectory) Account(ctx context.Context, id tenant.AccountID) (*tenant.Account, error) {
	a, err := d.Store.Account(ctx, id)
	return &tenant.Account{ID: a.ID, State: a.State, Limits: tenant.DefaultLimits()}, err
}

func (d storeDirectory) Stream(ctx context.Context, account tenant.AccountID, name tenant.StreamName) (*tenant.Stream, error) {
	s, err := d.Store.Stream(ctx, account, name)
	return &s.Stream, err
}

func (storeDirectory) Cutoff(string) time.Time { return time.Time{} }

func (storeDirectory) Watch(func(tenant.Change)) func() { return func() {} }

// The commands and the API agree on what they send each other: the golden tests of the
// commands would not notice if the API went another way.
func TestManagementCommandsEndToEnd(t *testing.T) {
	public, admin := newManaged(t)
	env := map[string]string{"SLUICE_URL": public, "SLUICE_ADMIN_URL": admin}
	for _, step := range []struct {
		args string
		code int
		says string // on either output
	}{
		{"account create beta --limit burst=7", exitDone, "TONBO_API_KEY=tbo_"},
		{"account create beta", exitFailed, "ACCOUNT_ALREADY_EXISTS_CONFLICT"},
		{"account show beta", exitDone, "Limit burst: 7 (its own)\n"},
		{"account list", exitDone, "beta  active  no"},
		{"account update beta --state unpaid --limit open_tails=3 --limit burst=default", exitDone, "State: unpaid\n"},
		{"account show", exitFailed, "PAYMENT_REQUIRED"},
		{"account update beta --state active", exitDone, "Limit open_tails: 3 (its own)\n"},
		{"account show", exitDone, "ID: beta\nState: active\n"},
		{"account update beta --limit burst=99999999", exitFailed, "correct --limit burst=…"},
		{"account show nope", exitFailed, "ACCOUNT_NOT_FOUND"},
		{"api-key create ops --read-only --stream a --stream b.*", exitDone, "TONBO_API_KEY=tbo_"},
		{"api-key create ops", exitFailed, "API_KEY_ALREADY_EXISTS_CONFLICT"},
		{"api-key create agent --agent --expires-in 2_hours --account beta", exitDone, "TONBO_API_KEY=tbo_"},
		{"api-key list --account beta", exitDone, "a,b.*"},
		{"api-key show ops", exitDone, "Access: read\nStreams: a,b.*\nActs as: user\n"},
		{"api-key rotate ops", exitDone, "TONBO_API_KEY=tbo_"},
		{"api-key rotate ops", exitFailed, "--end-older ends the older secret at once"},
		{"api-key rotate ops --end-older --overlap 2_hours", exitDone, "TONBO_API_KEY=tbo_"},
		{"api-key show ops", exitDone, "Old secret: …"},
		{"api-key rotate ops --now --end-older", exitDone, "TONBO_API_KEY=tbo_"},
		{"api-key revoke ops", exitDone, "Revoked: ops (key_"},
		{"api-key revoke ops", exitFailed, "there is no key of the name or ID"},
		{"api-key create ops --expires-in 15_days", exitDone, "TONBO_API_KEY=tbo_"},
		{"api-key list", exitDone, "revoked"},
		{"stream create x --content-type text/plain --public --expires-in 2_hours", exitDone, "State: active\nURL: " + public + "/beta/s.x\nIncarnation: "},
		{"stream create x --content-type text/plain", exitFailed, "STREAM_ALREADY_EXISTS_CONFLICT"},
		{"stream create y --content-type text/plain --expires-in 10_seconds", exitFailed, "correct --expires-in"},
		{"stream create y --content-type nonsense", exitFailed, "correct --content-type"},
		{"stream create y --content-type text/plain --account beta", exitDone, "State: active\n"},
		{"stream list --prefix x", exitDone, "x     active  yes     text/plain"},
		{"stream update x --public=false", exitDone, "Public: no\n"},
		{"stream update y --public", exitDone, "Public: yes\n"},
		{"stream show nope", exitFailed, "STREAM_NOT_FOUND"},
		{"stream delete x --yes", exitDone, "Deleted: x\n"},
		{"stream delete x --yes", exitFailed, "STREAM_NOT_FOUND"},
		{"stream delete y --account beta --yes --json", exitDone, `"state":"deleting"`},
		{"account delete beta --yes", exitDone, "Deleted: beta\n"},
		{"account create beta", exitFailed, "ACCOUNT_ALREADY_EXISTS_CONFLICT"},
		{"stream list", exitFailed, "put a valid one into TONBO_API_KEY"},
	} {
		code, out, errOut := command(t, env, strings.Fields(step.args)...)
		if code != step.code || !strings.Contains(out+errOut, step.says) {
			t.Fatalf("sluice %s: exit %d, want %d and %q\n%s%s", step.args, code, step.code, step.says, out, errOut)
		}
		if strings.HasPrefix(step.args, "account create") && code == exitDone {
			env["TONBO_API_KEY"] = strings.TrimSpace(strings.TrimPrefix(out, "TONBO_API_KEY="))
		}
	}
}
