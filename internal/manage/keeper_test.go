package manage

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"sluice/internal/bubble"
	"sluice/internal/tenant"
	"sluice/internal/ursulatest"
)

// What the keeper makes of each pair of answers: what it asks, whether it is
// done with the stream, and what it says in the log.
func TestOneStream(t *testing.T) {
	const look, create = "HEAD /acme/s.a", "PUT /acme/s.a"
	tests := []struct {
		name    string
		answer  answerFunc
		asked   []string // in the first round
		settled bool
		log     string // "" = nothing from info on
	}{
		{"exists", always(200, "application/json"), []string{look}, true, ""},
		{"exists, spelt otherwise", always(200, "Application/JSON"), []string{look}, true, ""},
		{"exists with another type", always(200, "text/plain"), []string{look}, true, `"existing":"text/plain"`},
		{"missing", inTurn(404, 201), []string{look, create}, true, "created"},
		{"made by another replica meanwhile", inTurn(404, 200), []string{look, create}, true, "created"},
		{"made with another type meanwhile", inTurn(404, 409), []string{look, create}, true, `"status":409`},
		{"refused to look", always(400, ""), []string{look}, true, `"status":400`},
		{"gone", always(410, ""), []string{look}, true, `"status":410`},
		{"refused to create", inTurn(404, 400), []string{look, create}, true, `"status":400`},
		{"too many", inTurn(404, 429), []string{look, create}, false, ""},
		{"timeout", inTurn(404, 408), []string{look, create}, false, ""},
		{"no leader to look", always(503, ""), []string{look}, false, ""},
		{"no leader to create", inTurn(404, 503), []string{look, create}, false, ""},
		{"node's fault", inTurn(404, 500), []string{look, create}, false, ""},
		{"redirect that leads nowhere", always(307, ""), []string{look}, false, ""},
		{"broken", func(*http.Request) (int, string, error) { return 0, "", errors.New("refused") }, []string{look}, false, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				n := &nodes{answer: tt.answer}
				k, log := newKeeper(t, n, 0, 0)
				k.Keep([]tenant.Stream{stream("a")})
				bubble.Wait()
				asked, _ := n.requests()
				if diff := cmp.Diff(tt.asked, asked); diff != "" {
					t.Errorf("asked (-want +got):\n%s", diff)
				}
				if got := k.Pending() == 0; got != tt.settled {
					t.Errorf("settled %t, want %t", got, tt.settled)
				}
				if got := log.String(); !strings.Contains(got, tt.log) || (tt.log == "") != (got == "") {
					t.Errorf("log %q, want %q", got, tt.log)
				}
				// A settled stream is left alone; another is asked for again.
				time.Sleep(time.Minute)
				bubble.Wait()
				if later, _ := n.requests(); (len(later) == len(asked)) != tt.settled {
					t.Errorf("%d questions after the first %d", len(later)-len(asked), len(asked))
				}
				if n.bodies != len(n.asked) && tt.name != "broken" {
					t.Errorf("%d of %d bodies closed", n.bodies, len(n.asked))
				}
			})
		})
	}
}

func TestSameType(t *testing.T) {
	tests := []struct {
		a, b string
		want bool
	}{
		{"application/json", "application/json", true},
		{"application/json", "Application/Json", true},
		{"text/plain; charset=utf-8", "text/plain;charset=UTF-8", true},
		{"text/plain; charset=utf-8", "text/plain; charset=latin1", false},
		{"text/plain; charset=utf-8", "text/plain", false},
		{"text/plain", "text/html", false},
		{"text/plain", "", false},
		{"not a type", "NOT A TYPE", true},
	}
	for _, tt := range tests {
		if got := sameType(tt.a, tt.b); got != tt.want {
			t.Errorf("%q and %q: %t, want %t", tt.a, tt.b, got, tt.want)
		}
	}
}

// A stream that cannot be settled is asked for after 500 ms, 1 s, 2 s, …, and
// every 15 s at the most; once it is settled, never again.
func TestBackOff(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		n := &nodes{answer: always(503, "")}
		k, _ := newKeeper(t, n, 0, 0)
		k.Keep([]tenant.Stream{stream("a")})
		time.Sleep(75 * time.Second)
		_, times := n.requests()
		var pauses []string
		for i := 1; i < len(times); i++ {
			pauses = append(pauses, times[i].Sub(times[i-1]).String())
		}
		want := []string{"500ms", "1s", "2s", "4s", "8s", "15s", "15s", "15s"}
		if diff := cmp.Diff(want, pauses); diff != "" {
			t.Errorf("pauses (-want +got):\n%s", diff)
		}
		// A new declaration is not kept waiting, and begins with short pauses again.
		before := len(times)
		k.Keep([]tenant.Stream{stream("a")})
		bubble.Wait()
		if _, times = n.requests(); len(times) != before+1 {
			t.Errorf("a new declaration was looked at %d times at once, want 1", len(times)-before)
		}
		time.Sleep(500 * time.Millisecond)
		bubble.Wait()
		if _, times = n.requests(); len(times) != before+2 {
			t.Errorf("%d questions half a second later, want 2", len(times)-before)
		}
		n.set(inTurn(404, 201))
		if err := k.Wait(t.Context()); err != nil {
			t.Error(err)
		}
		settled, _ := n.requests()
		time.Sleep(time.Hour)
		if later, _ := n.requests(); len(later) != len(settled) {
			t.Errorf("%d questions after all was settled", len(later)-len(settled))
		}
	})
}

// Keep while a round is under way: what the old round finds out does not count
// for the new declaration, which gets a round of its own.
func TestKeepDuringARound(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		n := &nodes{answer: func(*http.Request) (int, string, error) {
			<-release
			return 200, "application/json", nil
		}}
		k, _ := newKeeper(t, n, 0, 0)
		k.Keep([]tenant.Stream{stream("a"), stream("b")})
		bubble.Wait() // both are being asked for
		k.Keep([]tenant.Stream{stream("b"), stream("c")})
		if got := k.Pending(); got != 2 {
			t.Errorf("%d pending, want the 2 that are declared now", got)
		}
		for range 2 { // the old round's questions
			release <- struct{}{}
		}
		bubble.Wait()
		if got := k.Pending(); got != 2 {
			t.Errorf("%d pending after the old round, want 2", got)
		}
		close(release)
		wait(t, k)
		asked, _ := n.requests()
		slices.Sort(asked)
		if diff := cmp.Diff([]string{"HEAD /acme/s.a", "HEAD /acme/s.b", "HEAD /acme/s.b", "HEAD /acme/s.c"}, asked); diff != "" {
			t.Errorf("asked (-want +got):\n%s", diff)
		}
		k.Keep(nil)
		wait(t, k)
		if got := k.Pending(); got != 0 {
			t.Errorf("%d pending of none", got)
		}
	})
}

// One stream that cannot be settled keeps no other from it, and no more are
// asked for at one time than the bound.
func TestManyStreams(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		now, most := 0, 0
		n := &nodes{answer: func(r *http.Request) (int, string, error) {
			mu.Lock()
			now++
			most = max(most, now)
			mu.Unlock()
			time.Sleep(time.Second)
			mu.Lock()
			now--
			mu.Unlock()
			if strings.HasSuffix(r.URL.Path, "s.s7") {
				return 503, "", nil
			}
			return inTurn(404, 201)(r)
		}}
		k, _ := newKeeper(t, n, 0, 0)
		streams := make([]tenant.Stream, 100)
		for i := range streams {
			streams[i] = stream(fmt.Sprint("s", i))
		}
		k.Keep(streams)
		time.Sleep(40 * time.Second)
		if got := k.Pending(); got != 1 {
			t.Errorf("%d pending, want the one that no node answers for", got)
		}
		mu.Lock()
		defer mu.Unlock()
		if most != atOnce {
			t.Errorf("%d questions at one time, want %d", most, atOnce)
		}
	})
}

func TestWait(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		n := &nodes{answer: always(503, "")}
		k, _ := newKeeper(t, n, 0, 0)
		if err := k.Wait(t.Context()); err != nil {
			t.Errorf("nothing is kept: %v", err)
		}
		k.Keep([]tenant.Stream{stream("a"), stream("b")})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := k.Wait(ctx); !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "2 declared streams") {
			t.Errorf("error %v, want the deadline's and how many are left", err)
		}
		done := make(chan error, 2)
		for range 2 {
			go func() { done <- k.Wait(t.Context()) }()
		}
		bubble.Wait()
		n.set(always(200, "application/json"))
		for range 2 {
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
	})
}

// Close ends the goroutine (a bubble does not end while one is left), also in the middle of a question and of a pause, and
// whatever is called afterwards hangs nobody.
func TestClose(t *testing.T) {
	hang := func(r *http.Request) (int, string, error) {
		<-r.Context().Done()
		return 0, "", r.Context().Err()
	}
	for name, answer := range map[string]answerFunc{"in a question": hang, "in a pause": always(503, ""), "at rest": always(200, "application/json")} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				k, _ := newKeeper(t, &nodes{answer: answer}, 0, 0)
				k.Keep([]tenant.Stream{stream("a")})
				bubble.Wait()
				k.Close()
				k.Close()
				k.Keep([]tenant.Stream{stream("b"), stream("c")})
				if got := k.Pending(); got != 2 {
					t.Errorf("%d pending after Close, want 2", got)
				}
			})
		})
	}
}

// Against the stand-in: what is missing is made with its type, what is there
// keeps its type and its data.
func TestKeeperAgainstTheStandIn(t *testing.T) {
	c := ursulatest.New(ursulatest.Options{})
	t.Cleanup(func() { _ = c.Close() })
	n := handlerNodes{c.Node(0).Handler()}
	ask := func(method, path, contentType, body string) (int, http.Header) {
		req := httptest.NewRequestWithContext(t.Context(), method, path, strings.NewReader(body))
		req.Header.Set("Content-Type", contentType)
		res, err := n.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = res.Body.Close()
		return res.StatusCode, res.Header
	}
	ask(http.MethodPut, "/acme/s.old", "text/plain", "")
	ask(http.MethodPost, "/acme/s.old", "text/plain", "kept")
	c.ResetRequests()
	k, log := newKeeper(t, n, 0, 0)
	k.Keep([]tenant.Stream{stream("old"), stream("new")})
	wait(t, k)
	if _, old := ask(http.MethodHead, "/acme/s.old", "", ""); old.Get("Content-Type") != "text/plain" || old.Get("Stream-Next-Offset") != "00000000000000000004" {
		t.Errorf("the existing stream changed: %v", old)
	}
	if status, fresh := ask(http.MethodHead, "/acme/s.new", "", ""); status != http.StatusOK || fresh.Get("Content-Type") != "application/json" {
		t.Errorf("the missing stream: %d %v", status, fresh)
	}
	for _, r := range c.Requests() {
		if r.Method == http.MethodPut && r.Target != "/acme/s.new" {
			t.Errorf("asked %s %s", r.Method, r.Target)
		}
	}
	if got := log.String(); !strings.Contains(got, `"level":"warn"`) || !strings.Contains(got, "/acme/s.old") {
		t.Errorf("no warning of the other type: %s", got)
	}
}
