package ratelimit_test

import (
	"bufio"
	"context"
	"errors"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"sluice/internal/redistest"
	"sluice/ratelimit"
)

// S16 over replicas: each counted by itself, or the look and the taking were two
// steps, and more were open than the limit.
func TestTailsNeverExceedTheLimitOverReplicas(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	const limit, replicas, each, rounds = 5, 3, 4, 90
	var opened, most, granted, refused atomic.Int64
	var wg sync.WaitGroup
	for range replicas {
		r := newRedis(t, ratelimit.Options{Servers: at(server.Addr)})
		t.Cleanup(func() {
			if r.Degraded() {
				t.Error("degraded at the end")
			}
		})
		for range each {
			wg.Go(func() {
				for range rounds {
					lease, err := r.Acquire(context.Background(), acme(), limit)
					if errors.Is(err, ratelimit.ErrExhausted) {
						refused.Add(1)
						continue
					}
					if err != nil {
						t.Errorf("Acquire: %v", err)
						return
					}
					granted.Add(1)
					// Counted here, outside of all replicas.
					now := opened.Add(1)
					for seen := most.Load(); now > seen && !most.CompareAndSwap(seen, now); seen = most.Load() {
						continue
					}
					opened.Add(-1)
					lease.Release()
				}
			})
		}
	}
	wg.Wait()
	if most.Load() > limit || granted.Load() == 0 {
		t.Errorf("granted %d, refused %d, at most %d open; want at most %d", granted.Load(), refused.Load(), most.Load(), limit)
	}
	client := server.Client(t)
	eventually(t, patient, "all slots are free", func() bool {
		n, _ := slotsIn(t, client, "sluice", "tails", acme())
		return n == 0
	})
}

// The last slot is one, however many replicas want it at one time.
func TestOneSlotGoesToOneReplica(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	all := make([]*ratelimit.Redis, 0, 3)
	for range 3 {
		all = append(all, newRedis(t, ratelimit.Options{Servers: at(server.Addr)}))
	}
	for round := range 100 {
		s := account(round)
		var won atomic.Int64
		var wg sync.WaitGroup
		for _, r := range all {
			for range 3 {
				wg.Go(func() {
					if _, err := r.Acquire(context.Background(), s, 1); err == nil {
						won.Add(1)
					}
				})
			}
		}
		wg.Wait()
		if won.Load() != 1 {
			t.Fatalf("round %d: %d replicas have the one slot", round, won.Load())
		}
	}
}

// Facts Q6 and U1 over replicas: the bytes are those of all of them, and only the
// one large body under way anywhere passes regardless.
func TestUploadsAreBoundedOverReplicas(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	a, b := newRedis(t, ratelimit.Options{Servers: at(server.Addr)}), newRedis(t, ratelimit.Options{Servers: at(server.Addr)})
	l := ratelimit.UploadLimits{Uploads: 3, Bytes: 10}
	begin := func(r *ratelimit.Redis, bytes int64) (ratelimit.Upload, error) {
		return r.AcquireUpload(context.Background(), acme(), l, bytes)
	}
	large, err := begin(a, 50)
	if err != nil {
		t.Fatalf("the only one: %v", err)
	}
	if _, err := begin(b, 1); !errors.Is(err, ratelimit.ErrUploadBytesExhausted) {
		t.Fatalf("beside one that is beyond the limit: %v", err)
	}
	if err := large.Resize(context.Background(), 4); err != nil {
		t.Fatal(err)
	}
	a.Flush()
	second, err := begin(b, 6)
	if err != nil {
		t.Fatalf("up to the limit: %v", err)
	}
	if err := second.Resize(context.Background(), 7); !errors.Is(err, ratelimit.ErrUploadBytesExhausted) {
		t.Fatalf("grown beyond the limit: %v", err)
	}
	large.Release()
	a.Flush()
	if err := second.Resize(context.Background(), 70); err != nil {
		t.Fatalf("grown, as the only one: %v", err)
	}
	second.Release()
	b.Flush()
	if n, bytes := slotsIn(t, server.Client(t), "sluice", "uploads", acme()); n != 0 || bytes != 0 {
		t.Errorf("Redis has %d uploads with %d bytes at the end", n, bytes)
	}
}

// startHelper runs another process that holds n tails of acme, as helperEnv says.
func startHelper(t *testing.T, addr, told string) *exec.Cmd {
	t.Helper()
	cmd := exec.CommandContext(context.WithoutCancel(t.Context()), os.Args[0], "-test.run=^$")
	cmd.Env = append(os.Environ(), helperEnv+"="+addr+" "+told)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	if strings.TrimSpace(line) != "open" {
		t.Fatalf("the other replica says %q, %v", line, err)
	}
	return cmd
}

// A replica that dies must not keep its slots, and nobody else may lose any.
func TestKilledReplicaFreesItsSlots(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	r := newRedis(t, ratelimit.Options{Servers: at(server.Addr)})
	cmd := startHelper(t, server.Addr, "5")
	mine := open(t, r, acme(), 1, 6)
	full(t, r, acme(), 6)
	if got := r.Replicas(); got < 1 {
		t.Errorf("%d replicas", got)
	}
	killed := time.Now()
	if err := cmd.Process.Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	full(t, r, acme(), 6)
	eventually(t, 15*time.Second, "a slot of the dead replica is free", func() bool {
		lease, err := r.Acquire(context.Background(), acme(), 6)
		if err == nil {
			mine = append(mine, lease)
		}
		return err == nil
	})
	if took := time.Since(killed); took < 5*time.Second {
		t.Errorf("its slots were taken after %v, which a short pause would be enough for", took)
	}
	mine = append(mine, open(t, r, acme(), 4, 6)...)
	full(t, r, acme(), 6)
	for _, l := range mine {
		l.Release()
	}
	r.Flush()
	if n, _ := slotsIn(t, server.Client(t), "sluice", "tails", acme()); n != 0 {
		t.Errorf("%d slots at the end", n)
	}
	eventually(t, patient, "one replica is left", func() bool { return r.Replicas() == 1 })
}

// O05, for slots: a replica that leaves in good order gives them back at once.
func TestClosedReplicaFreesItsSlotsAtOnce(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	a, b := newRedis(t, ratelimit.Options{Servers: at(server.Addr)}), newRedis(t, ratelimit.Options{Servers: at(server.Addr)})
	leases := open(t, a, acme(), 4, 4)
	full(t, b, acme(), 4)
	a.Close()
	mine := open(t, b, acme(), 4, 4)
	full(t, b, acme(), 4)
	// What still ends at the closed one ends nothing of the other's.
	for _, l := range leases {
		l.Release()
	}
	full(t, b, acme(), 4)
	for _, l := range mine {
		l.Release()
	}
	// A closed replica goes on alone.
	if !a.Degraded() {
		t.Error("a closed replica still shares")
	}
	open(t, a, acme(), 1, 4)[0].Release()
	if !a.Allow(acme(), ratelimit.Rate{PerSecond: 1, Burst: 1}).Allowed {
		t.Error("a closed replica admits nothing")
	}
}

// A replica that was frozen for so long that others took it for dead has open tails
// all the same: it tells of them again, and its old incarnation counts no more.
func TestReplicaThatWasFrozen(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	r := newRedis(t, quickly(ratelimit.Options{Servers: at(server.Addr)}))
	cmd := startHelper(t, server.Addr, "3 quick")
	if err := cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	var mine []ratelimit.Lease
	eventually(t, 15*time.Second, "the slots of the frozen replica are free", func() bool {
		lease, err := r.Acquire(context.Background(), acme(), 3)
		if err == nil {
			mine = append(mine, lease)
		}
		return err == nil
	})
	if err := cmd.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	client := server.Client(t)
	eventually(t, patient, "its tails count again", func() bool {
		n, _ := slotsIn(t, client, "sluice", "tails", acme())
		return n == 3+len(mine)
	})
	full(t, r, acme(), 4)
	for _, l := range mine {
		l.Release()
	}
	r.Flush()
	if n, _ := slotsIn(t, client, "sluice", "tails", acme()); n != 3 {
		t.Errorf("%d slots, want the 3 of the replica that was frozen", n)
	}
}

// L14: slots were lost where a tail's end could not be told at once.
func TestTenThousandTailsEndAtZero(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	r := newRedis(t, ratelimit.Options{Servers: at(server.Addr)})
	const accounts, each = 100, 100
	var wg sync.WaitGroup
	leases := make([][]ratelimit.Lease, accounts)
	for i := range accounts {
		wg.Go(func() { leases[i] = open(t, r, account(i), each, each) })
	}
	wg.Wait()
	if got := r.OpenTails(); got != accounts*each {
		t.Errorf("%d tails open, want %d", got, accounts*each)
	}
	for i := range accounts {
		wg.Go(func() {
			for _, l := range leases[i] {
				l.Release()
				l.Release()
			}
		})
	}
	wg.Wait()
	if !r.Flush() {
		t.Fatal("Redis is not told")
	}
	keys, err := server.Client(t).Keys(t.Context(), "sluice:{*}:tails:*").Result()
	if err != nil || len(keys) != 0 || r.OpenTails() != 0 || r.Holds() != 0 {
		t.Errorf("at the end %d tails are open, %d accounts are kept, Redis has %v (%v)", r.OpenTails(), r.Holds(), keys, err)
	}
}

// A client that leaves while its slot is being asked for takes none with it.
func TestAbandonedClaimsTakeNothing(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	proxy := redistest.StartProxy(t, server.Addr)
	r := newRedis(t, ratelimit.Options{Servers: at(proxy.Addr)})
	proxy.Rule(redistest.Scripts(redistest.Fault{Late: 100 * time.Millisecond}))
	for range 20 {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Millisecond)
		if _, err := r.Acquire(ctx, acme(), 2); !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, ratelimit.ErrExhausted) {
			t.Fatalf("Acquire = %v", err)
		}
		cancel()
	}
	proxy.Rule(nil)
	if !r.Flush() {
		t.Fatal("Redis is not told")
	}
	// One that nobody comes after, so that nothing else puts it right.
	proxy.Rule(redistest.Scripts(redistest.Fault{Late: 100 * time.Millisecond}))
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	if _, err := r.Acquire(ctx, acme(), 2); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("Acquire = %v", err)
	}
	if !r.Flush() {
		t.Fatal("Redis is not told")
	}
	if n, _ := slotsIn(t, server.Client(t), "sluice", "tails", acme()); n != 0 || r.OpenTails() != 0 || r.Holds() != 0 {
		t.Errorf("abandoned claims hold %d slots, %d here, %d accounts", n, r.OpenTails(), r.Holds())
	}
	open(t, r, acme(), 2, 2)
}
