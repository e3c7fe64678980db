package ratelimit_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"sluice/internal/redistest"
	"sluice/ratelimit"
)

// connectionsTo is the number of clients that a server has, the one that asks
// among them.
func connectionsTo(t *testing.T, server *redistest.Server) int {
	t.Helper()
	list, err := server.Client(t).ClientList(t.Context()).Result()
	if err != nil {
		t.Fatal(err)
	}
	return strings.Count(list, "\n")
}

// L18: each reload left a client behind. 200 of them, each with other servers.
func TestReconfigureLeaksNothing(t *testing.T) {
	servers := []*redistest.Server{redistest.Start(t), redistest.Start(t)}
	r := watch(t, ratelimit.Options{Servers: at(servers[0].Addr)})
	held := open(t, r, acme(), 2, 4)
	turn := func(n int) {
		for i := range n {
			to := servers[(i+1)%2]
			if err := r.Reconfigure(at(to.Addr)); err != nil {
				t.Fatal(err)
			}
			if cause := r.degrades(t, patient).cause; !errors.Is(cause, ratelimit.ErrServersChanged) {
				t.Fatalf("the cause is %v, want ErrServersChanged", cause)
			}
			r.shares(t)
			full(t, r, acme(), 2)
			r.Allow(acme(), generous())
		}
	}
	turn(10)
	runtime.GC()
	before, here, there := runtime.NumGoroutine(), connectionsTo(t, servers[0]), connectionsTo(t, servers[1])
	turn(200)
	eventually(t, patient, "goroutines and connections are as many as before", func() bool {
		return runtime.NumGoroutine() <= before+3 && connectionsTo(t, servers[0]) <= here+1 && connectionsTo(t, servers[1]) <= there+1
	})
	// The tails went along, and nothing of them stays at the other one.
	if n, _ := slotsIn(t, servers[0].Client(t), "sluice", "tails", acme()); n != 2 {
		t.Errorf("the servers in use know of %d tails, want 2", n)
	}
	if n, err := servers[1].Client(t).Exists(t.Context(), "sluice:{0}:replicas").Result(); err != nil || n != 0 {
		t.Errorf("the replica is still registered at the servers it left: %d, %v", n, err)
	}
	// The same servers again are no change, and bad ones leave the good in use.
	if err := r.Reconfigure(at(servers[0].Addr)); err != nil {
		t.Fatal(err)
	}
	if err := r.Reconfigure(ratelimit.Servers{URL: "http://x"}); !errors.Is(err, ratelimit.ErrServers) {
		t.Errorf("bad servers: %v", err)
	}
	full(t, r, acme(), 2)
	r.quiet(t)
	for _, l := range held {
		l.Release()
	}
}

// From one server to a Cluster and back: what is kept has other names there.
func TestReconfigureToACluster(t *testing.T) {
	t.Parallel()
	single, cluster := redistest.Start(t), redistest.StartCluster(t)
	r := watch(t, ratelimit.Options{Servers: at(single.Addr)})
	for i := range 50 {
		open(t, r, account(i), 1, 2)
		r.Allow(account(i), generous())
	}
	for _, to := range []ratelimit.Servers{{Addrs: cluster.Addrs()}, at(single.Addr), {Addrs: cluster.Addrs(), Mode: ratelimit.ModeCluster}} {
		if err := r.Reconfigure(to); err != nil {
			t.Fatal(err)
		}
		r.degrades(t, patient)
		r.shares(t)
		for i := range 50 {
			open(t, r, account(i), 1, 2)[0].Release()
			full(t, r, account(i), 1)
			r.Allow(account(i), generous())
		}
		if !r.Flush() {
			t.Fatal("Redis is not told")
		}
	}
	r.quiet(t)
}

// Servers that are not there after a reload: the limits are this replica's own, and
// the next reload brings it back.
func TestReconfigureToNobody(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	r := watch(t, ratelimit.Options{Servers: at(server.Addr)})
	if err := r.Reconfigure(at(redistest.Refusing(t))); err != nil {
		t.Fatal(err)
	}
	r.degrades(t, patient)
	goesOn(t, r.Redis, slack)
	if err := r.Reconfigure(at(server.Addr)); err != nil {
		t.Fatal(err)
	}
	r.shares(t)
	r.quiet(t)
}

// Close must end what it began, with Redis there or not.
func TestCloseEndsEverything(t *testing.T) {
	s := redistest.StartSentinel(t)
	all := map[string]ratelimit.Servers{
		"there":        at(redistest.Start(t).Addr),
		"refusing":     at(redistest.Refusing(t)),
		"silent":       at(silentAddr(t)),
		"sentinel":     {Addrs: []string{s.Addr}, MasterName: s.MasterName},
		"no sentinel":  {Addrs: []string{redistest.Refusing(t)}, MasterName: s.MasterName},
		"cluster":      {Addrs: redistest.StartCluster(t).Addrs()},
		"no cluster":   {Addrs: []string{redistest.Refusing(t), redistest.Refusing(t)}},
		"not a master": {Addrs: []string{s.Addr}, MasterName: "another"},
	}
	before := runtime.NumGoroutine()
	for name, servers := range all {
		for range 3 {
			r, err := ratelimit.NewRedis(ratelimit.Options{Servers: servers})
			if err != nil {
				t.Fatal(err)
			}
			open(t, r, acme(), 1, 100)
			r.Allow(acme(), generous())
			began := time.Now()
			var wg sync.WaitGroup
			for range 3 {
				wg.Go(r.Close)
			}
			wg.Wait()
			if took := time.Since(began); took > time.Second+slack {
				t.Errorf("%s: Close took %v", name, took)
			}
		}
	}
	eventually(t, patient, "the goroutines are gone", func() bool { return runtime.NumGoroutine() <= before })
}

// silentAddr takes connections and says nothing.
func silentAddr(t *testing.T) string {
	t.Helper()
	proxy := redistest.StartProxy(t, redistest.Start(t).Addr)
	proxy.Rule(redistest.All(redistest.Fault{Hang: true}))
	return proxy.Addr
}

// Claims without a pause must not keep a replica from being heard of: it was taken
// for dead, and its slots given to others.
func TestConstantClaimsLeaveRoomForHeartbeats(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	r := watch(t, quickly(ratelimit.Options{Servers: at(server.Addr)}))
	end := time.Now().Add(4 * time.Second) // twice what it takes to be dead
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for time.Now().Before(end) {
				open(t, r, account(i), 1, 1)[0].Release()
			}
		})
	}
	wg.Wait()
	r.quiet(t)
}

// A heartbeat must cost the same for many tails as for few (design §6).
func TestHeartbeatDoesNotGrowWithTails(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	cost := func(tails, accounts int) (commands, bytes int) {
		proxy := redistest.StartProxy(t, server.Addr)
		r := watch(t, ratelimit.Options{Servers: at(proxy.Addr), Prefix: fmt.Sprint("beat", tails)}.Lease(400*time.Millisecond, 10*time.Second))
		var wg sync.WaitGroup
		for i := range accounts {
			wg.Go(func() { open(t, r, account(i), tails/accounts, tails/accounts) })
		}
		wg.Wait()
		r.Flush()
		proxy.Commands()
		// Whole heartbeats: from after one until after another.
		beats := 0
		for beats < 5 {
			<-time.After(10 * time.Millisecond)
			for _, c := range proxy.Commands() {
				commands++
				bytes += c.Bytes
				if slices.Contains(c.Args, "beat") {
					beats++
				}
			}
		}
		r.quiet(t)
		return commands, bytes
	}
	type cost2 struct{ commands, bytes int }
	results := make([]cost2, 2)
	var wg sync.WaitGroup
	for i, n := range []struct{ tails, accounts int }{{10, 1}, {10_000, 1000}} {
		wg.Go(func() { results[i].commands, results[i].bytes = cost(n.tails, n.accounts) })
	}
	wg.Wait()
	few, many := results[0], results[1]
	if few.commands == 0 || few.commands != many.commands || math.Abs(float64(many.bytes-few.bytes)) > 0.1*float64(few.bytes) {
		t.Errorf("10 tails: %+v, 10,000 tails: %+v; want the same", few, many)
	}
}

// What Redis is told of an account, and asked, stays within one hash tag, and each
// account's keys are its own.
func TestKeysOfAnAccountShareATag(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t)
	r := watch(t, ratelimit.Options{Servers: ratelimit.Servers{Addrs: c.Addrs()}, Prefix: "a-prefix"})
	const accounts = 200
	for i := range accounts {
		s := account(i)
		for _, public := range []bool{false, true} {
			s.Public = public
			r.Allow(s, generous())
			open(t, r, s, 1, 1)
		}
		if _, err := r.AcquireUpload(t.Context(), s, ratelimit.UploadLimits{Uploads: 1, Bytes: 1}, 1); err != nil {
			t.Fatal(err)
		}
	}
	r.Flush()
	tags := make(map[string]string)
	onNodes := make([]int, len(c.Nodes))
	for i, node := range c.Nodes {
		keys, err := node.Client(t).Keys(context.Background(), "*").Result()
		if err != nil {
			t.Fatal(err)
		}
		onNodes[i] = len(keys)
		for _, key := range keys {
			if strings.HasPrefix(key, "a-prefix:check:{") { // Redis was tried with it
				continue
			}
			rest, ok := strings.CutPrefix(key, "a-prefix:{")
			tag, rest, _ := strings.Cut(rest, "}:")
			if !ok {
				t.Errorf("the key %q has no prefix and tag", key)
			}
			if rest == "replicas" {
				continue
			}
			account := strings.Split(rest, ":")[1]
			if before, ok := tags[account]; ok && before != tag {
				t.Errorf("%s has keys under %s and %s", account, before, tag)
			}
			tags[account] = tag
		}
	}
	if len(tags) != accounts {
		t.Errorf("keys of %d accounts, want %d", len(tags), accounts)
	}
	for i, n := range onNodes {
		if n < accounts*5/len(c.Nodes)/2 {
			t.Errorf("node %d holds %d keys of %d: the tags are not spread", i, n, accounts*5)
		}
	}
}
