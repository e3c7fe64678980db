package replica

import (
	"cmp"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"sluice/internal/store"
	"sluice/internal/tenant"
)

// interleavings is how many random ones are played.
const interleavings = 1000

// history is what one thing was, and from when on; the text is empty while there is none.
type history []state

type state struct {
	from time.Time
	text string
}

// was reports whether the thing was that at any moment from since until now.
func (h history) was(text string, since time.Time) bool {
	for i := len(h) - 1; i >= 0; i-- {
		if h[i].text == text {
			return true
		}
		if !h[i].from.After(since) {
			return false
		}
	}
	return text == "" // before its first
}

// play is one random interleaving of changes and look-ups.
type play struct {
	*rig
	rand    *rand.Rand
	version int
	bound   time.Duration // how old an answer may be
	outages bool
	model   map[string]history // guarded by rig.mu
}

// TestRandomInterleavings plays changes against look-ups, with a store that takes its
// time over every answer, and holds each answer against what was stored: it is never
// older than a second (A12, A13), two where notifications are lost; with a store that
// goes away, than what is allowed without it. Nothing is unavailable while the store is
// there, and nothing is missing that exists. In the end everything is as it is stored.
func TestRandomInterleavings(t *testing.T) {
	for seed := range interleavings {
		rnd := rand.New(rand.NewPCG(uint64(seed), 7)) //nolint:gosec // an interleaving is found again by its seed
		p := &play{rand: rnd, bound: time.Second, model: map[string]history{}}
		quiet := seed%4 >= 2
		p.outages = seed%4 == 3
		var staleFor time.Duration
		if quiet {
			p.bound = 2 * time.Second
		}
		if p.outages {
			staleFor = time.Duration(rnd.IntN(4)) * time.Second
			p.bound += staleFor
		}
		inBubble(t, func(s *script, o *Options) {
			s.quiet = quiet
			pauses := rand.New(rand.NewPCG(uint64(seed), 8)) //nolint:gosec // likewise; the script's, under its lock
			s.pause = func() time.Duration { return time.Duration(pauses.IntN(60)) * time.Millisecond }
			o.StaleFor = staleFor
			o.Keys = 5 // so that things are driven out, too
			clear(s.keys)
			clear(s.streams)
			clear(s.accounts)
		}, func(t *testing.T, r *rig) {
			r.pass(time.Second)
			p.rig = r
			p.run(t)
		})
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
}

func (p *play) run(t *testing.T) {
	var askers sync.WaitGroup
	stop := make(chan struct{})
	for range 3 {
		askers.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
					p.ask(t)
				}
			}
		})
	}
	for range 60 {
		p.change()
	}
	close(stop)
	askers.Wait()
	p.store.set(func(s *script) { s.down = false })
	p.pass(3 * time.Second)
	p.bound = 0
	for i := range 6 {
		p.check(t, fmt.Sprint("key", i), time.Now(), false)
	}
	for i := range 3 {
		p.check(t, fmt.Sprint("account", i), time.Now(), false)
		p.check(t, fmt.Sprint("stream", i), time.Now(), false)
		p.check(t, fmt.Sprint("cutoff", i), time.Now(), false)
	}
}

// ask asks for something, after a while.
func (p *play) ask(t *testing.T) {
	p.mu.Lock()
	wait := time.Duration(p.rand.IntN(120)) * time.Millisecond
	what := [...]string{"key", "key", "account", "stream", "cutoff"}[p.rand.IntN(5)]
	i := p.rand.IntN(3)
	if what == "key" {
		i = p.rand.IntN(6)
	}
	p.mu.Unlock()
	time.Sleep(wait)
	p.check(t, fmt.Sprint(what, i), time.Now(), true)
}

// check asks for one thing and holds the answer against the model.
func (p *play) check(t *testing.T, name string, asked time.Time, busy bool) {
	text, err := p.lookUp(t, name)
	if errors.Is(err, tenant.ErrUnavailable) {
		if !p.outages || !busy {
			t.Errorf("%s: %v", name, err)
		}
		return
	}
	if err != nil && !errors.Is(err, tenant.ErrNotFound) {
		t.Errorf("%s: %v", name, err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if h := p.model[name]; !h.was(text, asked.Add(-p.bound)) {
		t.Errorf("at %v %s was %q; stored is %v", asked, name, text, h)
	}
}

func (p *play) lookUp(t *testing.T, name string) (text string, err error) {
	switch name[:3] {
	case "key":
		k, err := p.Key(t.Context(), tenant.DigestOf(name))
		if err != nil {
			return "", err
		}
		return k.Name, nil
	case "acc":
		a, err := p.Account(t.Context(), tenant.AccountID(name))
		if err != nil {
			return "", err
		}
		return string(a.State), nil
	case "str":
		s, err := p.Stream(t.Context(), "acme", tenant.StreamName(name))
		if err != nil {
			return "", err
		}
		return s.ContentType, nil
	}
	at := p.Cutoff("acme/" + name[len("cutoff"):])
	switch {
	case at.IsZero():
		return "", nil
	case at.Equal(never()):
		return "", tenant.ErrUnavailable
	}
	return fmt.Sprint(at.Unix()), nil
}

// change makes a random change, after a while.
func (p *play) change() {
	p.mu.Lock()
	p.version++
	text := fmt.Sprint("v", p.version)
	wait, kind, i := time.Duration(p.rand.IntN(150))*time.Millisecond, p.rand.IntN(14), p.rand.IntN(3)
	remove, second := p.rand.IntN(3) == 0, p.rand.IntN(2) == 0
	p.mu.Unlock()
	time.Sleep(wait)
	// The look-ups of a script hold its lock and not the model's, so this is the order.
	switch {
	case kind < 6: // a key of two secrets, one or both of which there are
		id := fmt.Sprint("acme/", i)
		p.store.change(func(s *script) {
			for n, secret := range []string{fmt.Sprint("key", 2*i), fmt.Sprint("key", 2*i+1)} {
				k := key(id, secret)
				k.Name = text
				put(p, s.keys, k.Digest, k, secret, text, remove || n == 1 && !second)
			}
			s.cutoffs[id] = store.Cutoff{KeyID: id, At: time.Unix(int64(p.version), 0)}
			p.now(fmt.Sprint("cutoff", i), fmt.Sprint(p.version))
		}, keyChanged(id))
	case kind < 8:
		name := fmt.Sprint("account", i)
		id := tenant.AccountID(name)
		p.store.change(func(s *script) {
			put(p, s.accounts, id, store.Account{ID: id, State: tenant.State(text)}, name, text, remove)
		}, tenant.Change{Kind: tenant.AccountChanged, Account: id})
	case kind < 11:
		name := fmt.Sprint("stream", i)
		st := stream(tenant.StreamName(name))
		st.ContentType = text
		p.store.change(func(s *script) {
			put(p, s.streams, streamID{"acme", st.Name}, st, name, text, remove)
		}, streamChanged(st.Name))
	case kind == 11:
		p.store.change(func(s *script) { s.forgotten = s.revision - int64(min(i, int(s.revision))) })
	case kind == 12:
		p.store.change(func(*script) {}, tenant.Change{Kind: tenant.Everything})
	case p.outages:
		p.store.set(func(s *script) { s.down = !s.down })
	}
}

// put changes a row of the script, and the model; both are locked, the script first.
func put[K comparable, V any](p *play, rows map[K]V, k K, v V, name, text string, remove bool) {
	if remove {
		delete(rows, k)
		text = ""
	} else {
		rows[k] = v
	}
	p.now(name, text)
}

func (p *play) now(name, text string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.model[name] = append(p.model[name], state{time.Now(), text})
}

// The check above can fail: it knows an answer that is too old, and one that never was.
func TestHistory(t *testing.T) {
	at := func(s int) time.Time { return time.Unix(int64(s), 0) }
	h := history{{at(10), "a"}, {at(20), ""}, {at(30), "b"}}
	for _, tc := range []struct {
		text  string
		since int
		want  bool
	}{
		{"b", 40, true},
		{"", 40, false},
		{"", 30, false},
		{"", 29, true},
		{"a", 20, false},
		{"a", 19, true},
		{"", 11, true},
		{"", 10, true},
		{"c", 0, false},
		{"", 5, true},
	} {
		if got := h.was(tc.text, at(tc.since)); got != tc.want {
			t.Errorf("%q since %d: %t", cmp.Or(tc.text, "none"), tc.since, got)
		}
	}
}
