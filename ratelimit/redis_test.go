package ratelimit_test

import (
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"sluice/internal/redistest"
	"sluice/ratelimit"
	"sluice/ratelimit/limittest"
)

// system is a replica for the suite, alone on its part of a Redis.
func system(t *testing.T, servers ratelimit.Servers, client redis.UniversalClient) limittest.System {
	t.Helper()
	c := &clock{}
	prefix := strings.ReplaceAll(t.Name(), ":", "")
	r := newRedis(t, ratelimit.Options{Servers: servers, Prefix: prefix, Now: c.now, Interval: 2 * time.Millisecond})
	if r.Degraded() {
		t.Fatal("not shared")
	}
	flush := func() {
		if !r.Flush() {
			t.Fatal("Redis is not told")
		}
	}
	t.Cleanup(func() {
		if r.Degraded() {
			t.Error("no longer shared")
		}
	})
	moves := 0
	return limittest.System{
		Limiter: r, Tails: r, Uploads: r,
		Advance: func(d time.Duration) {
			// What Redis says of a bucket that is used here alone changes nothing.
			if moves++; moves%40 == 0 {
				flush()
			}
			c.advance(d)
		},
		TailsOf: func(s ratelimit.Subject) int {
			flush()
			n, _ := slotsIn(t, client, prefix, "tails", s)
			if n != r.TailsOf(s) {
				t.Errorf("Redis knows of %d tails, the replica of %d", n, r.TailsOf(s))
			}
			return n
		},
		UploadsOf: func(s ratelimit.Subject) (int, int64) {
			flush()
			return slotsIn(t, client, prefix, "uploads", s)
		},
	}
}

func TestRedisSuite(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	limittest.Suite(t, func(t *testing.T) limittest.System {
		return system(t, ratelimit.Servers{URL: "redis://" + server.Addr}, server.Client(t))
	})
}

func TestRedisSuiteUnderSentinel(t *testing.T) {
	t.Parallel()
	s := redistest.StartSentinel(t)
	limittest.Suite(t, func(t *testing.T) limittest.System {
		return system(t, ratelimit.Servers{Addrs: []string{s.Addr}, MasterName: s.MasterName}, s.Servers[0].Client(t))
	})
}

// L06: scripts touched keys of two hash slots, and where a Cluster refused that,
// everything was let through.
func TestRedisSuiteInACluster(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t)
	client := redis.NewClusterClient(&redis.ClusterOptions{Addrs: c.Addrs()})
	t.Cleanup(func() { _ = client.Close() })
	limittest.Suite(t, func(t *testing.T) limittest.System {
		return system(t, ratelimit.Servers{Addrs: c.Addrs()}, client)
	})
}

// Without Redis one replica decides by the limits themselves, as long as no other
// is known, and by the same rules (L02, L03).
func TestRedisSuiteDegraded(t *testing.T) {
	t.Parallel()
	nobody := redistest.Refusing(t)
	limittest.Suite(t, func(t *testing.T) limittest.System {
		c := &clock{}
		r := newRedis(t, ratelimit.Options{Servers: ratelimit.Servers{URL: "redis://" + nobody}, Now: c.now})
		if !r.Degraded() {
			t.Fatal("not degraded")
		}
		t.Cleanup(func() {
			if n := r.Holds(); n != 0 {
				t.Errorf("%d subjects are kept with nothing held", n)
			}
		})
		return limittest.System{
			Limiter: r, Tails: r, Uploads: r, Advance: c.advance, TailsOf: r.TailsOf, UploadsOf: r.UploadsOf,
		}
	})
}
