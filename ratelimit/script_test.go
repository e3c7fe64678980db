package ratelimit

import (
	"context"
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"sluice/internal/redistest"
)

// report is one call of rate.lua for one bucket, by a replica that reports every 50 ms.
type report struct {
	replica     string
	total, told uint64
	since       time.Duration
	level       float64 // what the replica sees itself
	rate        Rate
}

func (c report) call() call {
	return call{
		keys: []string{"bucket"},
		args: []any{
			c.replica, (100 * time.Millisecond).Microseconds(),
			c.total, c.told, c.since.Microseconds(), int64(c.level * micro), c.rate.PerSecond, c.rate.Burst,
		},
	}
}

// bucketRig is a Redis in which one bucket is told of.
type bucketRig struct {
	t      *testing.T
	client *redis.Client
}

// tell makes the call and returns what is left; NaN where the caller's view is the
// truth.
func (b bucketRig) tell(c report) float64 {
	b.t.Helper()
	answers, err := run(context.Background(), b.client, newScripts().rate, []call{c.call()})
	if err != nil || len(answers[0]) != 1 {
		b.t.Fatalf("rate.lua: %v, %v", answers, err)
	}
	level, ok := answers[0][0].(int64)
	if !ok {
		return math.NaN()
	}
	return float64(level) / micro
}

// shift makes the bucket look as if it had been written so much earlier.
func (b bucketRig) shift(d time.Duration) {
	b.t.Helper()
	if err := b.client.HIncrBy(context.Background(), "bucket", "t", -d.Microseconds()).Err(); err != nil {
		b.t.Fatal(err)
	}
}

// near allows for the time that the test itself takes.
func (b bucketRig) near(what string, got, want float64) {
	b.t.Helper()
	if math.IsNaN(got) != math.IsNaN(want) || got < want-0.001 || got > want+2 {
		b.t.Errorf("%s: %.3f left, want %.3f", what, got, want)
	}
}

func TestRateScript(t *testing.T) {
	rate, alone := Rate{PerSecond: 1, Burst: 100}, math.NaN()
	client := redistest.Start(t).Client(t)
	b := bucketRig{t, client}
	fresh := func() {
		if err := client.FlushAll(t.Context()).Err(); err != nil {
			t.Fatal(err)
		}
	}
	// Who is alone is believed, and is where the next one begins.
	b.near("the first report", b.tell(report{"a", 30, 0, 0, 70, rate}), alone)
	b.shift(time.Hour)
	b.near("the second, an hour later", b.tell(report{"a", 40, 30, 0, 60, rate}), alone)
	b.near("another replica", b.tell(report{"b", 5, 0, 0, 95, rate}), 55)
	b.near("the first one, which used nothing", b.tell(report{"a", 40, 40, 0, 60, rate}), 55)
	// L07: what was told counts once, whether the answer came or not.
	b.near("a report whose answer got lost", b.tell(report{"a", 50, 40, 0, 50, rate}), 45)
	b.near("the same once more", b.tell(report{"a", 50, 40, 0, 50, rate}), 45)
	b.near("and with more", b.tell(report{"a", 53, 40, 0, 47, rate}), 42)
	b.near("a count that began anew", b.tell(report{"a", 62, 60, 0, 98, rate}), 40)
	b.near("an old one, late", b.tell(report{"a", 50, 40, 0, 50, rate}), 40)
	// L08: a clock that was set back costs nobody anything.
	b.shift(-time.Minute)
	b.near("a minute from the future", b.tell(report{"b", 15, 5, 0, 90, rate}), 30)
	b.shift(10 * time.Second)
	b.near("10 s later", b.tell(report{"b", 15, 15, 0, 30, rate}), 40)
	b.shift(time.Hour)
	b.near("an hour later", b.tell(report{"b", 15, 15, 0, 30, rate}), 100)
	// Another limit: a smaller burst cuts, a larger one refills nothing.
	b.near("a smaller burst", b.tell(report{"b", 15, 15, 0, 30, Rate{PerSecond: 1, Burst: 10}}), 10)
	b.near("the larger one again", b.tell(report{"b", 15, 15, 0, 30, rate}), 10)
	// Debts are carried, up to what all replicas can have run up.
	b.near("over-use", b.tell(report{"b", 75, 15, 0, 0, rate}), -50)
	b.near("too much of it", b.tell(report{"b", 1_000_000, 75, 0, 0, rate}), -2*(100+0.1+1))

	// A bucket that is smaller than what is used between two reports, as under load:
	// what was used while it refilled must not be lost as overflow.
	fast := Rate{PerSecond: 100, Burst: 10}
	fresh()
	b.tell(report{"a", 10, 0, 0, 0, fast})
	b.tell(report{"b", 0, 0, 0, 0, fast})
	b.shift(2 * time.Second)
	got := b.tell(report{"a", 200, 10, 1900 * time.Millisecond, 0, fast})
	if got < 9 || got > 10 {
		t.Errorf("190 of 100 a second in 1.9 s leave %.3f, want the full bucket of 10", got)
	}
	// The same all at once, after 2 s in which nothing was used.
	fresh()
	b.tell(report{"a", 10, 0, 0, 0, fast})
	b.tell(report{"b", 0, 0, 0, 0, fast})
	b.shift(2 * time.Second)
	if got := b.tell(report{"a", 20, 10, 0, 0, fast}); got > 3 {
		t.Errorf("a burst of 10 after a pause leaves %.3f, want nothing", got)
	}
}

// A bucket must not grow with each process that ever used it.
func TestRateScriptForgetsOldReplicas(t *testing.T) {
	client := redistest.Start(t).Client(t)
	b := bucketRig{t, client}
	rate := Rate{PerSecond: 1, Burst: 1000}
	for i := range 500 {
		b.tell(report{strings.Repeat("r", i+1), 1, 0, 0, 999, rate})
	}
	n, err := client.HLen(t.Context(), "bucket").Result()
	if err != nil || n > 80 {
		t.Errorf("%d fields after 500 replicas, %v", n, err)
	}
	b.near("the level is kept", b.tell(report{"r", 2, 1, 0, 999, rate}), 499)
}

// slotsRig is a Redis in which replicas hold slots of one account.
type slotsRig struct {
	t      *testing.T
	client *redis.Client
}

const testDead = 10 * time.Second

func (s slotsRig) register(replica string, number int, what string) (registered bool, live int64) {
	s.t.Helper()
	c := call{keys: []string{"register"}, args: []any{replica, number, testDead.Microseconds(), what}}
	answers, err := run(context.Background(), s.client, newScripts().replica, []call{c})
	if err != nil {
		s.t.Fatalf("replica.lua: %v", err)
	}
	numbers, err := whole(answers[0][:2], 2)
	if err != nil {
		s.t.Fatal(err)
	}
	return numbers[0] == 1, numbers[1]
}

// tell says what a replica holds and how many slots it wants, of 10, and returns
// how many it gets; the error is LOST.
func (s slotsRig) tell(replica string, number, held, want int) (int64, error) {
	s.t.Helper()
	c := call{
		keys: []string{"register", "slots"},
		args: []any{replica, number, testDead.Microseconds(), time.Hour.Milliseconds(), held, 0, 10, 0, 1, 0, want},
	}
	answers, err := run(context.Background(), s.client, newScripts().slots, []call{c})
	if err != nil {
		if !redis.HasErrorPrefix(errors.Unwrap(err), "LOST") {
			s.t.Fatalf("slots.lua: %v", err)
		}
		return 0, err
	}
	numbers, err := whole(answers[0], 1)
	if err != nil {
		s.t.Fatal(err)
	}
	return numbers[0] / 4, nil
}

func (s slotsRig) gets(replica string, number, held, want int, granted int64) {
	s.t.Helper()
	if got, err := s.tell(replica, number, held, want); err != nil || got != granted {
		s.t.Errorf("%s.%d, which holds %d, gets %d, %v; want %d", replica, number, held, got, err, granted)
	}
}

func (s slotsRig) lost(replica string, number int) {
	s.t.Helper()
	if got, err := s.tell(replica, number, 5, 5); err == nil {
		s.t.Errorf("%s.%d gets %d, want LOST", replica, number, got)
	}
}

func TestSlotsScript(t *testing.T) {
	s := slotsRig{t, redistest.Start(t).Client(t)}
	s.lost("a", 1) // before it is registered
	s.register("a", 1, "join")
	s.register("b", 1, "join")
	s.gets("a", 1, 0, 4, 4)
	s.gets("b", 1, 0, 7, 6)
	s.gets("a", 1, 3, 5, 1)
	s.gets("a", 1, 4, 5, 0)

	// A new incarnation of a replica: what the old one holds counts until it is told
	// again, and no call of the old one that comes late changes anything.
	s.register("a", 2, "join")
	s.lost("a", 1)
	s.gets("b", 1, 6, 5, 0)
	s.gets("a", 2, 2, 0, 0)
	s.lost("a", 1)
	if registered, live := s.register("a", 2, "beat"); !registered || live != 2 {
		t.Errorf("registered %t, %d live; want it registered, and 2", registered, live)
	}
	s.lost("a", 1)
	s.gets("b", 1, 6, 5, 2)
	s.gets("b", 1, 2, 0, 0)

	// What an incarnation held that has ended is free, also where it is not told again:
	// after a snapshot was loaded, say.
	s.register("a", 3, "join")
	s.gets("b", 1, 2, 10, 6)
	s.gets("b", 1, 2, 0, 0)
	s.register("a", 3, "beat")
	s.gets("b", 1, 2, 10, 8)
	s.gets("b", 1, 1, 0, 0)

	// Who leaves holds nothing, nor does who is forgotten.
	s.gets("a", 3, 5, 0, 0)
	s.register("a", 3, "leave")
	s.lost("a", 3)
	s.gets("b", 1, 1, 10, 9)
	if err := s.client.FlushAll(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	s.lost("b", 1)
	if registered, _ := s.register("b", 1, "beat"); registered {
		t.Error("a beat registers a replica that was forgotten: what it holds would not be told again")
	}
}
