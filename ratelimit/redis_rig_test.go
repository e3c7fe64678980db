package ratelimit_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"sluice/ratelimit"
)

// patient is how long tests wait for a Redis that is there: the machine that runs
// them may be slow, and what is tested is not that.
const patient = 5 * time.Second

// back is how soon counting is shared again once Redis is back (design §6).
const back = 5 * time.Second

// newRedis makes a replica that waits patiently, unless told otherwise, and ends
// with the test.
func newRedis(tb testing.TB, o ratelimit.Options) *ratelimit.Redis {
	tb.Helper()
	if o.Wait == 0 {
		o.Wait = patient
	}
	if o.CallTimeout == 0 {
		o.CallTimeout = patient
	}
	r, err := ratelimit.NewRedis(o)
	if err != nil {
		tb.Fatalf("NewRedis: %v", err)
	}
	tb.Cleanup(r.Close)
	return r
}

// at are the servers at one address.
func at(addr string) ratelimit.Servers { return ratelimit.Servers{URL: "redis://" + addr} }

// event is one of ratelimit.Events.
type event struct {
	cause error // of Degraded; nil for Shared
	at    time.Time
}

// watched is a replica whose events are received in order.
type watched struct {
	*ratelimit.Redis
	events chan event
}

// watch makes a replica whose first event, that it shares, has been received.
func watch(tb testing.TB, o ratelimit.Options) watched {
	tb.Helper()
	w := watchAny(tb, o)
	if e := w.next(tb, patient); e.cause != nil {
		tb.Fatalf("the replica begins degraded: %v", e.cause)
	}
	return w
}

// several makes so many replicas.
func several(tb testing.TB, n int, o ratelimit.Options) []watched {
	tb.Helper()
	all := make([]watched, 0, n)
	for range n {
		all = append(all, watch(tb, o))
	}
	return all
}

// known makes so many replicas, each of which knows of the others.
func known(tb testing.TB, n int, o ratelimit.Options) []watched {
	tb.Helper()
	all := several(tb, n, o)
	for _, r := range all {
		eventually(tb, patient, "all replicas are known", func() bool { return r.Replicas() == n })
	}
	return all
}

func watchAny(tb testing.TB, o ratelimit.Options) watched {
	tb.Helper()
	events := make(chan event, 1000)
	o.Events.Degraded = func(cause error) { events <- event{cause, time.Now()} }
	o.Events.Shared = func(time.Duration) { events <- event{nil, time.Now()} }
	return watched{newRedis(tb, o), events}
}

// next is the next event.
func (w watched) next(tb testing.TB, within time.Duration) event {
	tb.Helper()
	select {
	case e := <-w.events:
		return e
	case <-time.After(within):
		tb.Fatalf("no event within %v (degraded: %t)", within, w.Degraded())
		return event{}
	}
}

// degrades wants the next event to be that limits are no longer shared.
func (w watched) degrades(tb testing.TB, within time.Duration) event {
	tb.Helper()
	e := w.next(tb, within)
	if e.cause == nil {
		tb.Fatal("the replica shares, want it degraded")
	}
	return e
}

// fails has it notice that Redis does not answer, as the first request does that
// waits for it.
func (w watched) fails(tb testing.TB) {
	tb.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patient)
	defer cancel()
	if lease, err := w.Acquire(ctx, ratelimit.Subject{Account: "whoever-is-first"}, 1000); err == nil {
		lease.Release()
	}
	w.degrades(tb, patient)
}

// shares wants the next event to be that limits are shared again, soon after
// Redis came back.
func (w watched) shares(tb testing.TB) {
	tb.Helper()
	if e := w.next(tb, back); e.cause != nil {
		tb.Fatalf("the replica degrades, want it to share: %v", e.cause)
	}
	if w.Degraded() {
		tb.Fatal("degraded after it said that it shares")
	}
}

// quiet wants no further event.
func (w watched) quiet(tb testing.TB) {
	tb.Helper()
	select {
	case e := <-w.events:
		tb.Errorf("one more event: %+v", e)
	default:
	}
}

// open takes n tails of s.
func open(tb testing.TB, t ratelimit.Tails, s ratelimit.Subject, n, limit int) []ratelimit.Lease {
	tb.Helper()
	leases := make([]ratelimit.Lease, n)
	for i := range leases {
		lease, err := t.Acquire(context.Background(), s, limit)
		if err != nil {
			tb.Fatalf("tail %d of %d: %v", i+1, limit, err)
		}
		leases[i] = lease
	}
	return leases
}

// full wants no tail to be left of limit.
func full(tb testing.TB, t ratelimit.Tails, s ratelimit.Subject, limit int) {
	tb.Helper()
	if lease, err := t.Acquire(context.Background(), s, limit); !errors.Is(err, ratelimit.ErrExhausted) {
		tb.Fatalf("one more than %d tails: %v, %v", limit, lease, err)
	}
}

// eventually waits until ok, for so long.
func eventually(tb testing.TB, within time.Duration, what string, ok func() bool) {
	tb.Helper()
	deadline := time.Now().Add(within)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		if time.Now().After(deadline) {
			tb.Fatalf("%s: not within %v", what, within)
		}
		<-tick.C
	}
}

// slotsIn is what Redis has of an account's slots, of all replicas, dead or alive.
func slotsIn(tb testing.TB, client redis.UniversalClient, prefix, what string, s ratelimit.Subject) (slots int, bytes int64) {
	tb.Helper()
	pattern := prefix + ":{*}:" + what + ":" + s.Account
	if s.Public {
		pattern += ":public"
	}
	scan := func(ctx context.Context, c *redis.Client) error {
		found, err := c.Keys(ctx, pattern).Result()
		if err != nil {
			return err
		}
		for _, key := range found {
			fields, err := c.HGetAll(ctx, key).Result()
			if err != nil {
				return err
			}
			for _, v := range fields {
				n, b, _ := strings.Cut(v, ":")
				more, errN := strconv.Atoi(n)
				held, errB := strconv.ParseInt(b, 10, 64)
				if err := errors.Join(errN, errB); err != nil {
					return err
				}
				slots, bytes = slots+more, bytes+held
			}
		}
		return nil
	}
	var err error
	if c, ok := client.(*redis.ClusterClient); ok {
		err = c.ForEachMaster(context.Background(), scan)
	} else if c, ok := client.(*redis.Client); ok {
		err = scan(context.Background(), c)
	}
	if err != nil {
		tb.Fatalf("read slots: %v", err)
	}
	return slots, bytes
}

// helperEnv makes the test binary a replica that is another process: at the
// address, holding so many tails of "acme", with the lease of quickly where "quick"
// follows.
const helperEnv = "SLUICE_RATELIMIT_HELPER"

func TestMain(m *testing.M) {
	if told := os.Getenv(helperEnv); told != "" {
		os.Exit(helper(told))
	}
	os.Exit(m.Run())
}

// helper holds tails until it is killed, or told to leave.
func helper(told string) int {
	words := strings.Fields(told)
	n, err := strconv.Atoi(words[1])
	if err != nil {
		return 2
	}
	o := ratelimit.Options{Servers: at(words[0]), Wait: patient, CallTimeout: patient}
	if len(words) > 2 {
		o = quickly(o)
	}
	r, err := ratelimit.NewRedis(o)
	if err != nil || r.Degraded() {
		fmt.Println("no Redis:", err)
		return 1
	}
	for range n {
		if _, err := r.Acquire(context.Background(), ratelimit.Subject{Account: "acme"}, n); err != nil {
			fmt.Println("no tail:", err)
			return 1
		}
	}
	fmt.Println("open")
	leave := make(chan os.Signal, 1)
	signal.Notify(leave, syscall.SIGTERM)
	<-leave
	r.Close()
	return 0
}

// quickly has replicas found dead after 2 s in place of 10.
func quickly(o ratelimit.Options) ratelimit.Options {
	return o.Lease(400*time.Millisecond, 2*time.Second)
}

// acme is the account of most tests.
func acme() ratelimit.Subject { return ratelimit.Subject{Account: "acme"} }
