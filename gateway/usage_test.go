package gateway

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"sluice/auth"
	"sluice/internal/refusal"
	"sluice/internal/tenant"
	"sluice/internal/usage"
)

// meterRig is a meter, and what was taken from it, by who used it for what.
type meterRig struct {
	*usage.Meter
	mu    sync.Mutex
	at    time.Time
	used  map[string]usage.Counts
	reads map[string]int64
}

func newMeterRig() *meterRig {
	return &meterRig{
		Meter: usage.NewMeter(usage.Options{ChunkBytes: 10, StreamReads: 10}), at: time.Date(2026, 6, 1, 12, 0, 0, 0, time.UTC),
		used: map[string]usage.Counts{}, reads: map[string]int64{},
	}
}

// change is for rigOptions.
func (m *meterRig) change(o *Options) { o.Meter, o.Now = m, m.now }

func (m *meterRig) now() time.Time {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.at
}

func (m *meterRig) pass(d time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.at = m.at.Add(d)
}

// Write implements usage.Sink.
func (m *meterRig) Write(_ context.Context, b *usage.Batch) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, r := range b.Records {
		name := fmt.Sprint(r.Account, " ", r.Class)
		if r.Principal != nil {
			name += " " + r.Principal.KeyID + r.Principal.Issuer + r.Principal.Subject
		}
		sum := m.used[name]
		sum.Add(r.Counts)
		m.used[name] = sum
	}
	for _, r := range b.StreamReads {
		m.reads[fmt.Sprint(r.Account, " ", r.Stream, " ", r.Class)] += r.Requests
	}
	return nil
}

// take takes what was used until now.
func (m *meterRig) take(t testing.TB) map[string]usage.Counts {
	t.Helper()
	f := usage.NewFlusher(m.Meter, time.Hour, m.now, usage.NewOutbox(usage.OutboxOptions{Sink: m, Replica: "r", StreamReads: 10}))
	if err := f.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	return m.used
}

// want takes what was used of so many requests, once the last of them has ended: its
// client has its answer before that.
func (rg *rig) wantUsed(t testing.TB, m *meterRig, requests int, want map[string]usage.Counts) {
	t.Helper()
	rg.awaitLines(t, requests)
	if diff := cmp.Diff(want, m.take(t)); diff != "" {
		t.Errorf("used (-want +got):\n%s", diff)
	}
}

// M1 of facts §13: appends in, reads out, each of whom they are; facts §11: what a class
// is, and that what a node refuses of a request is counted as the request.
func TestUsedByWhom(t *testing.T) {
	m := newMeterRig()
	rg := newRig(t, rigOptions{change: m.change})
	typed := []string{"Content-Type", rigType}
	for _, tc := range []struct {
		method, path, key, body string
		status                  int
	}{
		{"POST", "/acme/s.priv", "full", `[1,2,3,4,5]`, 204},     // 11 bytes: two chunks
		{"POST", "/acme/s.priv", "covering", `[1]`, 204},         // one
		{"POST", "/acme/s.priv", "full", `{"n":`, 400},           // the node's refusal: one
		{"POST", "/acme/s.missing", "full", `[1]`, 404},          // the node's too: one
		{"GET", "/acme/s.priv?offset=-1", "read", "", 200},       // 1,2,3,4,5,1 as lines
		{"HEAD", "/acme/s.priv", "read", "", 200},                // no body
		{"GET", "/acme/s.pub?offset=-1", "", "", 200},            // a stranger
		{"GET", "/acme/s.pub?offset=-1", "other.full", "", 200},  // another one, whose name is nobody's business
		{"GET", "/acme/s.pub/bootstrap", "full", "", 200},        //
		{"PUT", "/acme/s.priv/retention/99", "full", "", 0},      // management, whatever it is answered
		{"GET", "/acme/s.priv?offset=-1", "other.full", "", 403}, // nobody's use
		{"GET", "/acme/s.priv?offset=-1", "", "", 401},           //
		{"GET", "/acme/s.priv?offset=-1", "unknown", "", 401},    //
		{"GET", "/nobody/s.priv?offset=-1", "unknown", "", 401},  //
		{"POST", "/acme/s.priv", "read", `[1]`, 403},             // refused
		{"PUT", "/acme/s.new", "full", "", 403},                  // refused, a create
		{"DELETE", "/acme/s.priv", "full", "", 403},              // refused, a delete
		{"GET", "/poor/s.priv?offset=-1", "poor.full", "", 402},  // refused
		{"GET", "/.well-known/jwks.json", "", "", 200},           // nobody's
		{"OPTIONS", "/acme/s.priv", "", "", 405},                 //
		{"GET", "/v1/account", "full", "", 404},                  // there is none
	} {
		var got answer
		if tc.body != "" {
			got = rg.Do(t, tc.method, tc.path, tc.key, tc.body, typed...)
		} else {
			got = rg.Do(t, tc.method, tc.path, tc.key, "")
		}
		if tc.status != 0 && got.StatusCode != tc.status {
			t.Fatalf("%s %s with %q: %d %s", tc.method, tc.path, tc.key, got.StatusCode, got.Text)
		}
	}
	rg.awaitLines(t, 21)
	used := m.take(t)
	// What the node says of its own accord is as long as it is.
	for name, c := range used {
		if c.Requests > 0 && strings.Contains(name, " append ") != (c.Chunks > 0) {
			t.Errorf("%s has %d chunks", name, c.Chunks)
		}
		c.ResponseBytes = 0
		used[name] = c
	}
	want := map[string]usage.Counts{
		"acme append acme/full":     {Requests: 3, RequestBytes: 11 + 5 + 3, Chunks: 4, Refused: 1},
		"acme append acme/covering": {Requests: 1, RequestBytes: 3, Chunks: 1},
		"acme append acme/read":     {Refused: 1},
		"acme read acme/read":       {Requests: 2},
		"acme read":                 {Requests: 2},
		"acme read acme/full":       {Requests: 1},
		"acme management acme/full": {Requests: 1, Refused: 1},
		"poor read poor/full":       {Refused: 1},
	}
	if diff := cmp.Diff(want, used); diff != "" {
		t.Errorf("used (-want +got):\n%s", diff)
	}
	// M2: by stream only what was answered.
	if diff := cmp.Diff(map[string]int64{"acme priv read": 2, "acme pub read": 3}, m.reads); diff != "" {
		t.Errorf("reads by stream (-want +got):\n%s", diff)
	}
}

// Bytes are those that were sent, also of an answer that was cut, and none of one that the
// node could not give, which is not billed.
func TestUsedOfBrokenAnswers(t *testing.T) {
	const text = "0123456789012345678901234567890123456789"
	for name, tc := range map[string]struct {
		answer string
		want   usage.Counts
	}{
		"whole":            {whole("200 OK", "", text), usage.Counts{Requests: 1, ResponseBytes: 40}},
		"cut":              {"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n" + text, usage.Counts{Requests: 1, ResponseBytes: 40}},
		"not found":        {whole("404 Not Found", "", text), usage.Counts{Requests: 1, ResponseBytes: 40}},
		"not modified":     {"HTTP/1.1 304 Not Modified\r\n\r\n", usage.Counts{Requests: 1}},
		"the node's fault": {whole("500 Internal Server Error", "", text), usage.Counts{Refused: 1}},
		"the node is full": {whole("503 Service Unavailable", "", text), usage.Counts{Refused: 1}},
		"too many for it":  {whole("429 Too Many Requests", "", text), usage.Counts{Refused: 1}},
		"no answer":        {"", usage.Counts{Refused: 1}},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMeterRig()
			rg, _ := newUpRig(t, func(c *upConn, _ *upRequest) {
				c.say(tc.answer)
				if name == "cut" || name == "no answer" {
					_ = c.Close()
				}
			}, rigOptions{change: m.change})
			res, err := client().Do(rg.get(t, "/acme/s.priv?offset=-1"))
			if err == nil {
				_, _ = io.Copy(io.Discard, res.Body)
				_ = res.Body.Close()
			}
			rg.wantUsed(t, m, 1, map[string]usage.Counts{"acme read acme/full": tc.want})
		})
	}
}

func (rg *rig) get(t *testing.T, path string) *http.Request {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, rg.URL+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+rg.Keys[key])
	return req
}

// M07: a tail is counted while it goes on, its time to the millisecond, and heartbeats are
// apart; a long-poll by the time that it was waited for, and not where it was refused.
func TestUsedByTails(t *testing.T) {
	m := newMeterRig()
	rg := newRig(t, rigOptions{change: func(o *Options) {
		m.change(o)
		o.Heartbeat = 20 * time.Millisecond
	}})
	res, cancel := rg.open(t, client(), sseTail, key)
	poll(t, "a heartbeat", func() bool { return m.take(t)["acme live_read acme/full"].HeartbeatBytes > 0 })
	m.pass(30_250 * time.Millisecond)
	if got := m.take(t)["acme live_read acme/full"]; got.Requests != 1 || got.Tail != 30_250 {
		t.Errorf("while it is open: %+v", got)
	}
	if got := rg.Do(t, http.MethodPost, "/acme/s.priv", key, `{"n":1}`, "Content-Type", rigType); got.StatusCode != http.StatusNoContent {
		t.Fatalf("append: %d", got.StatusCode)
	}
	readUntil(t, res.Body, `{"n":1}`)
	m.pass(time.Second)
	cancel()
	rg.awaitLines(t, 2)
	used := m.take(t)["acme live_read acme/full"]
	out := rg.requestLines(t)
	data := int64(0)
	for _, line := range out {
		if n, ok := line["bytes_out"].(float64); ok && line["tail"] == "sse" {
			data = int64(n)
		}
	}
	if want := (usage.Counts{Requests: 1, Tail: 31_250, ResponseBytes: data, HeartbeatBytes: used.HeartbeatBytes}); used != want || data == 0 || used.HeartbeatBytes%int64(len(heartbeat)) != 0 {
		t.Errorf("at its end: %+v, want %+v", used, want)
	}
	if m.reads["acme priv live_read"] != 1 {
		t.Errorf("reads of the stream: %v", m.reads)
	}
}

func TestUsedByLongPolls(t *testing.T) {
	m := newMeterRig()
	rg := newRig(t, rigOptions{change: m.change})
	const path = "/acme/s.priv?offset=now&live=long-poll&timeout_ms=20000"
	poller := func(ctx context.Context) <-chan tailEnd { return follow(ctx, client(), rg.URL+path, rg.Keys[key]) }
	// One that is answered.
	end := poller(t.Context())
	await := func(n int) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		if err := rg.Cluster.WaitTails(ctx, n); err != nil {
			t.Fatal(err)
		}
	}
	await(1)
	m.pass(7 * time.Second)
	if used := m.take(t); len(used) > 0 {
		t.Errorf("before there is an answer: %v", used)
	}
	if got := rg.Do(t, http.MethodPost, "/acme/s.priv", key, `{"n":1}`, "Content-Type", rigType); got.StatusCode != http.StatusNoContent {
		t.Fatalf("append: %d", got.StatusCode)
	}
	got := <-end
	rg.awaitLines(t, 2)
	want := usage.Counts{Requests: 1, Tail: 7000, ResponseBytes: int64(len(got.text))}
	if used := m.take(t)["acme live_read acme/full"]; used != want {
		t.Errorf("one that was answered: %+v, want %+v", used, want)
	}
	// One whose client leaves has been waited for all the same.
	ctx, cancel := context.WithCancel(t.Context())
	end = poller(ctx)
	await(1)
	m.pass(3 * time.Second)
	cancel()
	<-end
	rg.awaitLines(t, 3)
	want.Requests, want.Tail = 2, 10_000
	if used := m.take(t)["acme live_read acme/full"]; used != want {
		t.Errorf("one that was left: %+v, want %+v", used, want)
	}
	// One that is refused in the end was not, whatever it waited for.
	rg.Cluster.Node(0).SetFault(func(http.ResponseWriter, *http.Request) bool {
		m.pass(5 * time.Second)
		panic(http.ErrAbortHandler)
	})
	if got := <-poller(t.Context()); got.status < 500 {
		t.Fatalf("answered %d", got.status)
	}
	rg.awaitLines(t, 4)
	want.Refused = 1
	if used := m.take(t)["acme live_read acme/full"]; used != want {
		t.Errorf("one that was refused: %+v, want %+v", used, want)
	}
}

// Calls of the Management API and token exchanges are the account's, whose key asks.
func TestUsedByManagement(t *testing.T) {
	m := newMeterRig()
	rg := newRig(t, rigOptions{change: func(o *Options) {
		m.change(o)
		o.Management = managed(func(w http.ResponseWriter, r *http.Request) (*auth.Principal, error) {
			switch r.Header.Get("Authorization") {
			case "":
				return nil, refusal.New(refusal.InvalidCredential, auth.ErrNoCredential)
			case "agent":
				return &auth.Principal{KeyID: "k2", Account: "acme"}, refusal.New(refusal.Forbidden, errors.New("no"))
			}
			_, _ = io.WriteString(w, "12345")
			return &auth.Principal{KeyID: "k1", Account: "acme"}, nil
		})
	}})
	for _, credential := range []string{"", "agent", "owner"} {
		rg.Do(t, http.MethodGet, "/v1/account", "", "", "Authorization", credential)
	}
	token := rg.token(t, "covering")
	if got := send(t, http.MethodGet, rg.URL+"/acme/s.priv?offset=-1", token, nil); got.StatusCode != http.StatusOK {
		t.Fatalf("with a token: %d %s", got.StatusCode, got.Text)
	}
	rg.awaitLines(t, 5)
	used := m.take(t)
	exchange := used["acme management acme/covering"]
	if exchange.Requests != 1 || exchange.ResponseBytes < int64(len(token)) || exchange.RequestBytes != 0 {
		t.Errorf("the exchange: %+v", exchange)
	}
	delete(used, "acme management acme/covering")
	if diff := cmp.Diff(map[string]usage.Counts{
		"acme management k1":      {Requests: 1, ResponseBytes: 5},
		"acme management k2":      {Refused: 1},
		"acme read acme/covering": {Requests: 1},
	}, used); diff != "" {
		t.Errorf("used (-want +got):\n%s", diff)
	}
}

type managed func(w http.ResponseWriter, r *http.Request) (*auth.Principal, error)

func (f managed) Serve(w http.ResponseWriter, r *http.Request, _ netip.Addr) (*auth.Principal, error) {
	return f(w, r)
}

func (managed) Look(*http.Request) (*auth.Principal, error) { return nil, nil }

// M07: what is refused for a limit is not billed, with no byte of it.
func TestRefusedIsNotBilled(t *testing.T) {
	m := newMeterRig()
	rg := newRig(t, rigOptions{change: m.change, limits: func(l *tenant.Limits) {
		l.RequestsPerSecond, l.Burst, l.RequestBytes = 1, 3, 20
	}})
	for i, body := range []string{"[1]", strings.Repeat("1", 21), "[2]", "[3]", "[4]", "[5]"} {
		got := rg.Do(t, http.MethodPost, "/acme/s.priv", key, body, "Content-Type", rigType)
		want := []int{204, 413, 204, 204, 429, 429}[i]
		if got.StatusCode != want {
			t.Fatalf("%s: %d %s", body, got.StatusCode, got.Text)
		}
	}
	rg.wantUsed(t, m, 6, map[string]usage.Counts{"acme append acme/full": {Requests: 3, RequestBytes: 9, Chunks: 3, Refused: 3}})
}
