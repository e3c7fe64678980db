package limittest

import (
	"errors"
	"math/rand/v2"
	"testing"
	"time"

	"sluice/ratelimit"
)

// On any schedule, with limits that change on the way: what Look says is what Allow then
// decides, to the nanosecond of RetryAfter, however often it was looked before.
func lookingTakesNothing(t *testing.T, sys System) {
	source := rand.New(rand.NewPCG(3, 4)) //nolint:gosec // the same schedule each run
	rates := []ratelimit.Rate{{PerSecond: 2, Burst: 5}, {PerSecond: 50, Burst: 3}, {PerSecond: 1, Burst: 1}, {}, {PerSecond: 2, Burst: 5}}
	refused := 0
	for i := range 2_000 {
		r := rates[i/100%len(rates)]
		s := ratelimit.Subject{Account: "looked", Public: source.IntN(3) == 0}
		look := sys.Limiter.Look(s, r)
		for range source.IntN(4) {
			if again := sys.Limiter.Look(s, r); again != look {
				t.Fatalf("request %d, %+v: a look says %+v, the next one %+v", i, r, look, again)
			}
		}
		got := sys.Limiter.Allow(s, r)
		if look != got {
			t.Fatalf("request %d, %+v: a look said %+v, the decision is %+v", i, r, look, got)
		}
		if !got.Allowed {
			refused++
		}
		if source.IntN(8) == 0 {
			sys.Advance(time.Duration(source.IntN(400)) * time.Millisecond)
		}
	}
	if refused < 100 || refused > 1_900 {
		t.Errorf("%d of 2,000 were refused: the schedule tests nothing", refused)
	}
}

// LookTail and LookUpload say what the next one would be told, up to the limits and beyond.
func lookingAtSlotsTakesNothing(t *testing.T, sys System) {
	s, limits := subject(), ratelimit.UploadLimits{Uploads: 3, Bytes: 10}
	for i := range 4 {
		look := sys.Tails.LookTail(s, 2)
		lease, err := sys.Tails.Acquire(t.Context(), s, 2)
		if !errors.Is(err, look) || (look == nil) != (err == nil) {
			t.Errorf("tail %d: a look says %v, it is told %v", i, look, err)
		}
		if lease != nil {
			defer lease.Release()
		}
	}
	for i, bytes := range []int64{4, 7, 5, 1, 1} {
		look := sys.Uploads.LookUpload(s, limits, bytes)
		upload, err := sys.Uploads.AcquireUpload(t.Context(), s, limits, bytes)
		if !errors.Is(err, look) || (look == nil) != (err == nil) {
			t.Errorf("upload %d: a look says %v, it is told %v", i, look, err)
		}
		if upload != nil {
			defer upload.Release()
		}
	}
	if got := sys.TailsOf(s); got != 2 {
		t.Errorf("%d tails are open, want 2", got)
	}
	if bodies, bytes := sys.UploadsOf(s); bodies != 3 || bytes != 10 {
		t.Errorf("%d uploads of %d bytes, want 3 of 10", bodies, bytes)
	}
	for _, err := range []error{
		sys.Tails.LookTail(s, 0), sys.Uploads.LookUpload(s, ratelimit.UploadLimits{Bytes: 1}, 1), sys.Uploads.LookUpload(s, ratelimit.UploadLimits{Uploads: 1}, 1),
	} {
		if err == nil {
			t.Error("a look at what is closed says that it is open")
		}
	}
}
