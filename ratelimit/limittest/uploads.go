package limittest

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"

	"sluice/ratelimit"
)

const mebibyte = 1 << 20

// upload begins an upload that must be let in.
func upload(t *testing.T, sys System, s ratelimit.Subject, l ratelimit.UploadLimits, bytes int64) ratelimit.Upload {
	t.Helper()
	u, err := sys.Uploads.AcquireUpload(t.Context(), s, l, bytes)
	if err != nil || u == nil {
		n, held := sys.UploadsOf(s)
		t.Fatalf("AcquireUpload(%+v, %+v, %d) = %v, %v; want an upload (under way: %d with %d bytes)", s, l, bytes, u, err, n, held)
	}
	return u
}

// noUpload begins one that must not be let in, for that reason.
func noUpload(t *testing.T, sys System, s ratelimit.Subject, l ratelimit.UploadLimits, bytes int64, want error) {
	t.Helper()
	if u, err := sys.Uploads.AcquireUpload(t.Context(), s, l, bytes); u != nil || !errors.Is(err, want) {
		t.Fatalf("AcquireUpload(%+v, %+v, %d) = %v, %v; want %v", s, l, bytes, u, err, want)
	}
}

func wantUploads(t *testing.T, sys System, s ratelimit.Subject, wantBodies int, wantBytes int64) {
	t.Helper()
	if n, bytes := sys.UploadsOf(s); n != wantBodies || bytes != wantBytes {
		t.Errorf("%+v has %d uploads with %d bytes, want %d with %d", s, n, bytes, wantBodies, wantBytes)
	}
}

// Facts U2: a subject over its count of uploads is refused, and let in again when
// one of them is whole (facts U3, Q6).
func uploadsUpToCount(t *testing.T, sys System) {
	l := ratelimit.UploadLimits{Uploads: 4, Bytes: 1 << 40}
	var all [4]ratelimit.Upload
	for i := range all {
		wantUploads(t, sys, subject(), i, int64(i)*2*mebibyte)
		all[i] = upload(t, sys, subject(), l, 2*mebibyte)
	}
	noUpload(t, sys, subject(), l, 2*mebibyte, ratelimit.ErrUploadsExhausted)
	all[2].Release()
	all[2].Release()
	all[2] = upload(t, sys, subject(), l, 3*mebibyte)
	noUpload(t, sys, subject(), l, 2*mebibyte, ratelimit.ErrUploadsExhausted)
	for _, u := range all {
		u.Release()
		u.Release()
	}
	wantUploads(t, sys, subject(), 0, 0)
}

// Facts U1: a subject over its bytes is refused, to the byte.
func uploadsUpToBytes(t *testing.T, sys System) {
	l := ratelimit.UploadLimits{Uploads: 8, Bytes: 10 * mebibyte}
	first, second := upload(t, sys, subject(), l, 4*mebibyte), upload(t, sys, subject(), l, 4*mebibyte)
	noUpload(t, sys, subject(), l, 2*mebibyte+1, ratelimit.ErrUploadBytesExhausted)
	third := upload(t, sys, subject(), l, 2*mebibyte)
	noUpload(t, sys, subject(), l, 1, ratelimit.ErrUploadBytesExhausted)
	first.Release()
	upload(t, sys, subject(), l, 4*mebibyte).Release()
	second.Release()
	third.Release()
	wantUploads(t, sys, subject(), 0, 0)
}

// Facts Q6: a body that is larger than all bytes of its account could never be
// sent, where the limit held for the only one too.
func onlyUploadPasses(t *testing.T, sys System) {
	l := ratelimit.UploadLimits{Uploads: 8, Bytes: 2 * mebibyte}
	large := upload(t, sys, subject(), l, 5*mebibyte)
	noUpload(t, sys, subject(), l, 1, ratelimit.ErrUploadBytesExhausted)
	if err := large.Resize(t.Context(), 7*mebibyte); err != nil {
		t.Errorf("the only upload may not grow: %v", err)
	}
	wantUploads(t, sys, subject(), 1, 7*mebibyte)
	large.Release()
	upload(t, sys, subject(), l, 5*mebibyte).Release()
}

// Facts U11: a body of undeclared length holds more as it grows, and at its end
// what it is.
func uploadResizes(t *testing.T, sys System) {
	l := ratelimit.UploadLimits{Uploads: 8, Bytes: 6 * mebibyte}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	a, b := upload(t, sys, subject(), l, 2*mebibyte), upload(t, sys, subject(), l, 2*mebibyte)
	if err := a.Resize(t.Context(), 4*mebibyte); err != nil {
		t.Fatalf("grow within the limit: %v", err)
	}
	if err := b.Resize(t.Context(), 4*mebibyte); !errors.Is(err, ratelimit.ErrUploadBytesExhausted) {
		t.Fatalf("grow beyond the limit: %v, want ErrUploadBytesExhausted", err)
	}
	wantUploads(t, sys, subject(), 2, 6*mebibyte)
	if err := a.Resize(ended, 5*mebibyte); !errors.Is(err, context.Canceled) {
		t.Errorf("grow under a context that has ended: %v", err)
	}
	if err := a.Resize(ended, 3*mebibyte); err != nil {
		t.Errorf("shrink: %v", err)
	}
	wantUploads(t, sys, subject(), 2, 5*mebibyte)
	if err := b.Resize(t.Context(), 3*mebibyte); err != nil {
		t.Errorf("grow into what was given back: %v", err)
	}
	a.Release()
	if err := a.Resize(t.Context(), 9*mebibyte); err != nil {
		t.Errorf("resize what has ended: %v", err)
	}
	wantUploads(t, sys, subject(), 1, 3*mebibyte)
	if err := b.Resize(t.Context(), 9*mebibyte); err != nil {
		t.Errorf("grow as the only one left: %v", err)
	}
	b.Release()
	wantUploads(t, sys, subject(), 0, 0)
}

func zeroUploadsIsClosed(t *testing.T, sys System) {
	for _, closed := range []int{0, -1} {
		noUpload(t, sys, subject(), ratelimit.UploadLimits{Uploads: closed, Bytes: 100}, 1, ratelimit.ErrUploadsExhausted)
		noUpload(t, sys, subject(), ratelimit.UploadLimits{Uploads: 1, Bytes: int64(closed)}, 1, ratelimit.ErrUploadBytesExhausted)
	}
	wantUploads(t, sys, subject(), 0, 0)
}

// L16: uploads must not use up tails, nor one account another's.
func uploadsDoNotShare(t *testing.T, sys System) {
	l := ratelimit.UploadLimits{Uploads: 1, Bytes: mebibyte}
	other := ratelimit.Subject{Account: "beta"}
	u := upload(t, sys, subject(), l, mebibyte)
	noUpload(t, sys, subject(), l, mebibyte, ratelimit.ErrUploadsExhausted)
	acquire(t, sys, subject(), 1).Release()
	upload(t, sys, other, l, mebibyte).Release()
	wantOpen(t, sys, subject(), 0)
	wantUploads(t, sys, other, 0, 0)
	wantUploads(t, sys, subject(), 1, mebibyte)
	u.Release()
}

// Facts U8: a request that is gone holds nothing.
func uploadEndedContext(t *testing.T, sys System) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	u, err := sys.Uploads.AcquireUpload(ctx, subject(), ratelimit.UploadLimits{Uploads: 1, Bytes: 1}, 1)
	if u != nil || !errors.Is(err, context.Canceled) {
		t.Errorf("AcquireUpload = %v, %v; want the context's error", u, err)
	}
	wantUploads(t, sys, subject(), 0, 0)
}

// S16, for uploads: beginning and ending them in a loop must hold to both bounds.
func uploadChurn(t *testing.T, sys System) {
	l := ratelimit.UploadLimits{Uploads: 5, Bytes: 12}
	var bodies, bytes, taken atomic.Int64
	var wg sync.WaitGroup
	for i := range 6 {
		size := int64(2 + i%3)
		wg.Go(func() {
			for range 200 {
				u, err := sys.Uploads.AcquireUpload(t.Context(), subject(), l, size)
				switch {
				case err == nil:
					taken.Add(1)
					if n, held := bodies.Add(1), bytes.Add(size); n > 5 || held > 12 {
						t.Errorf("%d uploads with %d bytes under way, want at most 5 with 12", n, held)
					}
					bodies.Add(-1)
					bytes.Add(-size)
					u.Release()
				case !errors.Is(err, ratelimit.ErrUploadsExhausted) && !errors.Is(err, ratelimit.ErrUploadBytesExhausted):
					t.Errorf("AcquireUpload: %v", err)
				}
			}
		})
	}
	wg.Wait()
	if taken.Load() == 0 {
		t.Error("no upload was let in")
	}
	wantUploads(t, sys, subject(), 0, 0)
}
