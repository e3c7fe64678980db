package store

import (
	"fmt"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"sluice/internal/tenant"
)

// Four rotations at once, each of which had seen one good secret before: each was done,
// and ended the secrets of those before it, the one in use included.
func TestRotationsAtOnce(t *testing.T) {
	each(t, func(t *testing.T, r *rig) {
		const callers = 4
		ctx := t.Context()
		r.account(t, "acme")
		must(t, r.CreateKey(ctx, someone(), r.aKey("acme", "k")))
		until := r.clock.read().Add(time.Hour)
		errs := make([]error, callers)
		var group errgroup.Group
		for i := range callers {
			group.Go(func() error {
				_, errs[i] = r.RotateKey(ctx, someone(), "acme", "k", NewSecret{Digest: tenant.DigestOf(fmt.Sprint(i)), OldUntil: until})
				return nil
			})
		}
		must(t, group.Wait())
		done := 0
		for i, err := range errs {
			if err != nil {
				wants(t, "a further rotation", err, ErrTwoSecrets)
				continue
			}
			done++
			if k, err := r.KeyOf(ctx, tenant.DigestOf(fmt.Sprint(i))); err != nil || !k.ExpiresAt.IsZero() {
				t.Errorf("the secret that was given: %v, %v", k.ExpiresAt, err)
			}
		}
		if done != 1 {
			t.Errorf("%d rotations were done", done)
		}
		if k, err := r.KeyOf(ctx, tenant.DigestOf("k")); err != nil || !k.ExpiresAt.Equal(until) {
			t.Errorf("the secret in use ends at %v, want %v; %v", k.ExpiresAt, until, err)
		}
		if got := r.cutoff(t, "k"); !got.IsZero() {
			t.Errorf("tokens are cut at %v", got)
		}
	})
}

// A key that had expired was given a new secret, which was over before it was read.
func TestRotateExpiredKey(t *testing.T) {
	each(t, func(t *testing.T, r *rig) {
		ctx := t.Context()
		r.account(t, "acme")
		k := r.aKey("acme", "k")
		k.ExpiresAt = r.clock.read().Add(time.Minute)
		must(t, r.CreateKey(ctx, someone(), k))
		r.clock.pass(time.Minute)
		_, err := r.RotateKey(ctx, someone(), "acme", "k", NewSecret{Digest: tenant.DigestOf("new"), EndOlder: true})
		wants(t, "a rotation at its end", err, ErrExpired)
		_, err = r.KeyOf(ctx, tenant.DigestOf("new"))
		wants(t, "its new secret", err, ErrNotFound)
	})
}

// Changes of different limits at once: each wrote all of them as it had read them, and
// took back what another had changed meanwhile.
func TestLimitsAtOnce(t *testing.T) {
	each(t, func(t *testing.T, r *rig) {
		ctx := t.Context()
		r.account(t, "acme")
		edits := []func(*OwnLimits){
			func(l *OwnLimits) { l.RequestsPerSecond = pointer(1) }, func(l *OwnLimits) { l.Burst = pointer(2) },
			func(l *OwnLimits) { l.OpenTails = pointer(3) }, func(l *OwnLimits) { l.Uploads = pointer(4) },
			func(l *OwnLimits) { l.UploadBytes = pointer[int64](5) }, func(l *OwnLimits) { l.RequestBytes = pointer[int64](6) },
		}
		var group errgroup.Group
		var want OwnLimits
		for _, edit := range edits {
			edit(&want)
			group.Go(func() error {
				_, err := r.ChangeAccount(ctx, someone(), "acme", AccountChange{Limits: edit})
				return err
			})
		}
		must(t, group.Wait())
		a, err := r.Account(ctx, "acme")
		must(t, err)
		equal(t, "limits", a.Limits, want)
	})
}

// A key that is narrowed to "*" reaches all streams and does not manage. That it widened
// to all was seen only before the change, in what was read then.
func TestStarIsNarrower(t *testing.T) {
	each(t, func(t *testing.T, r *rig) {
		ctx := t.Context()
		r.account(t, "acme")
		k := r.aKey("acme", "k")
		k.Streams, k.ExpiresAt = streamsOf(t, "*"), r.clock.read().Add(time.Hour)
		must(t, r.CreateKey(ctx, someone(), k))
		_, err := r.ChangeKey(ctx, someone(), "acme", "k", KeyChange{Streams: pointer(tenant.AllStreams())})
		wants(t, "from * to all", err, ErrWider)
		_, err = r.ChangeKey(ctx, someone(), "acme", "k", KeyChange{ExpiresAt: &time.Time{}})
		wants(t, "from a time to never", err, ErrWider)
	})
}

// Nobody could note the incarnation of a stream that the file states. What is noted stays
// while the file says the same, and what people made is not written over.
func TestLearn(t *testing.T) {
	each(t, func(t *testing.T, r *rig) {
		ctx := t.Context()
		d := Declaration{Accounts: []Account{{ID: "acme", State: tenant.Active}}, Streams: []tenant.Stream{{Account: "acme", Name: "a", ContentType: "text/plain"}}}
		must(t, r.Declare(ctx, d))
		made := r.live(t, "acme", "b")
		left, err := r.Unsettled(ctx, 9)
		must(t, err)
		if len(left) != 1 || left[0].Name != "a" || left[0].State != Live {
			t.Fatalf("unsettled: %v", left)
		}
		before, err := r.Revision(ctx)
		must(t, err)
		must(t, r.Leave(ctx, left[0].ID, r.clock.read().Add(time.Minute)))
		if put, err := r.Unsettled(ctx, 9); err != nil || len(put) != 0 {
			t.Errorf("put off, and unsettled: %v, %v", put, err)
		}
		must(t, r.Learn(ctx, left[0].ID, "inc7"))
		wants(t, "again", r.Learn(ctx, left[0].ID, "inc8"), ErrNotFound)
		wants(t, "one that people made", r.Learn(ctx, made.ID, "inc8"), ErrNotFound)
		must(t, r.Declare(ctx, d))
		for name, want := range map[tenant.StreamName]string{"a": "inc7", "b": "inc1"} {
			if st, err := r.Stream(ctx, "acme", name); err != nil || st.Incarnation != want || !st.BusyUntil.IsZero() {
				t.Errorf("%s has %q, busy until %v, %v", name, st.Incarnation, st.BusyUntil, err)
			}
		}
		if left, err = r.Unsettled(ctx, 9); err != nil || len(left) != 0 {
			t.Errorf("unsettled: %v, %v", left, err)
		}
		if after, err := r.Revision(ctx); err != nil || after != before {
			t.Errorf("revision %d after %d, %v", after, before, err)
		}
	})
}
