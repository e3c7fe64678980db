package manage

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"sluice/internal/bubble"
	"sluice/internal/store"
	"sluice/internal/syncbuf"
	"sluice/internal/tenant"
)

// nodesFunc is a way to the nodes that a test writes.
type nodesFunc func(*http.Request) (*http.Response, error)

func (f nodesFunc) Do(r *http.Request) (*http.Response, error) { return f(r) }

// between has a test do something before a request reaches the nodes; next asks them.
func (g *rig) between(r *ReconcilerOptions, f func(req *http.Request, next func() (*http.Response, error)) (*http.Response, error)) {
	nodes := r.Nodes
	r.Nodes = nodesFunc(func(req *http.Request) (*http.Response, error) {
		return f(req, func() (*http.Response, error) { return nodes.Do(req) })
	})
}

// spoiltRig is a rig whose requests to nodes pass f.
func spoiltRig(t *testing.T, f func(g *rig, req *http.Request, next func() (*http.Response, error)) (*http.Response, error)) *rig {
	var g *rig
	g = newRig(t, func(r *ReconcilerOptions, _ *Options) {
		r.Poll = 2 * time.Second
		g.between(r, func(req *http.Request, next func() (*http.Response, error)) (*http.Response, error) {
			return f(g, req, next)
		})
	})
	return g
}

// closeAnswer is for an answer that nobody reads.
func closeAnswer(res *http.Response, err error) {
	if err == nil {
		_ = res.Body.Close()
	}
}

func answer(status int, header ...string) *http.Response {
	h := http.Header{}
	for i := 0; i < len(header); i += 2 {
		h.Set(header[i], header[i+1])
	}
	return &http.Response{StatusCode: status, Header: h, Body: http.NoBody}
}

func answerBody(status int, code string) *http.Response {
	res := answer(status)
	res.Body = &countedBody{Reader: strings.NewReader(`{"error":{"code":"` + code + `","message":"x"}}`), n: &nodes{}}
	return res
}

func (g *rig) create() answered {
	g.tb.Helper()
	return g.own(http.MethodPost, "/v1/streams", events)
}

// No request that makes a stream goes out before the row says until when it may take
// effect: its deadline, and as long as the network may hold it.
func TestBusyBeforeEachCreate(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		puts := 0
		g := spoiltRig(t, func(g *rig, req *http.Request, next func() (*http.Response, error)) (*http.Response, error) {
			if req.Method != http.MethodPut {
				return next()
			}
			puts++
			if left := time.Until(g.row("events").BusyUntil); left < 15*time.Second-time.Millisecond {
				t.Errorf("create %d goes out while the row is busy for %s only", puts, left)
			}
			if puts < 40 { // for longer than the head start
				return answerBody(http.StatusServiceUnavailable, "NO_LEADER"), nil
			}
			return next()
		})
		if got := g.create(); got.text("state") != "creating" {
			t.Errorf("%d %s", got.status, got.body)
		}
		time.Sleep(10 * time.Minute)
		if g.row("events").State != store.Live || puts != 40 {
			t.Errorf("%v after %d creates", g.row("events"), puts)
		}
	})
}

// A node that was frozen with a create in its hands does it when it wakes, after all time
// is over, and may answer a look before that. The second look finds what it made.
func TestFrozenNode(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		wakes := time.Now().Add(40 * time.Second)
		var mu sync.Mutex
		var create func() (*http.Response, error)
		g := spoiltRig(t, func(_ *rig, req *http.Request, next func() (*http.Response, error)) (*http.Response, error) {
			if time.Now().After(wakes) {
				mu.Lock()
				held := create
				create = nil
				mu.Unlock()
				if held != nil {
					go func() {
						time.Sleep(time.Second)
						closeAnswer(held())
					}()
				}
				return next()
			}
			if req.Method == http.MethodPut {
				*req = *req.WithContext(context.WithoutCancel(req.Context()))
				mu.Lock()
				create = next
				mu.Unlock()
				time.Sleep(5 * time.Second)
				return nil, context.DeadlineExceeded
			}
			<-req.Context().Done()
			return nil, req.Context().Err()
		})
		if got := g.create(); got.text("state") != "creating" {
			t.Errorf("create: %d %s", got.status, got.body)
		}
		if got := g.own(http.MethodDelete, "/v1/streams/events", ""); got.status != http.StatusAccepted {
			t.Errorf("delete: %d %s", got.status, got.body)
		}
		time.Sleep(settled)
		if g.agree("events") {
			t.Errorf("the stream is there: %v", g.row("events"))
		}
	})
}

// A worker that was stopped right before its create for minutes, in which the stream was
// deleted: what it makes is deleted again, unless its name has become another's.
func TestStoppedWorker(t *testing.T) {
	for name, meanwhile := range map[string]func(g *rig) bool{
		"name free": func(*rig) bool { return false },
		"name another's": func(g *rig) bool {
			if got := g.create(); got.text("state") != "active" {
				g.tb.Errorf("create meanwhile: %d %s", got.status, got.body)
			}
			return true
		},
		"account deleted": func(g *rig) bool {
			if got := g.ask(g.operator, "", http.MethodDelete, "/v1/accounts/acme", ""); got.status != http.StatusNoContent {
				g.tb.Errorf("delete the account: %d %s", got.status, got.body)
			}
			return false
		},
	} {
		for _, told := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s/answered=%t", name, told), func(t *testing.T) {
				bubble.Test(t, func(t *testing.T) {
					var first sync.Once
					g := spoiltRig(t, func(_ *rig, req *http.Request, next func() (*http.Response, error)) (*http.Response, error) {
						stopped := false
						first.Do(func() { stopped = true })
						if stopped && req.Method == http.MethodPut {
							time.Sleep(10 * time.Minute)
							*req = *req.WithContext(context.WithoutCancel(req.Context()))
							if _, err := next(); err != nil || !told {
								return nil, context.DeadlineExceeded
							}
						}
						return next()
					})
					answeredTo := make(chan answered, 1)
					go func() { answeredTo <- g.create() }()
					time.Sleep(time.Minute)
					g.own(http.MethodDelete, "/v1/streams/events", "")
					time.Sleep(settled)
					if g.agree("events") {
						t.Fatal("the stream was not deleted")
					}
					exists := meanwhile(g)
					<-answeredTo
					time.Sleep(settled)
					if g.agree("events") != exists {
						t.Errorf("exists: %t, want %t", !exists, exists)
					}
				})
			})
		}
	}
}

// What Ursula holds under a name that is to be created: of the same type it is taken over,
// closed or not, of another it is left alone and the call is refused.
func TestNameThatUrsulaHas(t *testing.T) {
	for _, tt := range []struct {
		name, contentType string
		closed            bool
		status            int
		refused           string
	}{
		{"same type", "application/json", false, 201, ""},
		{"same type, closed", "application/json", true, 201, ""},
		{"another type", "text/plain", false, 409, "STREAM_ALREADY_EXISTS_CONFLICT content_type"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				g := newRig(t)
				req, err := http.NewRequestWithContext(t.Context(), http.MethodPut, "/acme/s.events", http.NoBody)
				if err != nil {
					t.Fatal(err)
				}
				req.Header.Set("Content-Type", tt.contentType)
				if tt.closed {
					req.Header.Set("Stream-Closed", "true")
				}
				closeAnswer(g.nodes.Do(req))
				had := g.inUrsula("events")
				got := g.create()
				if got.status != tt.status || got.refused() != tt.refused {
					t.Errorf("%d %s", got.status, got.body)
				}
				if now := g.inUrsula("events"); now != had {
					t.Errorf("Ursula had incarnation %s, has %s", had, now)
				}
				if row := g.row("events"); (row != nil) != (tt.status == 201) {
					t.Errorf("row %v", row)
				}
			})
		})
	}
}

// The same, where the process died before it could say so: the row goes, what is
// somebody else's stays, also where the stream was to be deleted meanwhile.
func TestAnothersStreamStays(t *testing.T) {
	for _, deleted := range []bool{false, true} {
		bubble.Test(t, func(t *testing.T) {
			g := newRig(t)
			g.nodes = handlerNodes{g.cluster.Node(0).Handler()}
			req, err := http.NewRequestWithContext(t.Context(), http.MethodPut, "/acme/s.events", http.NoBody)
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("Content-Type", "text/plain")
			closeAnswer(g.nodes.Do(req))
			had := g.inUrsula("events")
			if err := g.store.CreateStream(t.Context(), store.BySystem(), store.Stream{
				Stream: tenant.Stream{Account: testAccount, Name: "events", ContentType: "application/json"}, ID: "str_1",
			}); err != nil {
				t.Fatal(err)
			}
			if deleted {
				g.own(http.MethodDelete, "/v1/streams/events", "")
			}
			time.Sleep(settled)
			if g.row("events") != nil || g.inUrsula("events") != had {
				t.Errorf("deleted %t: row %v, incarnation %s, was %s", deleted, g.row("events"), g.inUrsula("events"), had)
			}
		})
	}
}

// What a create is answered where the node will not, or cannot, and how soon it is done
// when the node can.
func TestNodesThatDoNot(t *testing.T) {
	for _, tt := range []struct {
		name    string
		answer  func(req *http.Request) (*http.Response, error)
		status  int
		refused string
		within  time.Duration // of the node being well again; 0 = never
	}{
		{"refuses the type", func(*http.Request) (*http.Response, error) { return answerBody(400, "INVALID_HEADER"), nil }, 400, "INVALID_REQUEST content_type", 0},
		{"has no leader", func(*http.Request) (*http.Response, error) { return answerBody(503, "NO_LEADER"), nil }, 201, "", 18 * time.Second},
		{"takes too many", func(*http.Request) (*http.Response, error) { return answer(429), nil }, 201, "", 18 * time.Second},
		{"takes no connection", func(*http.Request) (*http.Response, error) { return nil, fmt.Errorf("x: %w", ErrNotApplied) }, 201, "", 18 * time.Second},
		{"breaks off", func(*http.Request) (*http.Response, error) { return nil, errors.New("broken") }, 201, "", 18 * time.Second},
		{"does not know", func(*http.Request) (*http.Response, error) { return answerBody(503, "OUTCOME_UNKNOWN"), nil }, 201, "", 18 * time.Second},
		{"says nothing", func(req *http.Request) (*http.Response, error) {
			<-req.Context().Done()
			return nil, req.Context().Err()
		}, 201, "", 18 * time.Second},
		{"says it was made, not which", func(*http.Request) (*http.Response, error) { return answer(201), nil }, 201, "", 18 * time.Second},
	} {
		t.Run(tt.name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				var well atomic.Bool
				g := spoiltRig(t, func(_ *rig, req *http.Request, next func() (*http.Response, error)) (*http.Response, error) {
					if well.Load() {
						return next()
					}
					return tt.answer(req)
				})
				began := time.Now()
				got := g.create()
				if got.status != tt.status || got.refused() != tt.refused || (tt.status == 201 && got.text("state") != "creating") {
					t.Errorf("%d %s", got.status, got.body)
				}
				if took := time.Since(began); took > 8*time.Second {
					t.Errorf("the answer took %s", took)
				}
				time.Sleep(2 * time.Minute)
				well.Store(true)
				time.Sleep(tt.within)
				bubble.Wait()
				if exists := g.agree("events"); exists != (tt.status == 201) {
					t.Errorf("exists: %t", exists)
				}
			})
		})
	}
}

// A change of leaders is over in seconds, and so is the create that met it.
func TestShortOutage(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		well := time.Now().Add(4 * time.Second)
		g := spoiltRig(t, func(_ *rig, _ *http.Request, next func() (*http.Response, error)) (*http.Response, error) {
			if time.Now().Before(well) {
				return answerBody(http.StatusServiceUnavailable, "NO_LEADER"), nil
			}
			return next()
		})
		if got := g.create(); got.text("state") != "creating" {
			t.Errorf("%d %s", got.status, got.body)
		}
		time.Sleep(time.Until(well.Add(3 * time.Second)))
		if !g.agree("events") {
			t.Error("it is not made 3 s after the nodes are well")
		}
	})
}

// One of several replicas works; when it goes, another follows at once, and when it dies,
// within its lease.
func TestOneReplicaWorks(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		g := newRig(t)
		g.options.Reconciler.Close()
		var mu sync.Mutex
		looked := map[string]int{}
		replica := func(name string, i *injector) *Reconciler {
			r, _ := g.parts()
			r.Holder, r.Store = name, countedStore{faultyStore{g.store, i}, func() {
				mu.Lock()
				defer mu.Unlock()
				looked[name]++
			}}
			rec := NewReconciler(r)
			t.Cleanup(rec.Close)
			return rec
		}
		who := func(wait time.Duration) string {
			time.Sleep(wait)
			mu.Lock()
			clear(looked)
			mu.Unlock()
			time.Sleep(5 * time.Second)
			mu.Lock()
			defer mu.Unlock()
			return fmt.Sprint(looked)
		}
		dies := &injector{}
		first := replica("a", &injector{})
		bubble.Wait()
		second := replica("b", dies)
		if got := who(0); !strings.HasPrefix(got, "map[a:") || strings.Contains(got, "b:") {
			t.Errorf("at work: %s", got)
		}
		first.Close()
		if got := who(4 * time.Second); !strings.HasPrefix(got, "map[b:") {
			t.Errorf("after the first went: %s", got)
		}
		replica("c", &injector{})
		dies.mu.Lock()
		dies.dead = true
		dies.mu.Unlock()
		second.Close()
		if got := who(19 * time.Second); !strings.HasPrefix(got, "map[c:") {
			t.Errorf("after the second died: %s", got)
		}
	})
}

// countedStore tells when somebody looks for work.
type countedStore struct {
	StreamStore
	look func()
}

func (s countedStore) Unsettled(ctx context.Context, limit int) ([]store.Stream, error) {
	s.look()
	return s.StreamStore.Unsettled(ctx, limit)
}

// Two that work at the same time, as when a lease ends under one: whoever is second at
// each step does no harm.
func TestTwoReconcilersAtOnce(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		g := newRig(t)
		r, _ := g.parts()
		r.Store = leaseless{g.store}
		for _, holder := range []string{"two", "three"} {
			r.Holder = holder
			rec := NewReconciler(r)
			t.Cleanup(rec.Close)
		}
		for i := range 30 {
			name := fmt.Sprint("s", i)
			if err := g.store.CreateStream(t.Context(), store.BySystem(), store.Stream{
				Stream: tenant.Stream{Account: testAccount, Name: tenant.StreamName(name), ContentType: "text/plain"}, ID: "str_" + name,
			}); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(settled)
		for i := range 30 {
			if !g.agree(fmt.Sprint("s", i)) {
				t.Errorf("stream %d was not made", i)
			}
			if i%2 == 0 {
				if _, err := g.store.DeleteStream(t.Context(), store.BySystem(), testAccount, tenant.StreamName(fmt.Sprint("s", i))); err != nil {
					t.Fatal(err)
				}
			}
		}
		time.Sleep(settled)
		for i := range 30 {
			if exists := g.agree(fmt.Sprint("s", i)); exists == (i%2 == 0) {
				t.Errorf("stream %d exists: %t", i, exists)
			}
		}
	})
}

// leaseless gives everybody the lease.
type leaseless struct{ StreamStore }

func (leaseless) Hold(context.Context, string, string, time.Duration) (bool, error) { return true, nil }

// A row that cannot be settled keeps no other from it, however many there are.
func TestManyRowsThatFail(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		g := spoiltRig(t, func(_ *rig, req *http.Request, next func() (*http.Response, error)) (*http.Response, error) {
			if strings.HasPrefix(req.URL.Path, "/acme/s.bad") {
				return answerBody(503, "NO_LEADER"), nil
			}
			return next()
		})
		for i := range 3 * passLimit {
			name := fmt.Sprintf("bad%d", i)
			if err := g.store.CreateStream(t.Context(), store.BySystem(), store.Stream{Stream: tenant.Stream{Account: testAccount, Name: tenant.StreamName(name), ContentType: "a/b"}, ID: "str_" + name}); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(time.Second)
		if err := g.store.CreateStream(t.Context(), store.BySystem(), store.Stream{Stream: tenant.Stream{Account: testAccount, Name: "good", ContentType: "a/b"}, ID: "str_good"}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(5 * time.Second)
		if !g.agree("good") {
			t.Error("the one that can be made is not")
		}
		if n := g.options.Reconciler.Trying(); n != 3*passLimit {
			t.Errorf("%d are tried again, want %d", n, 3*passLimit)
		}
	})
}

// A stream that the operator's file comes to state while it is being made is made all the
// same; what Ursula has of it is taken as it is, and one that it refuses is tried again for
// as long as it is stated, with one line in the log. (One that the file states from the
// beginning is the Keeper's.)
func TestDeclaredStreams(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		log := &syncbuf.Buffer{}
		refuse := atomic.Bool{}
		refuse.Store(true)
		g := newRig(t, func(r *ReconcilerOptions, _ *Options) {
			r.Log = zap.New(zapcore.NewCore(zapcore.NewJSONEncoder(zap.NewProductionEncoderConfig()), zapcore.AddSync(log), zapcore.WarnLevel))
			nodes := r.Nodes
			r.Nodes = nodesFunc(func(req *http.Request) (*http.Response, error) {
				if req.URL.Path == "/acme/s.refused" && refuse.Load() {
					return answerBody(http.StatusBadRequest, "INVALID_HEADER"), nil
				}
				return nodes.Do(req)
			})
		})
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPut, "/acme/s.other", http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "text/plain")
		closeAnswer(g.nodes.Do(req))
		had := g.inUrsula("other")
		content := store.Declaration{Accounts: []store.Account{{ID: testAccount, State: tenant.Active}}}
		for _, name := range []tenant.StreamName{"fresh", "other", "refused"} {
			stated := tenant.Stream{Account: testAccount, Name: name, ContentType: "application/json"}
			content.Streams = append(content.Streams, stated)
			if err := g.store.CreateStream(t.Context(), store.BySystem(), store.Stream{Stream: stated, ID: "str_" + string(name), BusyUntil: time.Now().Add(time.Minute)}); err != nil {
				t.Fatal(err)
			}
		}
		if err := g.store.Declare(t.Context(), content); err != nil {
			t.Fatal(err)
		}
		time.Sleep(5 * time.Minute)
		if !g.agree("fresh") || !g.agree("other") || g.inUrsula("other") != had {
			t.Errorf("fresh %v, other %v (it had incarnation %s)", g.row("fresh"), g.row("other"), had)
		}
		if s := g.row("refused"); s == nil || s.State != store.Creating || strings.Count(log.String(), "refuses") != 1 {
			t.Errorf("refused: %v, log %s", s, log)
		}
		refuse.Store(false)
		time.Sleep(time.Minute)
		if !g.agree("refused") {
			t.Error("not made when it can be")
		}
	})
}
