package ratelimit_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"sluice/internal/redistest"
	"sluice/ratelimit"
)

// heartbeat is the longest until a replica speaks to Redis by itself, and a little.
const heartbeat = 2*time.Second + 500*time.Millisecond

// rightAgain wants Redis to know of so many of acme's tails within a heartbeat.
func rightAgain(t *testing.T, client func() redis.UniversalClient, want int) {
	t.Helper()
	eventually(t, heartbeat, "the counts are right again", func() bool {
		n, _ := slotsIn(t, client(), "sluice", "tails", acme())
		return n == want
	})
}

// After FLUSHALL counts began at zero, and an account had its tails twice.
func TestCountsAreToldAgainAfterAFlush(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	client := server.Client(t)
	a, b := watch(t, ratelimit.Options{Servers: at(server.Addr)}), watch(t, ratelimit.Options{Servers: at(server.Addr)})
	held := append(open(t, a, acme(), 3, 5), open(t, b, acme(), 2, 5)...)
	if err := client.FlushAll(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	rightAgain(t, func() redis.UniversalClient { return client }, 5)
	for _, r := range []watched{a, b} {
		if cause := r.degrades(t, patient).cause; !errors.Is(cause, ratelimit.ErrDataLost) {
			t.Errorf("the cause is %v, want ErrDataLost", cause)
		}
		r.shares(t)
		full(t, r, acme(), 5)
		r.quiet(t)
	}
	for _, l := range held {
		l.Release()
	}
	a.Flush()
	b.Flush()
	if n, _ := slotsIn(t, client, "sluice", "tails", acme()); n != 0 {
		t.Errorf("%d slots at the end", n)
	}
}

// A flush that is noticed by the next request, before the heartbeat: it is let in
// or not by what this replica knows, and the counts are told at once.
func TestAFlushIsNoticedByTheNextClaim(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	client := server.Client(t)
	r := watch(t, ratelimit.Options{Servers: at(server.Addr)})
	open(t, r, acme(), 2, 4)
	for range 3 {
		if err := client.FlushAll(t.Context()).Err(); err != nil {
			t.Fatal(err)
		}
		open(t, r, acme(), 1, 100)[0].Release()
		r.degrades(t, patient)
		r.shares(t)
		r.Flush()
		if n, _ := slotsIn(t, client, "sluice", "tails", acme()); n != 2 {
			t.Fatalf("Redis knows of %d tails, want 2", n)
		}
	}
}

// A restart from a snapshot brings back slots that have been given back since, and
// that nobody would give back once more.
func TestRestartFromAnOldSnapshot(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	client := server.Client(t)
	r := watch(t, ratelimit.Options{Servers: at(server.Addr)})
	gone := open(t, r, account(1), 3, 3)
	held := open(t, r, acme(), 2, 5)
	r.Flush()
	if err := client.Save(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	for _, l := range gone {
		l.Release()
	}
	held = append(held, open(t, r, acme(), 1, 5)...)
	r.Flush()
	server.Restart(t)
	eventually(t, heartbeat+time.Second, "the loss is noticed", func() bool { return len(r.events) >= 2 })
	r.degrades(t, patient)
	r.shares(t)
	if n, _ := slotsIn(t, server.Client(t), "sluice", "tails", acme()); n != len(held) {
		t.Errorf("Redis knows of %d tails, want %d", n, len(held))
	}
	// All three slots are there to be had.
	open(t, r, account(1), 3, 3)
	full(t, r, account(1), 3)
}

// The same where Redis restarts faster than anybody notices by its connections: an
// idle replica has only its heartbeat.
func TestRestartIsNoticedByAnIdleReplica(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, "--appendonly", "yes", "--appendfsync", "always")
	r := watch(t, ratelimit.Options{Servers: at(server.Addr)})
	open(t, r, acme(), 2, 5)
	r.Flush()
	server.Restart(t)
	r.degrades(t, heartbeat+time.Second)
	r.shares(t)
	r.quiet(t)
	if n, _ := slotsIn(t, server.Client(t), "sluice", "tails", acme()); n != 2 {
		t.Errorf("Redis knows of %d tails, want 2", n)
	}
}

// A failover by Sentinel, of a master that died and of one that lives on as a
// replica: counts are right again, and shared by all.
func TestSentinelFailover(t *testing.T) {
	t.Parallel()
	for name, fail := range map[string]func(*redistest.Sentinel){
		"killed": func(s *redistest.Sentinel) {
			before := s.Master(t)
			before.Kill()
			s.AwaitOther(t, before)
		},
		"demoted": func(s *redistest.Sentinel) { s.Failover(t) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := redistest.StartSentinel(t)
			servers := ratelimit.Servers{Addrs: []string{s.Addr}, MasterName: s.MasterName}
			a, b := watch(t, ratelimit.Options{Servers: servers}), watch(t, ratelimit.Options{Servers: servers})
			open(t, a, acme(), 3, 5)
			open(t, b, acme(), 2, 5)
			fail(s)
			for _, r := range []watched{a, b} {
				goesOn(t, r.Redis, patient)
			}
			eventually(t, back, "both share again", func() bool {
				return !a.Degraded() && !b.Degraded() && len(a.events) > 1 && len(b.events) > 1
			})
			a.Flush()
			b.Flush()
			if n, _ := slotsIn(t, s.Master(t).Client(t), "sluice", "tails", acme()); n != 5 {
				t.Errorf("the new master knows of %d tails, want 5", n)
			}
			full(t, a, acme(), 5)
			full(t, b, acme(), 5)
		})
	}
}

// One master of a Cluster that is gone, without a replica, takes its slots with it,
// and the Cluster refuses everything.
func TestClusterLosesAMaster(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t)
	r := watch(t, ratelimit.Options{Servers: ratelimit.Servers{Addrs: c.Addrs()}, Wait: 500 * time.Millisecond})
	leases := make(map[int][]ratelimit.Lease)
	for i := range 60 { // on all masters
		leases[i] = open(t, r, account(i), 2, 2)
	}
	c.Nodes[1].Kill()
	r.degrades(t, patient)
	for i := range 60 {
		full(t, r, account(i), 2)
		if !r.Allow(account(i), generous()).Allowed {
			t.Fatal("a request is refused")
		}
	}
	c.Nodes[1].Restart(t)
	e := r.next(t, 3*back) // the Cluster itself takes a while until it is whole again
	if e.cause != nil {
		t.Fatalf("want it shared: %v", e.cause)
	}
	client := redis.NewClusterClient(&redis.ClusterOptions{Addrs: c.Addrs()})
	t.Cleanup(func() { _ = client.Close() })
	r.Flush()
	for i := range 60 {
		if n, _ := slotsIn(t, client, "sluice", "tails", account(i)); n != 2 {
			t.Errorf("the Cluster knows of %d tails of account %d, want 2", n, i)
		}
		leases[i][0].Release()
		open(t, r, account(i), 1, 2)
	}
}

// A Cluster's master that lost its data alone, while the register of replicas that
// another test might look at lies elsewhere.
func TestClusterMasterIsFlushed(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t)
	r := watch(t, ratelimit.Options{Servers: ratelimit.Servers{Addrs: c.Addrs()}})
	for i := range 60 {
		open(t, r, account(i), 2, 2)
	}
	if err := c.Nodes[2].Client(t).FlushAll(context.Background()).Err(); err != nil {
		t.Fatal(err)
	}
	r.degrades(t, heartbeat)
	r.shares(t)
	r.Flush()
	client := redis.NewClusterClient(&redis.ClusterOptions{Addrs: c.Addrs()})
	t.Cleanup(func() { _ = client.Close() })
	for i := range 60 {
		if n, _ := slotsIn(t, client, "sluice", "tails", account(i)); n != 2 {
			t.Errorf("the Cluster knows of %d tails of account %d, want 2", n, i)
		}
	}
}

// L08: after a failover to a Redis whose clock is a minute behind, what had been
// written seems to come from the future. Neither may a dead replica hold its slots
// for that minute, nor a live one lose them.
func TestRedisClockStepsBack(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	client := server.Client(t)
	ctx := t.Context()
	r := watch(t, quickly(ratelimit.Options{Servers: at(server.Addr), Replica: "live"}))
	open(t, r, acme(), 2, 5)
	r.Flush()
	ahead := func(key, member string) {
		score, err := client.ZScore(ctx, key, member).Result()
		if err == nil {
			err = client.ZAdd(ctx, key, redis.Z{Score: score + 60e6, Member: member}).Err()
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	// A replica that was last heard of by the other clock, and holds the rest.
	now, err := client.Time(ctx).Result()
	if err != nil {
		t.Fatal(err)
	}
	const register = "sluice:{0}:replicas"
	client.ZAdd(ctx, register, redis.Z{Score: float64(now.UnixMicro()), Member: "dead.1"})
	client.HSet(ctx, "sluice:{0}:tails:acme", "dead.1", "3:0")
	ahead(register, "dead.1")
	ahead(register, "live.1")
	full(t, r, acme(), 5)
	eventually(t, 15*time.Second, "the dead replica's slots are free", func() bool {
		lease, err := r.Acquire(context.Background(), acme(), 3)
		if err == nil {
			lease.Release()
		}
		return err == nil
	})
	r.Flush()
	if n, _ := slotsIn(t, client, "sluice", "tails", acme()); n != 2 {
		t.Errorf("Redis knows of %d tails, want the 2 of the live replica", n)
	}
	r.quiet(t)
}
