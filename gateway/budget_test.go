package gateway

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"sluice/internal/bubble"
)

// tryResize resizes without waiting; in a bubble the wait costs nothing.
func tryResize(t testing.TB, r *reservation, n int64) bool {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	return r.resize(ctx, n) == nil
}

// The arithmetic of reservations against a model, over random sequences: a
// resize succeeds exactly when there is room, all of the budget is never
// overdrawn, large bodies never touch the headroom, and it all comes back.
func TestBudgetAgainstAModel(t *testing.T) {
	const total, headroom = 64 << 20, 8 << 20
	for seed := range uint64(20) {
		bubble.Test(t, func(t *testing.T) {
			random := rand.New(rand.NewPCG(seed, 1)) //nolint:gosec // a test that can be repeated
			b := NewBodyBudget(total)
			held := make([]*reservation, 12)
			size, large := make([]int64, len(held)), make([]bool, len(held))
			for i := range held {
				held[i] = &reservation{budget: b}
			}
			for step := range 2000 {
				i := random.IntN(len(held))
				n := sizeOf(random)
				wantLarge := large[i] || n > smallBody
				var others, othersLarge int64
				for j := range held {
					if j != i {
						others += size[j]
						if large[j] {
							othersLarge += size[j]
						}
					}
				}
				want := n <= size[i] || others+n <= total && (!wantLarge || othersLarge+n <= total-headroom)
				switch {
				case random.IntN(4) == 0:
					held[i].release()
					held[i] = &reservation{budget: b}
					size[i], large[i] = 0, false
				case tryResize(t, held[i], n) != want:
					t.Fatalf("seed %d step %d: resize %d to %d: %v, want %v (others %d, large %d)", seed, step, size[i], n, !want, want, others, othersLarge)
				case want:
					large[i] = large[i] || n > smallBody && n > size[i]
					size[i] = n
				}
				sum := int64(0)
				for j := range held {
					sum += size[j]
					if held[j].held != size[j] || size[j] < 0 {
						t.Fatalf("seed %d step %d: reservation %d holds %d, want %d", seed, step, j, held[j].held, size[j])
					}
				}
				if b.Used() != sum || sum > total {
					t.Fatalf("seed %d step %d: %d used of %d, the model says %d", seed, step, b.Used(), total, sum)
				}
			}
			for _, r := range held {
				r.release()
				r.release() // once more gives nothing back twice
			}
			checkBudgetIsWhole(t, b, total, headroom)
		})
	}
}

// sizeOf prefers the sizes at which something changes.
func sizeOf(random *rand.Rand) int64 {
	edges := []int64{0, 1, 1 << 10, smallBody - 1, smallBody, smallBody + 1, 2 << 20, 8 << 20, 30 << 20, 56 << 20, 64 << 20, 65 << 20}
	if random.IntN(2) == 0 {
		return edges[random.IntN(len(edges))]
	}
	return random.Int64N(20 << 20)
}

// checkBudgetIsWhole proves that nothing is taken, and that all of it can be.
func checkBudgetIsWhole(t testing.TB, b *BodyBudget, total, headroom int64) {
	t.Helper()
	if b.Used() != 0 || b.Size() != total {
		t.Errorf("%d of %d used at the end, want 0 of %d", b.Used(), b.Size(), total)
	}
	r := &reservation{budget: b}
	if tryResize(t, r, total-headroom+1) {
		t.Error("a large body got into the headroom")
	}
	if !tryResize(t, r, total-headroom) {
		t.Error("a large body does not get what is there for large ones")
	}
	small := make([]*reservation, headroom/smallBody)
	for i := range small {
		small[i] = &reservation{budget: b}
		if !tryResize(t, small[i], smallBody) {
			t.Errorf("small body %d finds no headroom", i)
		}
	}
	for _, s := range small {
		s.release()
	}
	r.release()
	if b.Used() != 0 {
		t.Errorf("%d used after all", b.Used())
	}
}

// Facts U10: many at once never overdraw the budget, and leave it whole.
func TestBudgetConcurrently(t *testing.T) {
	const total, headroom = 16 << 20, 2 << 20
	b := NewBodyBudget(total)
	var wait sync.WaitGroup
	for worker := range uint64(16) {
		wait.Go(func() {
			random := rand.New(rand.NewPCG(worker, 2)) //nolint:gosec // a test that can be repeated
			for range 300 {
				r := &reservation{budget: b}
				for n := int64(1 << 18); n < 8<<20 && tryResize(t, r, n); n *= 2 {
					if used := b.Used(); used < 0 || used > total {
						t.Errorf("%d of %d used", used, total)
					}
					r.shrink(n - random.Int64N(n))
				}
				r.release()
			}
		})
	}
	wait.Wait()
	checkBudgetIsWhole(t, b, total, headroom)
}

// Facts U5, U14: when large bodies have taken theirs, a small one uses the headroom; a
// permit that grows out of small leaves it.
func TestBudgetHeadroom(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		b := NewBodyBudget(64 << 20)
		big := &reservation{budget: b}
		if !tryResize(t, big, 56<<20) {
			t.Fatal("56 MiB of 64 refused, with an eighth of headroom")
		}
		another, small := &reservation{budget: b}, &reservation{budget: b}
		if tryResize(t, another, smallBody+1) {
			t.Error("a second large body got in")
		}
		if !tryResize(t, small, smallBody) {
			t.Error("a small body found no headroom")
		}
		if tryResize(t, small, 2*smallBody) {
			t.Error("a body that outgrew small kept the headroom")
		}
		if small.held != smallBody || b.Used() != 57<<20 {
			t.Errorf("a refused growth left %d held, %d used", small.held, b.Used())
		}
		big.shrink(40 << 20)
		if !tryResize(t, small, 2*smallBody) {
			t.Error("a body that outgrew small does not get what large ones left")
		}
		small.release()
		big.release()
		checkBudgetIsWhole(t, b, 64<<20, 8<<20)
	})
}

// The headroom is an eighth, and 32 MiB at the most.
func TestBudgetHeadroomSize(t *testing.T) {
	for total, headroom := range map[int64]int64{0: 0, 7: 0, 800: 100, 64 << 20: 8 << 20, 256 << 20: 32 << 20, 1 << 40: 32 << 20} {
		b := NewBodyBudget(total)
		if !b.large.TryAcquire(total-headroom) || b.large.TryAcquire(1) {
			t.Errorf("of %d bytes, large bodies do not have exactly %d", total, total-headroom)
		}
	}
}

// U7, U8: a body waits for what another gives back; one whose client leaves gives
// up its claim, and what it held already stays held until it is released.
func TestBudgetWaits(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		b := NewBodyBudget(64 << 20)
		first, second, third := &reservation{budget: b}, &reservation{budget: b}, &reservation{budget: b}
		if !tryResize(t, first, 40<<20) || !tryResize(t, second, 8<<20) {
			t.Fatal("no room for the first two")
		}
		ctx, leave := context.WithCancel(t.Context())
		left := make(chan error, 1)
		go func() { left <- second.resize(ctx, 30<<20) }()
		bubble.Wait()
		leave()
		if err := <-left; !errors.Is(err, context.Canceled) || second.held != 8<<20 || b.Used() != 48<<20 {
			t.Errorf("after leaving: %v, %d held, %d used", err, second.held, b.Used())
		}
		waited := make(chan error, 1)
		go func() { waited <- third.resize(t.Context(), 20<<20) }()
		bubble.Wait()
		select {
		case err := <-waited:
			t.Fatalf("a third body did not wait: %v", err)
		default:
		}
		first.release()
		if err := <-waited; err != nil || third.held != 20<<20 {
			t.Errorf("after room was made: %v, %d held", err, third.held)
		}
		second.release()
		third.release()
		checkBudgetIsWhole(t, b, 64<<20, 8<<20)
	})
}
