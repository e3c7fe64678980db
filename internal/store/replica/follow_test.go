package replica

import (
	"errors"
	"fmt"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"

	"sluice/internal/bubble"
	"sluice/internal/store"
	"sluice/internal/store/watch"
	"sluice/internal/tenant"
)

// A12: what is told is in force, for whoever looks at that moment: at once where changes
// are notified, within two seconds where notifications are lost.
func TestChangeIsInForceWhenTold(t *testing.T) {
	for name, quiet := range map[string]bool{"notified": false, "notifications lost": true} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(s *script, _ *Options) { s.quiet = quiet }, func(t *testing.T, r *rig) {
				fill := func() {
					r.wantKey("a", nil)
					if _, err := r.Account(t.Context(), "acme"); err != nil {
						t.Error(err)
					}
					if _, err := r.Stream(t.Context(), "acme", "s"); err != nil {
						t.Error(err)
					}
				}
				fill()
				var heard []tenant.Change
				var at time.Time
				defer r.Watch(func(c tenant.Change) {
					heard, at = append(heard, c), time.Now()
					switch c.Kind {
					case tenant.KeyChanged:
						if k := r.wantKey("a", nil); k != nil && k.RevokedAt.IsZero() || !r.Cutoff("acme/a").Equal(never()) {
							t.Errorf("a revoked key: %v, cutoff %v", k, r.Cutoff("acme/a"))
						}
					case tenant.AccountChanged:
						if a, err := r.Account(t.Context(), "acme"); err != nil || a.State != tenant.Unpaid {
							t.Errorf("an account that does not pay: %v, %v", a, err)
						}
					case tenant.StreamChanged:
						if s, err := r.Stream(t.Context(), "acme", "s"); err != nil || s.Public {
							t.Errorf("a private stream: %v, %v", s, err)
						}
					case tenant.SigningKeysChanged:
						if keys, err := r.SigningKeys(t.Context()); err != nil || len(keys) != 1 {
							t.Errorf("signing keys: %v, %v", keys, err)
						}
					case tenant.Everything:
						t.Error("everything was told")
					}
				})()
				soon := func(change func()) {
					t.Helper()
					begun := time.Now()
					change()
					r.pass(2 * time.Second)
					took := at.Sub(begun)
					if took < 0 || !quiet && took > gather || took > 2*time.Second {
						t.Errorf("in force after %v", took)
					}
				}
				signing := signingKey(t)
				soon(func() { r.store.revoke("acme/a") })
				soon(func() {
					r.store.change(func(s *script) { s.accounts["acme"] = store.Account{ID: "acme", State: tenant.Unpaid} }, accountChanged())
				})
				soon(func() {
					r.store.change(func(s *script) {
						private := stream("s")
						private.Public = false
						s.streams[streamID{"acme", "s"}] = private
					}, streamChanged("s"))
				})
				soon(func() {
					r.store.change(func(s *script) { s.signing = append(s.signing, signing) }, tenant.Change{Kind: tenant.SigningKeysChanged})
				})
				want := []tenant.Change{keyChanged("acme/a"), accountChanged(), streamChanged("s"), {Kind: tenant.SigningKeysChanged}}
				if diff := gocmp.Diff(want, heard); diff != "" {
					t.Errorf("told (-want +got):\n%s", diff)
				}
				if s := r.Stats(); s.Revision != 4 {
					t.Errorf("stats: %+v", s)
				}
			})
		})
	}
}

// Only what a change is about is asked for again, both secrets of a key included.
func TestOnlyWhatChangedIsDropped(t *testing.T) {
	inBubble(t, func(s *script, _ *Options) {
		for _, k := range []tenant.Key{key("acme/a", "second secret"), key("acme/b", "b")} {
			s.keys[k.Digest] = k
		}
	}, func(t *testing.T, r *rig) {
		for range 2 {
			r.wantKey("a", nil)
			r.wantKey("second secret", nil)
			r.wantKey("b", nil)
		}
		r.store.revoke("acme/a")
		r.settled()
		r.store.count("KeyOf")
		for _, secret := range []string{"a", "second secret"} {
			if k := r.wantKey(secret, nil); k == nil || k.RevokedAt.IsZero() {
				t.Errorf("of a revoked key: %v", k)
			}
		}
		r.wantKey("b", nil)
		if n := r.store.count("KeyOf"); n != 2 {
			t.Errorf("asked %d times", n)
		}
	})
}

// A change that came between an answer's being read in the store and its being kept left
// the old answer in the cache for ever: the log does not say it twice.
func TestChangeDuringLookUp(t *testing.T) {
	gone := func(s *script) { s.keys = map[tenant.Digest]tenant.Key{} }
	for name, tc := range map[string]struct {
		secret string
		change func(*script)
		after  error // of a look-up after it
		kept   bool  // the answer of the one under way may be kept
	}{
		"the key is removed": {"a", func(s *script) { s.change(gone, keyChanged("acme/a")) }, tenant.ErrNotFound, false},
		"everything":         {"a", func(s *script) { s.change(gone, tenant.Change{Kind: tenant.Everything}) }, tenant.ErrNotFound, false},
		"the key is made":    {"new", func(s *script) { s.addKey("acme/new", "new") }, nil, false},
		"another key":        {"a", func(s *script) { s.addKey("acme/new", "new") }, nil, true},
		"many other keys": {"a", func(s *script) {
			for i := range touchesKept + 1 {
				s.addKey(fmt.Sprint("acme/", i), fmt.Sprint(i))
			}
		}, nil, false},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, nil, func(t *testing.T, r *rig) {
				let := make(chan struct{})
				r.store.set(func(s *script) { s.held["KeyOf"] = func() { <-let } })
				before := make(chan struct{})
				go func() {
					defer close(before)
					_, _ = r.Key(t.Context(), tenant.DigestOf(tc.secret))
				}()
				bubble.Wait() // it is read
				r.store.set(func(s *script) { delete(s.held, "KeyOf") })
				tc.change(r.store)
				r.settled() // it is in force
				// Whoever asks from now on does not wait for what is older.
				r.wantKey(tc.secret, tc.after)
				close(let)
				<-before
				r.store.count("KeyOf")
				r.wantKey(tc.secret, tc.after)
				if n := r.store.count("KeyOf"); n != 0 {
					t.Errorf("the newer answer was not kept: asked %d times", n)
				}
			})
			// The same, and nobody asked in between.
			inBubble(t, nil, func(t *testing.T, r *rig) {
				let := make(chan struct{})
				r.store.set(func(s *script) { s.held["KeyOf"] = func() { <-let } })
				before := make(chan struct{})
				go func() {
					defer close(before)
					_, _ = r.Key(t.Context(), tenant.DigestOf(tc.secret))
				}()
				r.settled()
				r.store.set(func(s *script) { delete(s.held, "KeyOf") })
				tc.change(r.store)
				r.settled()
				close(let)
				<-before
				r.store.count("KeyOf")
				r.wantKey(tc.secret, tc.after)
				if kept := r.store.count("KeyOf") == 0; kept != tc.kept {
					t.Errorf("kept: %t", kept)
				}
			})
		})
	}
}

// The same race for what is dropped by its own name.
func TestChangeDuringStreamLookUp(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, r *rig) {
		let := make(chan struct{})
		r.store.set(func(s *script) { s.held["Stream"] = func() { <-let } })
		before := make(chan error, 1)
		go func() {
			_, err := r.Stream(t.Context(), "acme", "s")
			before <- err
		}()
		r.settled()
		r.store.set(func(s *script) { delete(s.held, "Stream") })
		r.store.change(func(s *script) { clear(s.streams) }, streamChanged("s"))
		r.settled()
		// Whoever asks now does not wait for what is older.
		r.atOnce(func() {
			if s, err := r.Stream(t.Context(), "acme", "s"); !errors.Is(err, tenant.ErrNotFound) {
				t.Errorf("in between: %v, %v", s, err)
			}
		})
		close(let)
		if err := <-before; err != nil {
			t.Errorf("who asked before the change: %v", err)
		}
		if s, err := r.Stream(t.Context(), "acme", "s"); !errors.Is(err, tenant.ErrNotFound) {
			t.Errorf("afterwards: %v, %v", s, err)
		}
	})
}

// Where the log does not say what changed, everything is asked for again, and told.
func TestLogThatDoesNotTell(t *testing.T) {
	for name, change := range map[string]func(*script){
		"forgotten": func(s *script) { s.revision, s.forgotten = s.revision+7, s.revision+7 },
		"not whole": func(s *script) {
			s.revision++
			s.log = append(s.log, store.Change{Revision: s.revision, Change: keyChanged("x")})
			s.torn = true
		},
		"a gap": func(s *script) {
			s.revision += 2
			s.log = append(s.log, store.Change{Revision: s.revision, Change: keyChanged("x")})
		},
		"nothing":   func(s *script) { s.revision += 2 },
		"gone back": func(s *script) { s.revision = 0; s.log = nil },
		"a newer kind": func(s *script) {
			s.revision++
			s.log = append(s.log, store.Change{Revision: s.revision, Change: tenant.Change{Kind: 99}})
		},
		"everything": func(s *script) {
			s.revision++
			s.log = append(s.log, store.Change{Revision: s.revision, Change: tenant.Change{Kind: tenant.Everything}})
		},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(s *script, _ *Options) {
				s.addKey("acme/b", "b")
				s.addKey("acme/c", "c")
			}, func(t *testing.T, r *rig) {
				r.wantKey("a", nil)
				r.wantKey("new", tenant.ErrNotFound)
				r.store.change(func(s *script) {
					delete(s.keys, tenant.DigestOf("a"))
					s.keys[tenant.DigestOf("new")] = key("acme/new", "new")
					s.cutoffs["acme/a"] = store.Cutoff{KeyID: "acme/a", At: never(), Set: time.Now()}
					change(s)
				})
				r.settled()
				r.wantKey("a", tenant.ErrNotFound)
				r.wantKey("new", nil)
				if r.Cutoff("acme/a").IsZero() {
					t.Error("no cutoff")
				}
				if diff := gocmp.Diff([]tenant.Change{{Kind: tenant.Everything}}, r.told()); diff != "" {
					t.Errorf("told (-want +got):\n%s", diff)
				}
				if n := len(r.keys.good.groups); n != 1 {
					t.Errorf("%d ids are remembered of one key", n)
				}
				// And once: it follows on from there.
				r.store.set(func(s *script) { s.torn = false })
				r.store.addKey("acme/d", "d")
				r.pass(5 * time.Second)
				if diff := gocmp.Diff([]tenant.Change{keyChanged("acme/d")}, r.told()); diff != "" {
					t.Errorf("told later (-want +got):\n%s", diff)
				}
			})
		})
	}
}

// A log longer than one part is read to its end, and what is told then is one thing.
func TestManyChanges(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, r *rig) {
		r.wantKey("a", nil)
		entries := make([]tenant.Change, 0, 2*logPart+6)
		for i := range 2*logPart + 5 {
			entries = append(entries, keyChanged(fmt.Sprint("acme/", i)))
		}
		r.store.change(func(s *script) { delete(s.keys, tenant.DigestOf("a")) }, append(entries, keyChanged("acme/a"))...)
		r.settled()
		r.wantKey("a", tenant.ErrNotFound)
		if diff := gocmp.Diff([]tenant.Change{{Kind: tenant.Everything}}, r.told()); diff != "" {
			t.Errorf("told (-want +got):\n%s", diff)
		}
		if n := r.store.count("Changes"); n != 3 {
			t.Errorf("read in %d parts", n)
		}
		r.store.change(func(*script) {}, entries[:watch.MaxTold]...)
		r.settled()
		if n := len(r.told()); n != watch.MaxTold {
			t.Errorf("%d told one by one", n)
		}
	})
}

// An import, change by change, has the log read some fifty times a second and not at each.
func TestManyNotifications(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, r *rig) {
		r.store.count("Changes")
		for i := range 1000 {
			r.store.addKey(fmt.Sprint("acme/", i), fmt.Sprint(i))
			r.pass(time.Millisecond)
		}
		r.settled()
		if n := r.store.count("Changes"); n < 40 || n > 60 {
			t.Errorf("the log was read %d times", n)
		}
		if n := len(r.told()); n != 1000 || r.Stats().Revision != 1000 {
			t.Errorf("%d told, revision %d", n, r.Stats().Revision)
		}
	})
}

// The cutoff of a key is in force when its new rights are, not later: who has the new
// rights could make a token for them behind a cutoff that is to come. And who has the
// new cutoff finds the new rights.
func TestRightsAreNewWhenCutoffIs(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, r *rig) {
		r.wantKey("a", nil)
		let := make(chan struct{})
		r.store.set(func(s *script) { s.held["Cutoffs"] = func() { <-let } })
		r.store.revoke("acme/a")
		bubble.Wait() // the change is read, its cutoff is not here yet
		if !r.Cutoff("acme/a").IsZero() {
			t.Fatal("the cutoff is here")
		}
		if k := r.wantKey("a", nil); k == nil || k.RevokedAt.IsZero() {
			t.Errorf("old rights before the cutoff is in force: %v", k)
		}
		if told := r.told(); told != nil {
			t.Errorf("told before it is in force: %v", told)
		}
		close(let)
		r.settled()
		if r.Cutoff("acme/a").IsZero() || len(r.told()) != 1 {
			t.Error("no cutoff, or not told")
		}
	})
}

// A change of which the cutoffs cannot be read yet is not told, and is tried again.
func TestHalfReadChange(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, r *rig) {
		r.wantKey("a", nil)
		r.store.set(func(s *script) { s.failing["Cutoffs"] = errDown })
		r.store.revoke("acme/a")
		r.pass(3 * time.Second)
		if told := r.told(); told != nil || r.Stats().Revision != 0 {
			t.Errorf("told %v, revision %d", told, r.Stats().Revision)
		}
		r.wantKey("a", tenant.ErrUnavailable) // it was dropped, and the store is lost
		r.store.set(func(s *script) { delete(s.failing, "Cutoffs") })
		r.pass(probeEvery)
		if told := r.told(); len(told) != 1 || r.Cutoff("acme/a").IsZero() {
			t.Errorf("told %v, cutoff %v", told, r.Cutoff("acme/a"))
		}
	})
}
