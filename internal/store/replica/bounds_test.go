package replica

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"sluice/internal/bubble"
	"sluice/internal/store"
	"sluice/internal/tenant"
)

// Over 64 look-ups of unknown keys at a time the answer is "cannot be told", at once;
// what is known goes on.
func TestSixtyFourAtOnce(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, r *rig) {
		r.wantKey("a", nil)
		r.store.set(func(s *script) { s.hanging["KeyOf"] = true })
		r.store.count("KeyOf")
		var all sync.WaitGroup
		for i := range askedAtOnce {
			all.Go(func() { r.wantKey(fmt.Sprint("unknown", i), tenant.ErrUnavailable) })
		}
		bubble.Wait()
		r.atOnce(func() {
			r.wantKey("one more", tenant.ErrUnavailable)
			r.wantKey("a", nil)
			if _, err := r.Stream(t.Context(), "acme", "s"); err != nil {
				t.Errorf("a stream, which is another kind: %v", err)
			}
		})
		all.Wait()
		if n := r.store.count("KeyOf"); n != askedAtOnce {
			t.Errorf("%d were asked", n)
		}
		bubble.Wait()
		r.store.set(func(s *script) { s.hanging["KeyOf"] = false })
		r.wantKey("one more", tenant.ErrNotFound)
	})
}

// After a change that drops everything, as of an account with many keys that is deleted,
// all keys in use were asked for at one moment, and good ones were refused since 64 others
// were being asked for. They wait for their turn; made-up ones do not, and go behind them.
func TestKnownKeysWait(t *testing.T) {
	const good = 1000
	inBubble(t, func(s *script, _ *Options) {
		s.pause = func() time.Duration { return 5 * time.Millisecond }
		for i := range good {
			k := key(fmt.Sprint("acme/", i), fmt.Sprint("good", i))
			s.keys[k.Digest] = k
		}
	}, func(t *testing.T, r *rig) {
		for i := range good {
			r.wantKey(fmt.Sprint("good", i), nil)
		}
		for range 2 { // the second comes before anybody asked
			r.store.change(func(*script) {}, tenant.Change{Kind: tenant.Everything})
			r.pass(100 * time.Millisecond)
		}
		r.store.count("KeyOf")
		var all sync.WaitGroup
		begun := time.Now()
		for i := range good {
			all.Go(func() { r.wantKey(fmt.Sprint("good", i), nil) })
		}
		bubble.Wait()
		if n := r.store.count("KeyOf"); n != askedAtOnce {
			t.Errorf("%d are asked for at one time", n)
		}
		for range 10 {
			r.atOnce(func() { r.wantKey("made up", tenant.ErrUnavailable) })
			r.pass(10 * time.Millisecond)
		}
		all.Wait()
		if took := time.Since(begun); took > 10*time.Millisecond*(good/askedAtOnce+1) {
			t.Errorf("it took %v", took)
		}
		r.wantKey("made up", tenant.ErrNotFound)
		if n := len(r.keys.former); n != 0 {
			t.Errorf("%d are still waited for", n)
		}
		// One that has changed goes before a flood, too; and waits no longer than others.
		r.store.set(func(s *script) { s.hanging["KeyOf"] = true })
		for i := range askedAtOnce {
			all.Go(func() { r.wantKey(fmt.Sprint("made up", i), tenant.ErrUnavailable) })
		}
		bubble.Wait()
		r.store.change(func(*script) {}, keyChanged("acme/7"))
		r.pass(100 * time.Millisecond)
		all.Go(func() { r.wantKey("good7", nil) })
		bubble.Wait()
		r.store.set(func(s *script) { s.hanging["KeyOf"] = false })
		all.Wait()
	})
	inBubble(t, nil, func(t *testing.T, r *rig) {
		r.wantKey("a", nil)
		r.store.set(func(s *script) { s.hanging["KeyOf"] = true })
		r.store.change(func(*script) {}, keyChanged("acme/a"))
		r.settled()
		for range 2 { // it is known to have existed for as long as it is not told what became of it
			begun := time.Now()
			r.wantKey("a", tenant.ErrUnavailable)
			if took := time.Since(begun); took != askTime || len(r.keys.former) != 1 {
				t.Errorf("it took %v, and %d are waited for", took, len(r.keys.former))
			}
			bubble.Wait()
		}
	})
}

// What was known is remembered to have been within the bound of what may be known, and
// until it is told that it is no more.
func TestFormerIsBounded(t *testing.T) {
	const most = 10
	inBubble(t, func(s *script, o *Options) {
		o.Keys = most
		for i := range 10 * most {
			k := key(fmt.Sprint("acme/", i), fmt.Sprint("k", i))
			s.keys[k.Digest] = k
		}
	}, func(t *testing.T, r *rig) {
		former := func(want int) {
			t.Helper()
			if n := len(r.keys.former); n != want {
				t.Errorf("%d are remembered, want %d", n, want)
			}
		}
		for i := range 10 * most {
			r.wantKey(fmt.Sprint("k", i), nil)
			r.store.change(func(*script) {}, keyChanged(fmt.Sprint("acme/", i)))
			r.settled()
		}
		former(most)
		for i := range 5 * most {
			r.wantKey(fmt.Sprint("k", 50+i), nil)
		}
		r.store.change(func(*script) {}, tenant.Change{Kind: tenant.Everything})
		r.settled()
		former(most)
		r.store.change(func(s *script) { clear(s.keys) }, tenant.Change{Kind: tenant.Everything})
		r.settled()
		for i := range 10 * most {
			r.wantKey(fmt.Sprint("k", i), tenant.ErrNotFound)
		}
		former(0)
		// A stream is dropped by its name.
		if _, err := r.Stream(t.Context(), "acme", "s"); err != nil {
			t.Error(err)
		}
		r.store.change(func(*script) {}, streamChanged("s"))
		r.settled()
		if n := len(r.streams.former); n != 1 {
			t.Errorf("%d streams are remembered", n)
		}
	})
}

// A13: a flood of made-up keys costs bounded memory, and drives no good key out.
func TestFloodOfUnknownKeys(t *testing.T) {
	const good = 100
	inBubble(t, func(s *script, o *Options) {
		o.Keys = good
		for i := range good {
			k := key(fmt.Sprint("acme/", i), fmt.Sprint("good", i))
			s.keys[k.Digest] = k
		}
	}, func(t *testing.T, r *rig) {
		for i := range good {
			r.wantKey(fmt.Sprint("good", i), nil)
		}
		for i := range 3 * nonesKept {
			r.wantKey(fmt.Sprint("made up", i), tenant.ErrNotFound)
		}
		r.store.count("KeyOf")
		for i := range good {
			r.wantKey(fmt.Sprint("good", i), nil)
		}
		if n := r.store.count("KeyOf"); n != 0 {
			t.Errorf("%d good keys were driven out", n)
		}
		if s := r.Stats(); s.Keys != good || s.Unknown != nonesKept {
			t.Errorf("stats: %+v", s)
		}
	})
}

// Each kind is bounded by its option, and what is used stays.
func TestBoundedByOptions(t *testing.T) {
	const most, many = 50, 1000
	inBubble(t, func(s *script, o *Options) {
		o.Keys, o.Accounts, o.Streams = most, most, most
		for i := range many {
			k := key(fmt.Sprint("acme/", i), fmt.Sprint("k", i))
			s.keys[k.Digest] = k
			id := tenant.AccountID(fmt.Sprint("a", i))
			s.accounts[id] = store.Account{ID: id, State: tenant.Active}
			name := tenant.StreamName(fmt.Sprint("s", i))
			s.streams[streamID{"acme", name}] = stream(name)
		}
	}, func(t *testing.T, r *rig) {
		r.wantKey("a", nil)
		for i := range many {
			r.wantKey(fmt.Sprint("k", i), nil)
			r.wantKey("a", nil)
			if _, err := r.Account(t.Context(), tenant.AccountID(fmt.Sprint("a", i))); err != nil {
				t.Fatal(err)
			}
			if _, err := r.Stream(t.Context(), "acme", tenant.StreamName(fmt.Sprint("s", i))); err != nil {
				t.Fatal(err)
			}
			if s := r.Stats(); s.Keys > most || s.Accounts > most || s.Streams > most {
				t.Fatalf("stats: %+v", s)
			}
		}
		if n := r.store.count("KeyOf"); n != many+1 {
			t.Errorf("asked %d times: the key in use was driven out", n)
		}
		if n := len(r.keys.good.groups); n != most {
			t.Errorf("%d ids are remembered of %d keys", n, most)
		}
	})
}
