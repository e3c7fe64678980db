package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"sluice/internal/redistest"
)

// trialTime is how long the trials of rates take: the 30 s in the long form.
func trialTime() time.Duration {
	if soak() {
		return 30 * time.Second
	}
	return 6 * time.Second
}

// Three processes on one real Redis, each trial with an account of its own.
func TestReplicasShareLimits(t *testing.T) {
	server := redistest.Start(t)
	client := server.Client(t)
	const noRate = "requests_per_second: 100000, burst: 100000"
	uneven := newPayer(t, "requests_per_second: 200, burst: 50")
	alone := newPayer(t, "requests_per_second: 200, burst: 50")
	obedient := newPayer(t, "requests_per_second: 20, burst: 30")
	racing := newPayer(t, noRate+", open_tails: 5")
	holding := newPayer(t, noRate+", open_tails: 6")
	sending := newPayer(t, noRate+", uploads: 1")
	file := replicaFile([]string{standIn(t)}, "url: redis://"+server.Addr, uneven, alone, obedient, racing, holding, sending)
	all := startReplicas(t, 3, file)
	t.Run("uneven traffic", func(t *testing.T) { unevenTraffic(t, all, uneven) })
	t.Run("one replica alone", func(t *testing.T) { oneReplicaAlone(t, all, alone) })
	t.Run("an obedient client", func(t *testing.T) { obedientClient(t, all, obedient) })
	t.Run("tails in a race", func(t *testing.T) { racingTails(t, all, client, racing) })
	t.Run("uploads", func(t *testing.T) { sharedUploads(t, all, client, sending) })
	t.Run("tails over a flush", func(t *testing.T) { flushedTails(t, all, client, holding) })
	t.Run("the end of replicas", func(t *testing.T) { endOfReplicas(t, all, holding) })
}

// The trial: an account at 200 a second that is offered 600 unevenly has its
// rate, and no more than what is promised. Where replicas count by themselves, the
// first alone would admit 200, and all three more.
func unevenTraffic(t *testing.T, all []*replica, a payer) {
	c := loadClient(t)
	took := trialTime()
	ctx, cancel := context.WithTimeout(t.Context(), took)
	defer cancel()
	var wait sync.WaitGroup
	counts := make([]map[string]int, len(all))
	began := time.Now()
	for i, part := range []float64{0.80, 0.15, 0.05} {
		wait.Go(func() { counts[i] = countOutcomes(all[i].load(ctx, c, a, "read", 600*part)) })
	}
	wait.Wait()
	seconds := time.Since(began).Seconds()
	in, offered := 0, 0
	for i, count := range counts {
		t.Logf("replica %d: %v", i, count)
		for what, n := range count {
			offered += n
			switch what {
			case "200":
				in += n
			case "429 RATE_LIMITED":
			default:
				t.Errorf("replica %d: %d answers of %s", i, n, what)
			}
		}
	}
	if float64(offered) < 500*took.Seconds() {
		t.Logf("only %d requests were offered: the machine is busy", offered)
	}
	const rate, burst, replicas, interval = 200, 50, 3, 0.05
	low := 190 * took.Seconds()
	high := rate*seconds + burst + replicas*rate*2*interval + (replicas-1)*burst
	if float64(in) < low || float64(in) > high {
		t.Errorf("admitted %d of %d in %v, want %.0f to %.0f", in, offered, took, low, high)
	}
	t.Logf("admitted %d of %d offered in %v: %.1f a second; the bound is %.0f", in, offered, took, float64(in)/took.Seconds(), high)
}

// countOutcomes counts by status and code.
func countOutcomes(all []outcome) map[string]int {
	counts := map[string]int{}
	for _, o := range all {
		switch {
		case o.err != nil:
			counts[o.err.Error()]++
		case o.code != "":
			counts[fmt.Sprint(o.status, " ", o.code)]++
		default:
			counts[strconv.Itoa(o.status)]++
		}
	}
	return counts
}

// The same account offered its full rate at one of three replicas has all of it: a
// share each would give it a third.
func oneReplicaAlone(t *testing.T, all []*replica, a payer) {
	took := trialTime() / 3
	ctx, cancel := context.WithTimeout(t.Context(), took)
	defer cancel()
	counts := countOutcomes(all[1].load(ctx, loadClient(t), a, "read", 200))
	if len(counts) != 1 || float64(counts["200"]) < 190*took.Seconds() {
		t.Errorf("of the full rate for %v: %v, want all of it", took, counts)
	}
}

// A client that goes round the replicas and waits as long as a refusal tells it to is
// let in then, by whichever replica it asks.
func obedientClient(t *testing.T, all []*replica, a payer) {
	c := loadClient(t)
	refusals := 2
	if soak() {
		refusals = 20
	}
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for i := 0; refusals > 0; i++ {
		<-tick.C
		o := all[i%3].try(c, a, "read")
		if o.ok() {
			continue
		}
		seconds, err := strconv.Atoi(o.retry)
		if o.code != "RATE_LIMITED" || err != nil || seconds < 1 || seconds > 10 {
			t.Fatalf("%v, Retry-After %q", o, o.retry)
		}
		refusals--
		<-time.After(time.Duration(seconds) * time.Second)
		if again := all[(i+1)%3].try(c, a, "read"); !again.ok() {
			t.Errorf("after its wait of %d s: %v, Retry-After %q", seconds, again, again.retry)
		}
	}
}

// S16 over replicas: many clients open tails and close them at once, through three
// processes, at a cap of 5: never are more of them open than that. A machine so busy
// that Redis does not answer in time is no trial of it: then it is made again.
func racingTails(t *testing.T, all []*replica, client *redis.Client, a payer) {
	losses := func() (n int) {
		for _, r := range all {
			n += len(r.losses(t))
		}
		return n
	}
	const limit, tries = 5, 4
	for range tries {
		before := losses()
		race := &tailRace{}
		race.run(t, all, a)
		eventually(t, "all slots are free", func() bool { return held(t, client, "tails", a.id) == 0 })
		for _, r := range all {
			eventually(t, "no tail is open", func() bool { return r.gauge(t, "sluice_open_tails") == 0 })
		}
		most, granted, refused := race.most.Load(), race.granted.Load(), race.refused.Load()
		t.Logf("granted %d, refused %d, at most %d at one time", granted, refused, most)
		if losses() != before {
			t.Log("a replica did without Redis meanwhile")
			continue
		}
		if most > limit || granted < limit || refused == 0 {
			t.Errorf("granted %d, refused %d, at most %d at one time; want at most %d", granted, refused, most, limit)
		}
		return
	}
	t.Errorf("Redis was too slow in each of %d tries", tries)
}

// tailRace is many clients that open tails and close them at once.
type tailRace struct{ open, most, granted, refused atomic.Int64 }

func (race *tailRace) run(t *testing.T, all []*replica, a payer) {
	t.Helper()
	const clients = 12
	attempts := 1000
	if soak() {
		attempts = 5000
	}
	var wait sync.WaitGroup
	for i := range clients {
		c := loadClient(t)
		wait.Go(func() {
			for range attempts / clients {
				race.attempt(t, all[i%len(all)], c, a, time.Duration(i)*time.Millisecond)
			}
		})
	}
	wait.Wait()
}

// attempt opens a tail and, where it is let in, holds it for a while.
func (race *tailRace) attempt(t *testing.T, r *replica, c *http.Client, a payer, hold time.Duration) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	res, err := r.request(ctx, c, a, "tail")
	if err != nil {
		t.Error(err)
		return
	}
	defer func() { _ = res.Body.Close() }()
	switch {
	case res.StatusCode == http.StatusOK:
		race.granted.Add(1)
		// It is open from before this, and until after it is closed.
		now := race.open.Add(1)
		for seen := race.most.Load(); now > seen && !race.most.CompareAndSwap(seen, now); seen = race.most.Load() {
			continue
		}
		<-time.After(hold)
		race.open.Add(-1)
		cancel()
	case res.StatusCode == http.StatusTooManyRequests && res.Header.Get("Retry-After") == "1":
		race.refused.Add(1)
	default:
		t.Errorf("status %d", res.StatusCode)
	}
}

// Facts Q6, over replicas: an upload that is read by one replica is one of its account
// at the others, until it is whole.
func sharedUploads(t *testing.T, all []*replica, client *redis.Client, a payer) {
	c := loadClient(t)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	body, rest := io.Pipe()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, all[0].URL+a.path("bytes"), body)
	if err != nil {
		t.Fatal(err)
	}
	req.ContentLength = largeBody
	req.Header.Set("Authorization", "Bearer "+a.key)
	req.Header.Set("Content-Type", edgeStreams["bytes"])
	done := make(chan int, 1)
	go func() {
		res, err := c.Do(req)
		if err != nil {
			done <- 0
			return
		}
		_ = res.Body.Close()
		done <- res.StatusCode
	}()
	eventually(t, "the upload is known to all", func() bool { return held(t, client, "uploads", a.id) == 1 })
	for i, r := range all {
		if o := r.try(c, a, "upload"); o.code != "UPLOADS_EXHAUSTED" || o.retry != "1" {
			t.Errorf("a second one, at replica %d: %v, Retry-After %q", i, o, o.retry)
		}
	}
	if _, err := rest.Write(make([]byte, largeBody)); err != nil {
		t.Fatal(err)
	}
	if got := <-done; got != http.StatusNoContent {
		t.Errorf("the upload: %d", got)
	}
	for i, r := range all {
		if o := r.try(c, a, "upload"); !o.ok() {
			t.Errorf("after it, at replica %d: %v", i, o)
		}
	}
	eventually(t, "no slot is left", func() bool { return held(t, client, "uploads", a.id) == 0 })
}

// fill opens n tails, spread over the replicas.
func fill(t *testing.T, all []*replica, c *http.Client, a payer, n int) []openTail {
	t.Helper()
	tails := make([]openTail, n)
	for i := range tails {
		if tails[i] = all[i%len(all)].openTail(t, c, a); tails[i].status != http.StatusOK {
			t.Fatalf("tail %d: %d", i, tails[i].status)
		}
	}
	return tails
}

// full wants every replica to refuse one more tail.
func full(t *testing.T, all []*replica, c *http.Client, a payer) {
	t.Helper()
	for i, r := range all {
		eventually(t, "the replica shares", func() bool { return r.gauge(t, "sluice_redis_degraded") == 0 })
		if o := r.try(c, a, "tail"); o.code != "LIVE_READS_EXHAUSTED" {
			t.Errorf("one tail more, at replica %d: %v", i, o)
		}
	}
}

// After a FLUSHALL the counts are right again within a heartbeat of the replicas (2 s),
// no tail is cut, and none is let in too many.
func flushedTails(t *testing.T, all []*replica, client *redis.Client, a payer) {
	c := loadClient(t)
	tails := fill(t, all, c, a, 6)
	full(t, all, c, a)
	if err := client.FlushAll(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	flushed := time.Now()
	eventually(t, "the counts are right again", func() bool { return held(t, client, "tails", a.id) == 6 })
	if took := time.Since(flushed); took > 2500*time.Millisecond {
		t.Errorf("the counts were right again only after %v", took)
	}
	for _, r := range all {
		eventually(t, "the replica shares again", func() bool { return r.gauge(t, "sluice_redis_degraded") == 0 })
	}
	full(t, all, c, a)
	for i, tail := range tails {
		if _, err := tail.Body.Read(make([]byte, 1)); err != nil {
			t.Errorf("tail %d: %v", i, err)
		}
		tail.close()
	}
	eventually(t, "all slots are free", func() bool { return held(t, client, "tails", a.id) == 0 })
}

// L14, with Redis: a replica that is told to stop gives its slots back as it goes,
// with tails open; one that is killed leaves them for 15 s at the most.
func endOfReplicas(t *testing.T, all []*replica, a payer) {
	c := loadClient(t)
	fill(t, all, c, a, 6)
	full(t, all, c, a)
	if err := all[0].ends(t, syscall.SIGTERM); err != nil { // drain_timeout cuts the tails
		t.Errorf("exit: %v", err)
	}
	stopped := time.Now()
	more := fill(t, all[1:], c, a, 2)
	full(t, all[1:], c, a)
	eventually(t, "the others know that it has gone", func() bool { return all[1].gauge(t, "sluice_replicas") == 2 })
	if took := time.Since(stopped); took > 5*time.Second {
		t.Errorf("a replica that has stopped was taken for dead only after %v", took)
	}
	if !soak() {
		return // a replica is dead after 10 s
	}
	more[1].close()
	killed := time.Now()
	_ = all[2].cmd.Process.Kill()
	eventually(t, "a slot of the killed replica is free", func() bool { return all[1].try(c, a, "tail").ok() })
	freed := time.Since(killed)
	t.Logf("the first slot was free %v after the kill", freed.Round(100*time.Millisecond))
	if freed > 15*time.Second {
		t.Errorf("the first slot was free only %v after the kill", freed)
	}
	// It has three, and the killed one's are free.
	fill(t, all[1:2], c, a, 3)
	full(t, all[1:2], c, a)
}
