package store

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"sluice/internal/tenant"
)

// replicas are several on one store: with SQLite it is one process, whose requests race.
func (r *rig) replicas(tb testing.TB, n int) []*rig {
	tb.Helper()
	all := []*rig{r}
	for len(all) < n {
		next := r
		if r.Shared() {
			next = replica(tb, r.url, r.clock)
		}
		all = append(all, next)
	}
	return all
}

// race has all replicas do a thing at one time, and counts those that succeed: the others
// have to fail with lost.
func race(t *testing.T, all []*rig, lost error, do func(r *rig, i int) error) int {
	t.Helper()
	var won atomic.Int64
	var g errgroup.Group
	begin := make(chan struct{})
	for i, r := range all {
		g.Go(func() error {
			<-begin
			err := do(r, i)
			if err == nil {
				won.Add(1)
			} else if !errors.Is(err, lost) {
				return err
			}
			return nil
		})
	}
	close(begin)
	must(t, g.Wait())
	return int(won.Load())
}

var errLost = errors.New("lost")

func TestReplicasRace(t *testing.T) {
	each(t, func(t *testing.T, r *rig) {
		ctx := t.Context()
		all := r.replicas(t, 4)
		r.account(t, "acme")
		must(t, r.CreateKey(ctx, someone(), r.aKey("acme", "k")))
		for round := range 8 {
			for name, do := range map[string]func(r *rig, i int) error{
				"an account": func(r *rig, i int) error {
					k := r.aKey(tenant.AccountID(fmt.Sprintf("acc%d", round)), fmt.Sprintf("first%d.%d", round, i))
					return r.CreateAccount(ctx, someone(), Account{ID: k.Account}, &k)
				},
				"a key's name": func(r *rig, i int) error {
					k := r.aKey("acme", fmt.Sprintf("key%d.%d", round, i))
					k.Name = fmt.Sprint(round)
					return r.CreateKey(ctx, someone(), k)
				},
				"a digest, by rotation and creation": func(r *rig, i int) error {
					d := tenant.DigestOf(fmt.Sprint("d", round))
					if i%2 == 0 {
						_, err := r.RotateKey(ctx, someone(), "acme", "k", NewSecret{Digest: d, OldUntil: r.clock.read().Add(time.Hour), EndOlder: true})
						return err
					}
					k := r.aKey("acme", fmt.Sprintf("rot%d.%d", round, i))
					k.Digest = d
					return r.CreateKey(ctx, someone(), k)
				},
				"a stream": func(r *rig, i int) error {
					st := r.aStream("acme", tenant.StreamName(fmt.Sprint("s", round)))
					st.ID = fmt.Sprintf("s%d.%d", round, i)
					return r.CreateStream(ctx, someone(), st)
				},
				"a lease": func(r *rig, i int) error {
					held, err := r.Hold(ctx, fmt.Sprint("lease", round), fmt.Sprint(i), time.Minute)
					if err == nil && !held {
						err = ErrTaken
					}
					return err
				},
			} {
				if n := race(t, all, ErrTaken, do); n != 1 {
					t.Errorf("%s: %d got it", name, n)
				}
			}
		}
		n := race(t, all, errLost, func(r *rig, _ int) error {
			changed, err := r.RotateSigningKeys(ctx, tenant.DefaultRotation())
			if err == nil && !changed {
				err = errLost
			}
			return err
		})
		if keys, err := r.SigningKeys(ctx); err != nil || len(keys) != 1 || n != 1 {
			t.Errorf("%d replicas made signing keys: %v, %v", n, keys, err)
		}
	})
}

// Replicas start with one file, on an empty store: all of them declare it.
func TestReplicasDeclareTogether(t *testing.T) {
	each(t, func(t *testing.T, r *rig) {
		if n := race(t, r.replicas(t, 4), errLost, func(r *rig, _ int) error { return r.Declare(t.Context(), file(r)) }); n != 4 {
			t.Errorf("%d of 4 declared it", n)
		}
		var after int64
		if told := r.told(t, &after); len(told) != 4 { // two accounts, a stream, a key
			t.Errorf("told %v", told)
		}
	})
}

// A change that comes into force behind one with a later revision would be missed for ever
// by whoever read the later one first. So one follows the log while all write.
func TestLogIsInTheOrderOfCommits(t *testing.T) {
	each(t, func(t *testing.T, r *rig) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		const writers, writes = 4, 40
		all := r.replicas(t, writers+1)
		follower := all[writers]
		wake := make(chan struct{}, 1)
		var notified sync.WaitGroup
		notified.Go(func() {
			err := follower.Notified(ctx, func() {
				select {
				case wake <- struct{}{}:
				default:
				}
			})
			if !errors.Is(err, context.Canceled) {
				t.Errorf("notifications end with %v", err)
			}
		})
		var g errgroup.Group
		for i, w := range all[:writers] {
			g.Go(func() error {
				for n := range writes {
					if err := w.CreateAccount(ctx, someone(), Account{ID: tenant.AccountID(fmt.Sprintf("acc%d.%d", i, n))}, nil); err != nil {
						return err
					}
				}
				return nil
			})
		}
		seen := map[tenant.AccountID]bool{}
		for after := int64(0); len(seen) < writers*writes; {
			receive(t, "a change", wake)
			for _, c := range follower.told(t, &after) {
				seen[c.Account] = true
				if _, err := follower.Account(ctx, c.Account); err != nil {
					t.Errorf("told of %s, but: %v", c.Account, err)
				}
			}
		}
		must(t, g.Wait())
		cancel()
		notified.Wait()
	})
}

// Many keys are touched by one transaction and one by one: in other orders they waited for
// each other until the database gave up on one.
func TestNoDeadlocks(t *testing.T) {
	each(t, func(t *testing.T, r *rig) {
		ctx := t.Context()
		all := r.replicas(t, 3)
		for round := range 4 {
			account := tenant.AccountID(fmt.Sprintf("acc%d", round))
			r.account(t, account)
			used := map[string]time.Time{}
			for i := range 20 {
				id := fmt.Sprintf("k%d.%d", round, i)
				must(t, r.CreateKey(ctx, someone(), r.aKey(account, id)))
				st := r.aStream(account, tenant.StreamName(id))
				must(t, r.CreateStream(ctx, someone(), st))
				used[id] = r.clock.read()
			}
			n := race(t, all, errLost, func(r *rig, i int) error {
				switch i {
				case 0:
					return r.DeleteAccount(ctx, someone(), account)
				case 1:
					return r.UseKeys(ctx, used)
				}
				for id := range used {
					if err := r.Busy(ctx, string(account)+" "+id, r.clock.read().Add(time.Second)); err != nil {
						return err
					}
				}
				return nil
			})
			if n != len(all) {
				t.Errorf("%d of %d", n, len(all))
			}
		}
	})
}
