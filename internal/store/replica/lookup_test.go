package replica

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"

	"sluice/internal/bubble"
	"sluice/internal/store"
	"sluice/internal/tenant"
)

// The request path reads memory: a thing is asked for once, however many want it at one
// time, and never again while nothing changes.
func TestMissIsAskedOnce(t *testing.T) {
	inBubble(t, func(s *script, _ *Options) {
		s.pause = func() time.Duration { return 50 * time.Millisecond }
	}, func(t *testing.T, r *rig) {
		r.pass(time.Second)
		for range 2 {
			var all sync.WaitGroup
			for range 50 {
				all.Go(func() {
					r.wantKey("a", nil)
					if a, err := r.Account(t.Context(), "acme"); err != nil || a.State != tenant.Active {
						t.Errorf("account: %v, %v", a, err)
					}
					if s, err := r.Stream(t.Context(), "acme", "s"); err != nil || !s.Public {
						t.Errorf("stream: %v, %v", s, err)
					}
				})
			}
			all.Wait()
		}
		r.atOnce(func() { r.wantKey("a", nil) })
		for _, method := range []string{"KeyOf", "Account", "Stream"} {
			if n := r.store.count(method); n != 1 {
				t.Errorf("%s was asked %d times", method, n)
			}
		}
		if s := r.Stats(); s.Keys != 1 || s.Accounts != 1 || s.Streams != 1 || s.Unknown != 0 {
			t.Errorf("stats: %+v", s)
		}
	})
}

// The look-up belongs to all who wait for it: one of them that goes away takes its own
// answer only, even where it was the first.
func TestFirstCallerGoes(t *testing.T) {
	inBubble(t, func(s *script, _ *Options) {
		s.pause = func() time.Duration { return 50 * time.Millisecond }
	}, func(t *testing.T, r *rig) {
		r.pass(time.Second)
		ctx, cancel := context.WithCancel(t.Context())
		var both sync.WaitGroup
		both.Go(func() {
			if _, err := r.Key(ctx, tenant.DigestOf("a")); !errors.Is(err, tenant.ErrUnavailable) || !errors.Is(err, context.Canceled) {
				t.Errorf("who goes away: %v", err)
			}
		})
		bubble.Wait()
		both.Go(func() { r.wantKey("a", nil) })
		bubble.Wait()
		r.atOnce(cancel)
		both.Wait()
		if n := r.store.count("KeyOf"); n != 1 {
			t.Errorf("asked %d times", n)
		}
	})
}

// A look-up that the store does not answer is over after 250 ms, whatever the caller's
// own deadline, and is no "not found".
func TestSlowLookUp(t *testing.T) {
	inBubble(t, func(s *script, _ *Options) { s.hanging["KeyOf"] = true }, func(t *testing.T, r *rig) {
		begun := time.Now()
		r.wantKey("a", tenant.ErrUnavailable)
		if took := time.Since(begun); took != askTime {
			t.Errorf("it took %v", took)
		}
		bubble.Wait()
		r.store.set(func(s *script) { s.hanging["KeyOf"] = false })
		r.wantKey("a", nil) // the store was never lost: its log answers
		if len(r.lost) != 0 {
			t.Errorf("lost: %v", r.lost)
		}
	})
}

// A13: a key that was tried before it existed works at once when it does, as the log of
// changes says so; and after a second even if nothing says it.
func TestNewKeyIsNotHidden(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, r *rig) {
		for range 10 {
			r.wantKey("new", tenant.ErrNotFound)
			r.wantKey("silent", tenant.ErrNotFound)
		}
		if n := r.store.count("KeyOf"); n != 2 {
			t.Errorf("what does not exist was asked for %d times", n)
		}
		r.store.addKey("acme/new", "new")
		bubble.Wait()
		r.wantKey("new", nil)
	})
	// It counts from when the store was asked: what was made a moment later is hidden no
	// longer for the time that the answer took.
	const pause = 100 * time.Millisecond
	inBubble(t, func(s *script, _ *Options) {
		s.pause = func() time.Duration { return pause }
	}, func(_ *testing.T, r *rig) {
		r.pass(time.Second)
		r.wantKey("silent", tenant.ErrNotFound)
		r.store.set(func(s *script) { s.keys[tenant.DigestOf("silent")] = key("acme/silent", "silent") })
		r.pass(noneKept - 2*pause - 1)
		r.wantKey("silent", tenant.ErrNotFound)
		r.pass(1)
		r.wantKey("silent", nil)
	})
}

// The same of streams and accounts.
func TestNewStreamIsNotHidden(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, r *rig) {
		look := func(want error) {
			t.Helper()
			if _, err := r.Stream(t.Context(), "new", "s"); !errors.Is(err, want) {
				t.Errorf("stream: %v, want %v", err, want)
			}
			if _, err := r.Account(t.Context(), "new"); !errors.Is(err, want) {
				t.Errorf("account: %v, want %v", err, want)
			}
		}
		look(tenant.ErrNotFound)
		r.store.change(func(s *script) {
			s.accounts["new"] = store.Account{ID: "new", State: tenant.Active}
			s.streams[streamID{"new", "s"}] = stream("s")
		}, tenant.Change{Kind: tenant.AccountChanged, Account: "new"}, tenant.Change{Kind: tenant.StreamChanged, Account: "new", Stream: "s"})
		bubble.Wait()
		look(nil)
	})
}

// A11: whatever the store says that is not "there is none", surely, is "cannot be told".
func TestStoreErrors(t *testing.T) {
	for _, fault := range []error{errDown, context.DeadlineExceeded, tenant.ErrUnavailable, fmt.Errorf("%w: %w", tenant.ErrUnavailable, tenant.ErrNotFound)} {
		inBubble(t, func(s *script, _ *Options) { s.failing["KeyOf"] = fault }, func(t *testing.T, r *rig) {
			if _, err := r.Key(t.Context(), tenant.DigestOf("a")); !errors.Is(err, tenant.ErrUnavailable) {
				t.Errorf("after %v: %v", fault, err)
			}
			r.store.set(func(s *script) { delete(s.failing, "KeyOf") })
			r.wantKey("a", nil) // and it is not remembered
		})
	}
}

// An answer that came between a look at memory and the question is used, not asked for
// again.
func TestAnswerInBetween(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, r *rig) {
		r.wantKey("a", nil)
		if f, k, err := r.keys.join(tenant.DigestOf("a")); f != nil || k == nil || err != nil {
			t.Errorf("asks again: %v, %v", k, err)
		}
	})
}

// An account has the defaults of this replica's file where it has no limit of its own;
// after a reload, those of the new file.
func TestDefaultsOfLimits(t *testing.T) {
	burst, bytes := 7, int64(0)
	inBubble(t, func(s *script, _ *Options) {
		s.accounts["own"] = store.Account{ID: "own", State: tenant.Unpaid, Limits: store.OwnLimits{Burst: &burst, UploadBytes: &bytes}}
	}, func(t *testing.T, r *rig) {
		get := func(id tenant.AccountID) *tenant.Account {
			t.Helper()
			a, err := r.Account(t.Context(), id)
			if err != nil {
				t.Fatal(err)
			}
			return a
		}
		before, own := get("acme"), tenant.DefaultLimits()
		own.Burst, own.UploadBytes = burst, 0
		if diff := gocmp.Diff(&tenant.Account{ID: "acme", State: tenant.Active, Limits: tenant.DefaultLimits()}, before); diff != "" {
			t.Errorf("the defaults (-want +got):\n%s", diff)
		}
		if diff := gocmp.Diff(&tenant.Account{ID: "own", State: tenant.Unpaid, Limits: own}, get("own")); diff != "" {
			t.Errorf("its own (-want +got):\n%s", diff)
		}
		if get("acme") != before {
			t.Error("another value, and nothing has changed")
		}
		next := tenant.Limits{RequestsPerSecond: 1, Burst: 2, OpenTails: 3, Uploads: 4, UploadBytes: 5, RequestBytes: 6}
		r.SetDefaults(next)
		if a := get("acme"); a.Limits != next {
			t.Errorf("after a reload: %+v", a.Limits)
		}
		if before.Limits != tenant.DefaultLimits() {
			t.Error("a value that was handed out has changed")
		}
		next.Burst, next.UploadBytes = burst, 0
		if a := get("own"); a.Limits != next {
			t.Errorf("after a reload, its own: %+v", a.Limits)
		}
		if n := r.store.count("Account"); n != 2 {
			t.Errorf("asked %d times", n)
		}
	})
}

// A stream on its way out is none: its readers go, and nobody new comes.
func TestDeletingStream(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, r *rig) {
		if _, err := r.Stream(t.Context(), "acme", "s"); err != nil {
			t.Fatal(err)
		}
		r.store.change(func(s *script) {
			st := stream("s")
			st.State = store.Deleting
			s.streams[streamID{"acme", "s"}] = st
		}, streamChanged("s"))
		bubble.Wait()
		if st, err := r.Stream(t.Context(), "acme", "s"); !errors.Is(err, tenant.ErrNotFound) {
			t.Errorf("%v, %v", st, err)
		}
	})
}
