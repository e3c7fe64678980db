package main

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"sluice/internal/tenant"
)

// madeUp is how many invented keys are tried.
func madeUp() int {
	if soak() {
		return 1_000_000
	}
	return 5000
}

// A13: a key that was asked for before it existed went on being refused, since a replica
// remembered that there was none; and invented keys filled its memory, or kept the store
// busy. A new key, and a new public stream, are good at every replica within a second,
// notifications or not.
func TestA13NewKeyWorksEverywhere(t *testing.T) {
	f := newFleet(t, 2, "15m", "warn")
	for _, deaf := range []bool{false, true} {
		for _, l := range f.lines {
			l.deaf.Store(deaf)
		}
		t.Run(fmt.Sprintf("notifications lost=%t", deaf), func(t *testing.T) {
			t.Run("made by the API", f.makeKey)
			t.Run("asked for before", f.declareKey)
			t.Run("public stream", f.makePublic)
		})
	}
	for _, l := range f.lines {
		l.deaf.Store(false)
	}
	t.Run("made-up keys", f.flood)
	t.Run("no keys at all", f.garbage)
}

// makeKey makes keys one after the other, each used at once at every replica: they are
// shown to their owner when they are good.
func (f *fleet) makeKey(t *testing.T) {
	a := f.owner(t)
	for i := range 10 {
		_, k := f.apiKey(t, a, fmt.Sprintf("key %d", i))
		for j, r := range f.replicas {
			if got := r.settled(t, k.key, a.path("json")); got.StatusCode != http.StatusOK {
				t.Errorf("key %d at replica %d: %d %s", i, j, got.StatusCode, got.Text)
			}
		}
	}
}

// declareKey asks for a key, and then the file of one replica has it.
func (f *fleet) declareKey(t *testing.T) {
	a := payer{id: testAccount(t), key: newTestKey(t)}
	first := f.replicas[0]
	for _, r := range f.replicas {
		if got := r.settled(t, a.key, a.path("json")); got.StatusCode != http.StatusUnauthorized {
			t.Fatalf("before it is declared: %d %s", got.StatusCode, got.Text)
		}
	}
	before, _, _ := strings.Cut(readFile(t, first.path), "accounts:\n")
	writeFile(t, first.path, before+fmt.Sprintf("accounts:\n  - id: %s\n    streams: [{name: json, content_type: application/json}]\n    keys: [{name: all, digest: %q}]\n", a.id, tenant.DigestOf(a.key)))
	want(t, first.admin(t, http.MethodPost, "/reload"), http.StatusOK)
	start := time.Now()
	for i, r := range f.replicas {
		eventually(t, "the key is taken", func() bool { return r.read(t, a.key, a.path("json")).StatusCode != http.StatusUnauthorized })
		if took := time.Since(start); took > time.Second {
			t.Errorf("taken by replica %d after %v", i, took)
		}
		eventually(t, "its stream is read", func() bool { return r.read(t, a.key, a.path("json")).StatusCode == http.StatusOK })
	}
}

// makePublic asks for a stream that is not there, as a stranger.
func (f *fleet) makePublic(t *testing.T) {
	a := f.owner(t)
	const name = "open-bytes"
	for _, r := range f.replicas {
		if got := r.settled(t, "", a.path(name)); got.StatusCode != http.StatusUnauthorized {
			t.Fatalf("before it is there: %d %s", got.StatusCode, got.Text)
		}
	}
	f.stream(t, a, name)
	start := time.Now()
	for i, r := range f.replicas {
		eventually(t, "strangers read", func() bool { return r.read(t, "", a.path(name)).StatusCode == http.StatusOK })
		if took := time.Since(start); took > time.Second {
			t.Errorf("read at replica %d after %v", i, took)
		}
	}
}

// flood has a replica asked for keys that nobody has, and which look as if somebody did.
func (f *fleet) flood(t *testing.T) {
	a := f.owner(t)
	at := f.replicas[1]
	want(t, at.settled(t, a.key, a.path("json")), http.StatusOK)
	c, before := loadClient(t), f.lines[1].asked.Load()
	var group errgroup.Group
	group.SetLimit(16)
	var refused, busy atomic.Int64
	for range madeUp() {
		key := newTestKey(t)
		group.Go(func() error {
			switch o := at.try(c, payer{id: a.id, key: key}, "read"); {
			case o.status == http.StatusUnauthorized:
				refused.Add(1)
			case o.status == http.StatusServiceUnavailable && o.code == "AUTHENTICATION_UNAVAILABLE" && o.retry != "":
				busy.Add(1)
			default:
				return fmt.Errorf("a made-up key: %w: %v", errUnexpected, o)
			}
			return nil
		})
	}
	// Meanwhile somebody whose key is good notices nothing, and a new key works.
	_, k := f.apiKey(t, a, "made meanwhile")
	want(t, at.settled(t, k.key, a.path("json")), http.StatusOK)
	for range 50 {
		for _, by := range []payer{a, {id: a.id, key: k.key}} {
			if o := at.try(c, payer{id: a.id, key: by.key}, "read"); !o.ok() {
				t.Errorf("a good key meanwhile: %v", o)
			}
		}
	}
	if err := group.Wait(); err != nil {
		t.Error(err)
	}
	if n := at.gauge(t, "sluice_store_unknown"); n > 3*8192 {
		t.Errorf("%v things are remembered not to exist", n)
	}
	if asked := f.lines[1].asked.Load() - before; asked < refused.Load() {
		t.Errorf("%d statements: %d were refused, and of nobody else is it known that there are none", asked, refused.Load())
	}
	t.Logf("%d were refused, %d told to come again", refused.Load(), busy.Load())
}

var errUnexpected = errors.New("not as it should be")

// garbage has a replica asked for what cannot be a key: nothing of it reaches the store.
func (f *fleet) garbage(t *testing.T) {
	a := f.owner(t)
	at, line, c := f.replicas[1], f.lines[1], loadClient(t)
	want(t, at.settled(t, a.key, a.path("json")), http.StatusOK)
	before, began := line.asked.Load(), time.Now()
	const tries = 2000
	for i := range tries {
		key := newTestKey(t)
		wrong := byte('0')
		if key[len(key)-1] == wrong {
			wrong = '1'
		}
		if o := at.try(c, payer{id: a.id, key: key[:len(key)-1] + string(wrong)}, "read"); o.status != http.StatusUnauthorized {
			t.Fatalf("try %d: %v", i, o)
		}
	}
	// The feed and the reconciler ask a few times a second.
	if asked := line.asked.Load() - before; float64(asked) > 100+50*time.Since(began).Seconds() || asked > tries {
		t.Errorf("%d statements for %d keys that cannot be", asked, tries)
	}
}
