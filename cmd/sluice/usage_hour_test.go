package main

import (
	"bufio"
	"context"
	"crypto/rand"
	"fmt"
	"io"
	mathrand "math/rand/v2"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"sluice/auth"
	"sluice/gateway"
	"sluice/gateway/upstream"
	"sluice/internal/postgrestest"
	"sluice/internal/store"
	"sluice/internal/store/memory"
	"sluice/internal/telemetry"
	"sluice/internal/tenant"
	"sluice/internal/ursulatest"
	"sluice/internal/usage"
	"sluice/ratelimit"
)

// Issue 8, "Done when", line 3, and facts M1, M4: an hour of a script, on a clock of its
// own, over two replicas of which one is killed. What the store and the exports have is
// what the script did until each last flush, exactly, by hour and class; the exports
// replayed twice bill once.
func TestUsageOfAScriptedHour(t *testing.T) {
	for _, kind := range []string{"sqlite", "postgres"} {
		t.Run(kind, func(t *testing.T) {
			url := "sqlite:" + filepath.Join(t.TempDir(), "sluice.db")
			if kind == "postgres" {
				url = postgrestest.Start(t).Database(t, "")
			}
			newScript(t, url).run()
		})
	}
}

const scriptAccount = "acme"

// script is the hour, and what it has used.
type script struct {
	t       *testing.T
	random  *mathrand.Rand
	store   *store.Store
	cluster *ursulatest.Cluster
	key     string
	options gateway.Options
	both    []*scripted

	mu  sync.Mutex
	now time.Time
}

// scripted is a replica of the script.
type scripted struct {
	script  *script
	url     string
	meter   *countingMeter
	flusher *usage.Flusher
	export  string
	used    map[usage.Hour]map[usage.Class]usage.Counts // by the script
	flushed map[usage.Hour]map[usage.Class]usage.Counts // the same, at the last flush
	tails   []*scriptedTail
	asked   int // requests that have to end
	killed  bool
}

// countingMeter tells when requests have ended: a client has its answer before that.
type countingMeter struct {
	*usage.Meter
	mu   sync.Mutex
	cond *sync.Cond
	n    int
}

func (m *countingMeter) ended() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.n++
	m.cond.Broadcast()
}

func (m *countingMeter) Close(a *usage.Answer, u usage.Use, now time.Time) {
	m.Meter.Close(a, u, now)
	m.ended()
}

func (m *countingMeter) Refused(k usage.Key, now time.Time) {
	m.Meter.Refused(k, now)
	m.ended()
}

func (m *countingMeter) await(n int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for m.n < n {
		m.cond.Wait()
	}
}

func newScript(t *testing.T, url string) *script {
	t.Helper()
	seed := mathrand.Uint64() //nolint:gosec // chance is no secret
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("seed %d", seed)
		}
	})
	s := &script{t: t, random: mathrand.New(mathrand.NewPCG(seed, 1)), key: newTestKey(t), now: time.Date(2026, 6, 1, 10, 0, 0, 0, time.UTC)} //nolint:gosec // chance is no secret
	s.cluster = ursulatest.New(ursulatest.Options{})
	t.Cleanup(func() { _ = s.cluster.Close() })
	if err := s.cluster.Start(); err != nil {
		t.Fatal(err)
	}
	var err error
	if s.store, err = store.Open(t.Context(), store.Options{URL: url, SealingKey: []byte(sealing)}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.store.Close() })
	s.parts()
	for _, name := range []string{"a", "b"} {
		s.both = append(s.both, s.replica(name))
	}
	return s
}

func (s *script) clock() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.now
}

// parts are what the gateways of both replicas are built of.
func (s *script) parts() {
	s.t.Helper()
	limits := tenant.DefaultLimits()
	limits.RequestsPerSecond, limits.Burst, limits.OpenTails, limits.RequestBytes = 1_000_000, 1_000_000, 1000, 5000
	directory, err := memory.New(memory.Content{
		Accounts: []tenant.Account{{ID: scriptAccount, State: tenant.Active, Limits: limits}},
		Streams:  []tenant.Stream{{Account: scriptAccount, Name: "s", ContentType: "text/plain"}},
		Keys: []tenant.Key{{
			ID: "k", Account: scriptAccount, Name: "k", Digest: tenant.DigestOf(s.key), Access: tenant.WriteAccess,
			Streams: tenant.AllStreams(), ActsAs: tenant.User,
		}},
	})
	if err != nil {
		s.t.Fatal(err)
	}
	pool, err := upstream.New(upstream.Options{Nodes: s.cluster.URLs()})
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(pool.Close)
	metrics, err := telemetry.NewMetrics(prometheus.NewRegistry())
	if err != nil {
		s.t.Fatal(err)
	}
	counts := ratelimit.NewMemory(ratelimit.MemoryOptions{Now: time.Now})
	s.options = gateway.Options{
		Directory: directory, Authenticator: auth.New(auth.Options{Directory: directory, Now: time.Now}), Origin: "https://streams.example.com",
		Exchanges: counts, Failures: counts, Limiter: counts, Tails: counts, Uploads: counts, Upstream: pool,
		Log: zap.NewNop(), Metrics: metrics, Budget: gateway.NewBodyBudget(64 << 20), Now: s.clock, Random: rand.Reader,
	}
	req, err := http.NewRequestWithContext(s.t.Context(), http.MethodPut, s.cluster.URLs()[0]+"/"+scriptAccount+"/s.s", http.NoBody)
	if err != nil {
		s.t.Fatal(err)
	}
	req.Header.Set("Content-Type", "text/plain")
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		s.t.Fatal(err)
	}
	_ = res.Body.Close()
}

func (s *script) replica(name string) *scripted {
	s.t.Helper()
	r := &scripted{script: s, export: filepath.Join(s.t.TempDir(), "usage.jsonl"), meter: &countingMeter{Meter: usage.NewMeter(usage.Options{ChunkBytes: 100})}}
	r.meter.cond = sync.NewCond(&r.meter.mu)
	r.used, r.flushed = map[usage.Hour]map[usage.Class]usage.Counts{}, map[usage.Hour]map[usage.Class]usage.Counts{}
	file, err := usage.OpenFile(r.export)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { _ = file.Close() })
	lost := s.random.IntN(3)
	r.flusher = usage.NewFlusher(r.meter.Meter, 30*time.Second, s.clock,
		usage.NewOutbox(usage.OutboxOptions{Replica: name + "-file", Sink: file}),
		usage.NewOutbox(usage.OutboxOptions{Replica: name, Sink: usage.SinkFunc(func(ctx context.Context, b *usage.Batch) error {
			err := s.store.WriteUsage(ctx, b)
			if lost++; lost%3 == 0 { // its answer was lost
				return io.ErrUnexpectedEOF
			}
			return err
		})}))
	options := s.options
	options.Meter = r.meter
	g := gateway.New(options)
	s.t.Cleanup(g.Close)
	server := httptest.NewServer(g)
	s.t.Cleanup(server.Close)
	r.url = server.URL
	return r
}

// add notes what the script has used of a class at a time.
func (r *scripted) add(class usage.Class, at time.Time, d usage.Counts) {
	h := usage.HourOf(at)
	if r.used[h] == nil {
		r.used[h] = map[usage.Class]usage.Counts{}
	}
	c := r.used[h][class]
	c.Add(d)
	r.used[h][class] = c
}

// run is the hour, by half minutes: at each both replicas flush, and one is killed 20
// seconds after it did.
func (s *script) run() {
	for step := range 2 * 64 {
		for range 3 {
			s.pass(time.Duration(s.random.IntN(9_000)) * time.Millisecond)
			for _, r := range s.both {
				if !r.killed {
					r.something()
				}
			}
		}
		if step == 83 {
			s.both[1].killed = true
		}
		s.pass(s.nextStep(step + 1).Sub(s.clock()))
		for _, r := range s.both {
			if !r.killed {
				r.flush()
			}
		}
	}
	a := s.both[0]
	for len(a.tails) > 0 {
		a.endTail()
	}
	a.flush()
	s.check()
}

func (s *script) nextStep(n int) time.Time {
	return time.Date(2026, 6, 1, 10, 0, 0, 0, time.UTC).Add(time.Duration(n) * 30 * time.Second)
}

// pass moves the clock; open tails are open for as long.
func (s *script) pass(d time.Duration) {
	s.mu.Lock()
	from := s.now
	s.now = from.Add(d)
	to := s.now
	s.mu.Unlock()
	for _, r := range s.both {
		for range r.tails {
			for at := from; at.Before(to); {
				next := usage.HourOf(at).Time().Add(time.Hour)
				if next.After(to) {
					next = to
				}
				if !r.killed {
					r.add(usage.LiveRead, at, usage.Counts{Tail: usage.Millis(next.Sub(at).Milliseconds())})
				}
				at = next
			}
		}
	}
}

func (r *scripted) something() {
	switch n := r.script.random.IntN(10); {
	case n < 3:
		r.append(1 + r.script.random.IntN(400))
	case n < 5:
		got := r.do(http.MethodGet, "?offset=-1", nil, http.StatusOK)
		r.add(usage.Read, r.script.clock(), usage.Counts{Requests: 1, ResponseBytes: int64(got)})
	case n < 6:
		r.do(http.MethodHead, "", nil, http.StatusOK)
		r.add(usage.Read, r.script.clock(), usage.Counts{Requests: 1})
	case n < 7:
		r.do(http.MethodPost, "", strings.NewReader(strings.Repeat("x", 6000)), http.StatusRequestEntityTooLarge)
		r.add(usage.Append, r.script.clock(), usage.Counts{Refused: 1})
	case n < 9 && len(r.tails) < 3:
		r.openTail()
	case len(r.tails) > 0:
		r.endTail()
	}
}

func (r *scripted) append(n int) {
	sent := r.do(http.MethodPost, "", strings.NewReader(strings.Repeat("x", n)), http.StatusNoContent)
	r.add(usage.Append, r.script.clock(), usage.Counts{Requests: 1, RequestBytes: int64(n), Chunks: int64((n + 99) / 100), ResponseBytes: int64(sent)})
	for _, other := range r.script.both {
		for _, tail := range other.tails {
			// One of a replica that was killed goes on, and is nobody's use any more.
			if got := tail.events(2); !other.killed {
				other.add(usage.LiveRead, r.script.clock(), usage.Counts{ResponseBytes: got})
			}
		}
	}
}

// do makes one request, waits until it has ended, and returns how many bytes came back.
func (r *scripted) do(method, query string, body io.Reader, status int) int {
	t := r.script.t
	t.Helper()
	res := r.request(t.Context(), method, query, body)
	text, err := io.ReadAll(res.Body)
	_ = res.Body.Close()
	if err != nil || res.StatusCode != status {
		t.Fatalf("%s %s: %d %s, %v", method, query, res.StatusCode, text, err)
	}
	r.asked++
	r.meter.await(r.asked)
	return len(text)
}

func (r *scripted) request(ctx context.Context, method, query string, body io.Reader) *http.Response {
	t := r.script.t
	t.Helper()
	req, err := http.NewRequestWithContext(ctx, method, r.url+"/"+scriptAccount+"/s.s"+query, body)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+r.script.key)
	req.Header.Set("Content-Type", "text/plain")
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	return res
}

type scriptedTail struct {
	t      *testing.T
	body   *bufio.Reader
	cancel context.CancelFunc
}

// events reads so many events whole, and returns their bytes.
func (f *scriptedTail) events(n int) (bytes int64) {
	f.t.Helper()
	for n > 0 {
		line, err := f.body.ReadString('\n')
		if err != nil {
			f.t.Fatalf("a tail: %v", err)
		}
		if bytes += int64(len(line)); line == "\n" {
			n--
		}
	}
	return bytes
}

func (r *scripted) openTail() {
	ctx, cancel := context.WithCancel(r.script.t.Context())
	res := r.request(ctx, http.MethodGet, "?offset=now&live=sse", nil)
	tail := &scriptedTail{r.script.t, bufio.NewReader(res.Body), cancel}
	r.script.t.Cleanup(func() { _ = res.Body.Close() })
	// It begins with where it stands.
	r.add(usage.LiveRead, r.script.clock(), usage.Counts{Requests: 1, ResponseBytes: tail.events(1)})
	r.tails = append(r.tails, tail)
}

func (r *scripted) endTail() {
	r.tails[0].cancel()
	r.tails = r.tails[1:]
	r.asked++
	r.meter.await(r.asked)
}

// flush is one of the flusher's, and what it delivers has arrived after it.
func (r *scripted) flush() {
	t := r.script.t
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	// An answer that was lost is no reason to give up.
	for err := r.flusher.Close(ctx); err != nil; err = r.flusher.Close(ctx) {
		if ctx.Err() != nil {
			t.Fatal(err)
		}
	}
	for h, classes := range r.used {
		r.flushed[h] = map[usage.Class]usage.Counts{}
		for class, c := range classes {
			r.flushed[h][class] = c
		}
	}
}

// check wants in the store, and in the exports, what was flushed.
func (s *script) check() {
	t := s.t
	t.Helper()
	want, bill := map[string]usage.Counts{}, map[string]usage.Counts{}
	for _, r := range s.both {
		for h, classes := range r.flushed {
			for class, c := range classes {
				hour, month := fmt.Sprint(h.Time().Hour(), " ", class), scriptAccount+" "+class.String()
				sum, billed := want[hour], bill[month]
				sum.Add(c)
				billed.Add(c)
				want[hour], bill[month] = sum, billed
			}
		}
	}
	first := usage.HourOf(s.nextStep(0))
	list, err := s.store.Usage(t.Context(), scriptAccount, store.UsageQuery{From: first, To: first + 4*3600, Limit: 100})
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]usage.Counts{}
	for _, u := range list {
		got[fmt.Sprint(u.Hour.Time().Hour(), " ", u.Class)] = u.Counts
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("the store's hours (-script +store):\n%s", diff)
	}
	b := newBiller(t)
	for range 2 {
		for _, r := range s.both {
			_, text := exported(t, r.export)
			b.read(t, text)
			b.read(t, text)
		}
		if diff := cmp.Diff(bill, b.bills(t)); diff != "" {
			t.Errorf("the bill of the exports (-script +bill):\n%s", diff)
		}
	}
	if want["10 live_read"].Tail == 0 || want["11 live_read"].Tail == 0 || cmp.Equal(s.both[1].used, s.both[1].flushed) {
		t.Errorf("the script tries too little: %v", want)
	}
}
