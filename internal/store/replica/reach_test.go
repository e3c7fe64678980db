package replica

import (
	"errors"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"

	"sluice/internal/bubble"
	"sluice/internal/store"
	"sluice/internal/tenant"
)

// wantAll wants each question about what is known to be answered, or to be ErrUnavailable.
func (r *rig) wantAll(known bool) {
	r.t.Helper()
	ctx := r.t.Context()
	_, key := r.Key(ctx, tenant.DigestOf("a"))
	_, account := r.Account(ctx, "acme")
	_, stream := r.Stream(ctx, "acme", "s")
	_, signing := r.SigningKeys(ctx)
	for name, err := range map[string]error{"key": key, "account": account, "stream": stream, "signing keys": signing} {
		if known && err != nil || !known && (!errors.Is(err, tenant.ErrUnavailable) || errors.Is(err, tenant.ErrNotFound)) {
			r.t.Errorf("%s: %v, want known: %t", name, err, known)
		}
	}
}

// wantNone wants nothing to be known of a key that nobody asked for yet, and nobody to wait.
func (r *rig) wantNone() {
	r.t.Helper()
	r.atOnce(func() { r.wantKey("unknown", tenant.ErrUnavailable) })
}

// A11: without the store, what is known goes on for StaleFor after the log was read last,
// and what is not known is "cannot be told", at once. After that so is everything. Nothing
// is ever "not found", which a client would take for the end of its key.
func TestStoreGone(t *testing.T) {
	for _, staleFor := range []time.Duration{DefaultStaleFor, time.Minute, 5 * time.Second} {
		inBubble(t, func(_ *script, o *Options) { o.StaleFor = staleFor }, func(t *testing.T, r *rig) {
			r.wantAll(true)
			r.pass(10 * time.Second)
			read := time.Now().Add(-pollEvery / 2)
			r.store.set(func(s *script) { s.down = true })
			// Until it is noticed, by a look-up or the poll, at most one look-up asks.
			r.wantKey("unknown", tenant.ErrUnavailable)
			bubble.Wait()
			r.wantNone()
			asked := r.store.count("KeyOf")
			if s := r.Stats(); !s.LostSince.Equal(read) || !s.ReadAt.Equal(read) || len(r.lost) != 1 || !errors.Is(r.lost[0], errDown) {
				t.Errorf("lost %v, read %v at %v, want %v; told %v", s.LostSince, s.ReadAt, time.Now(), read, r.lost)
			}
			r.pass(time.Until(read.Add(staleFor)) - 1)
			r.wantAll(true)
			r.wantNone()
			if c := r.Cutoff("acme/a"); !c.IsZero() {
				t.Errorf("cutoff %v", c)
			}
			if told := r.told(); told != nil {
				t.Errorf("told %v", told)
			}
			r.pass(1)
			r.wantAll(false)
			r.wantNone()
			r.pass(cutoffGrace)
			if c := r.Cutoff("acme/a"); !c.Equal(never()) {
				t.Errorf("a token may live: cutoff %v", c)
			}
			r.pass(time.Hour)
			r.wantAll(false)
			if n := r.store.count("KeyOf"); n != 0 || asked != 2 { // "a" and "unknown", once each
				t.Errorf("a store that is gone was asked for %d and %d keys", asked, n)
			}
			if diff := gocmp.Diff([]tenant.Change{{Kind: tenant.Everything}}, r.told()); diff != "" {
				t.Errorf("told when nothing may be used any more (-want +got):\n%s", diff)
			}
			gone := time.Since(read)
			r.store.set(func(s *script) { s.down = false })
			r.pass(probeEvery)
			r.wantAll(true)
			r.wantKey("unknown", tenant.ErrNotFound)
			if c := r.Cutoff("acme/a"); !c.IsZero() {
				t.Errorf("cutoff %v", c)
			}
			if s := r.Stats(); !s.LostSince.IsZero() || len(r.lost) != 1 || len(r.back) != 1 || r.back[0] < gone || r.back[0] > gone+probeEvery {
				t.Errorf("lost %v, told %v and %v after %v", s.LostSince, r.lost, r.back, gone)
			}
			if n := r.store.count("KeyOf"); n != 1 {
				t.Errorf("what was known is asked for again: %d", n)
			}
		})
	}
}

// With StaleFor 0 everything is refused as soon as the store is known to be gone, and not
// a moment before.
func TestNotStaleAtAll(t *testing.T) {
	inBubble(t, func(_ *script, o *Options) { o.StaleFor = 0 }, func(_ *testing.T, r *rig) {
		for range 100 {
			r.wantAll(true)
			r.pass(130 * time.Millisecond)
		}
		r.store.set(func(s *script) { s.down = true })
		r.pass(pollEvery)
		r.wantAll(false)
		r.wantNone()
		r.store.set(func(s *script) { s.down = false })
		r.pass(probeEvery)
		r.wantAll(true)
	})
	// A store that hangs is known to be gone within two seconds.
	inBubble(t, func(_ *script, o *Options) { o.StaleFor = 0 }, func(_ *testing.T, r *rig) {
		r.wantAll(true)
		r.store.set(func(s *script) { s.hanging["Revision"] = true })
		r.pass(2 * time.Second)
		r.wantAll(false)
	})
}

// A store that takes connections and says nothing costs the first requests 250 ms each;
// they have it looked at, and the next wait for nothing.
func TestHangingStore(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, r *rig) {
		r.wantAll(true)
		r.pass(2 * suspectAfter)
		r.store.set(func(s *script) {
			for _, method := range []string{"KeyOf", "Account", "Stream", "Revision", "Changes"} {
				s.hanging[method] = true
			}
		})
		begun := time.Now()
		r.wantKey("unknown", tenant.ErrUnavailable)
		if took := time.Since(begun); took != askTime {
			t.Errorf("it took %v", took)
		}
		r.pass(logTime)
		r.wantNone()
		r.wantAll(true)
	})
}

// What happened while the store was out of reach is caught up with before anything that
// was known is used any longer, and told.
func TestCatchUpBeforeTrust(t *testing.T) {
	inBubble(t, func(_ *script, o *Options) { o.StaleFor = time.Minute }, func(t *testing.T, r *rig) {
		r.wantAll(true)
		r.store.set(func(s *script) { s.down = true })
		r.pass(2 * time.Minute)
		r.wantAll(false)
		r.told()
		r.store.revoke("acme/a")
		// It is back, and slow to tell its log.
		r.store.set(func(s *script) {
			s.down = false
			s.pause = func() time.Duration { return 100 * time.Millisecond }
		})
		watched := false
		defer r.Watch(func(tenant.Change) {
			watched = true
			r.wantAll(true)
		})()
		for range 40 {
			r.pass(25 * time.Millisecond)
			if k, err := r.Key(t.Context(), tenant.DigestOf("a")); err == nil && k.RevokedAt.IsZero() {
				t.Fatal("a key that was revoked is used again")
			}
		}
		if k := r.wantKey("a", nil); k == nil || k.RevokedAt.IsZero() || !watched {
			t.Errorf("key %v, told %t", k, watched)
		}
		if diff := gocmp.Diff([]tenant.Change{keyChanged("acme/a")}, r.told()); diff != "" {
			t.Errorf("told (-want +got):\n%s", diff)
		}
	})
}

// A replica that begins without its store answers nothing, and says which part is missing;
// it begins by itself when the store comes.
func TestBeginWithoutTheStore(t *testing.T) {
	inBubble(t, func(s *script, _ *Options) { s.down = true }, func(t *testing.T, r *rig) {
		r.wantAll(false)
		r.wantNone()
		if c := r.Cutoff("any"); !c.Equal(never()) {
			t.Errorf("cutoff %v", c)
		}
		if err := r.Ready(); !errors.Is(err, errDown) {
			t.Errorf("ready: %v", err)
		}
		if s := r.Stats(); s.Revision != -1 || s.LostSince.IsZero() {
			t.Errorf("stats: %+v", s)
		}
		r.pass(time.Hour + time.Minute)
		r.wantAll(false)
		if n := r.store.count("RotateSigningKeys"); n != 0 {
			t.Errorf("keys of a store that was never read were to be rotated %d times", n)
		}
		r.store.set(func(s *script) {
			s.down = false
			s.revision = 5 // whose changes nobody needs
			s.forgotten = 5
			s.cutoffs["acme/x"] = store.Cutoff{KeyID: "acme/x", At: time.Unix(7, 0)}
		})
		r.pass(probeEvery)
		r.wantAll(true)
		if err := r.Ready(); err != nil {
			t.Errorf("ready: %v", err)
		}
		if c := r.Cutoff("acme/x"); !c.Equal(time.Unix(7, 0)) {
			t.Errorf("cutoff %v", c)
		}
		if len(r.lost) != 1 || len(r.back) != 1 || r.told() != nil {
			t.Errorf("lost %v, back %v", r.lost, r.back)
		}
	})
}

// Nothing is known before all that is held whole was read.
func TestHalfOfTheFirstReading(t *testing.T) {
	for _, method := range []string{"Revision", "RotateSigningKeys", "Cutoffs", "SigningKeys"} {
		inBubble(t, func(s *script, _ *Options) { s.failing[method] = errDown }, func(t *testing.T, r *rig) {
			r.wantAll(false)
			if c := r.Cutoff("any"); !c.Equal(never()) {
				t.Errorf("without %s: cutoff %v", method, c)
			}
			if r.Ready() == nil {
				t.Errorf("ready without %s", method)
			}
		})
	}
}

// Notifications that end are listened to again: the poll alone takes a second.
func TestNotificationsComeBack(t *testing.T) {
	inBubble(t, func(s *script, _ *Options) { s.down = true }, func(t *testing.T, r *rig) {
		r.pass(time.Minute)
		r.store.set(func(s *script) { s.down = false })
		r.pass(listenAgain)
		r.wantKey("a", nil)
		begun := time.Now()
		r.store.revoke("acme/a")
		bubble.Wait()
		if k := r.wantKey("a", nil); k == nil || k.RevokedAt.IsZero() || !time.Now().Equal(begun) {
			t.Errorf("not notified: %v", k)
		}
	})
}

// After Close nothing is known, and nothing is asked.
func TestClosed(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, r *rig) {
		r.wantAll(true)
		r.store.set(func(s *script) { s.hanging["KeyOf"] = true })
		waiting := make(chan error, 1)
		go func() {
			_, err := r.Key(t.Context(), tenant.DigestOf("unknown"))
			waiting <- err
		}()
		bubble.Wait()
		r.atOnce(func() {
			if err := r.Close(); err != nil {
				t.Error(err)
			}
			if err := <-waiting; !errors.Is(err, tenant.ErrUnavailable) {
				t.Errorf("who waited: %v", err)
			}
			r.wantAll(false)
			r.wantNone()
		})
		if c := r.Cutoff("acme/a"); !c.Equal(never()) {
			t.Errorf("cutoff %v", c)
		}
	})
}
