package replica

import (
	"fmt"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
)

// The last use of a key is written to the minute, in batches, every half a minute and at
// the end; a use in a minute that is written already is not written again.
func TestUsesAreWritten(t *testing.T) {
	var batches []map[string]time.Time
	inBubble(t, func(s *script, _ *Options) {
		s.wrote = func(batch map[string]time.Time) { batches = append(batches, batch) }
	}, func(t *testing.T, r *rig) {
		minute := time.Now().Truncate(time.Minute).UTC() // a bubble begins with a minute
		r.pass(time.Second)
		for range 1000 {
			r.Used("acme/a")
			r.Used("acme/b")
		}
		if s := r.Stats(); s.Uses != 2 {
			t.Errorf("stats: %+v", s)
		}
		r.pass(usesEvery)
		r.Used("acme/a") // in the same minute
		r.pass(usesEvery)
		r.Used("acme/a")
		if err := r.Close(); err != nil {
			t.Error(err)
		}
		want := []map[string]time.Time{
			{"acme/a": minute, "acme/b": minute}, {"acme/a": minute.Add(time.Minute)},
		}
		if diff := gocmp.Diff(want, batches); diff != "" {
			t.Errorf("written (-want +got):\n%s", diff)
		}
	})
}

// Without the store, uses wait for it: as many as are allowed, the newest of each.
func TestUsesWaitForTheStore(t *testing.T) {
	inBubble(t, func(_ *script, o *Options) { o.Keys = 3000 }, func(t *testing.T, r *rig) {
		r.store.set(func(s *script) { s.failing["UseKeys"] = errDown })
		begun := time.Now().Truncate(time.Minute)
		for i := range 5000 {
			r.Used(fmt.Sprint("acme/", i))
		}
		r.pass(10 * time.Minute)
		if s := r.Stats(); s.Uses != 3000 {
			t.Errorf("stats: %+v", s)
		}
		later := time.Now().Truncate(time.Minute)
		r.Used("acme/1")
		r.pass(usesEvery)
		r.store.set(func(s *script) { delete(s.failing, "UseKeys") })
		r.store.count("UseKeys")
		r.pass(usesEvery)
		if n := r.store.count("UseKeys"); n != 3 || r.Stats().Uses != 0 || len(r.store.used) != 3000 {
			t.Errorf("%d batches, %d uses, and %d wait", n, len(r.store.used), r.Stats().Uses)
		}
		for id, want := range map[string]time.Time{"acme/1": later, "acme/2": begun} {
			if got := r.store.used[id]; !got.Equal(want) {
				t.Errorf("%s was used %v, want %v", id, got, want)
			}
		}
	})
}

// A use that is noted while an older one cannot be written is the one that counts.
func TestNewerUseStays(t *testing.T) {
	inBubble(t, func(s *script, _ *Options) { s.hanging["UseKeys"] = true }, func(t *testing.T, r *rig) {
		r.pass(usesEvery + usesTime)
		r.Used("acme/a")
		r.pass(time.Minute - usesEvery - usesTime + time.Second) // it is being written
		newer := time.Now().Truncate(time.Minute)
		r.Used("acme/a")
		r.pass(usesTime)
		r.store.set(func(s *script) { delete(s.hanging, "UseKeys") })
		r.pass(usesEvery)
		if got := r.store.used["acme/a"]; !got.Equal(newer) {
			t.Errorf("used %v, want %v", got, newer)
		}
	})
}

// A replica that is closed without its store says what is lost, in time.
func TestLastUsesLost(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, r *rig) {
		r.Used("acme/a")
		r.store.set(func(s *script) { s.hanging["UseKeys"] = true })
		begun := time.Now()
		if err := r.Close(); err == nil {
			t.Error("no error")
		}
		if took := time.Since(begun); took != lastUsesTime {
			t.Errorf("it took %v", took)
		}
	})
}
