package store

import (
	"context"
	"slices"
	"testing"
	"time"

	"sluice/internal/tenant"
)

// file is what an operator's file states.
func file(r *rig) Declaration {
	ci := r.aKey("acme", "acme/ci")
	ci.Name, ci.Hint = "ci", ""
	return Declaration{
		Accounts: []Account{{ID: "acme", State: tenant.Active, Limits: OwnLimits{Burst: pointer(5)}}, {ID: "other", State: tenant.Unpaid}},
		Streams:  []tenant.Stream{{Account: "acme", Name: "events", ContentType: "text/plain", Public: true}},
		Keys:     []tenant.Key{ci.Key},
	}
}

func TestDeclare(t *testing.T) {
	each(t, func(t *testing.T, r *rig) {
		ctx := t.Context()
		d := file(r)
		must(t, r.Declare(ctx, d))
		want := d.Accounts[0]
		want.Declared, want.CreatedAt = true, r.clock.read()
		a, err := r.Account(ctx, "acme")
		must(t, err)
		equal(t, "account", a, want)
		st, err := r.Stream(ctx, "acme", "events")
		must(t, err)
		if st.ID == "" {
			t.Error("a declared stream has no id")
		}
		declared := d.Streams[0]
		declared.Declared = true
		equal(t, "stream", st, Stream{Stream: declared, ID: st.ID, State: Live, CreatedAt: r.clock.read()})
		k := d.Keys[0]
		k.Declared = true
		got, err := r.KeyOf(ctx, k.Digest)
		must(t, err)
		equal(t, "key", got, k)

		// The file alone changes what it states.
		_, err = r.ChangeAccount(ctx, someone(), "acme", AccountChange{State: pointer(tenant.Unpaid)})
		wants(t, "change of an account", err, ErrDeclared)
		wants(t, "deletion of an account", r.DeleteAccount(ctx, someone(), "acme"), ErrDeclared)
		_, err = r.SetPublic(ctx, someone(), "acme", "events", false)
		wants(t, "change of a stream", err, ErrDeclared)
		_, err = r.DeleteStream(ctx, someone(), "acme", "events")
		wants(t, "deletion of a stream", err, ErrDeclared)
		_, err = r.ChangeKey(ctx, someone(), "acme", "acme/ci", KeyChange{Name: pointer("x")})
		wants(t, "change of a key", err, ErrDeclared)
		_, err = r.RotateKey(ctx, someone(), "acme", "acme/ci", NewSecret{Digest: tenant.DigestOf("x"), OldUntil: r.clock.read()})
		wants(t, "rotation of a key", err, ErrDeclared)
		wants(t, "revocation of a key", r.RevokeKey(ctx, someone(), "acme", "acme/ci"), ErrDeclared)
		// Others make it; only what Ursula calls it is left to be learned.
		if left, err := r.Unsettled(ctx, 9); err != nil || len(left) != 1 || left[0].State != Live {
			t.Errorf("to be settled: %v, %v", left, err)
		}

		// A replica that starts with the same file writes nothing, and ends nothing.
		after, err := r.Revision(ctx)
		must(t, err)
		must(t, r.Declare(ctx, d))
		equal(t, "told the second time", r.told(t, &after), nil)

		d.Accounts[1].State = tenant.Active
		d.Streams[0].Public = false
		d.Keys[0].Access = tenant.ReadAccess
		must(t, r.Declare(ctx, d))
		equal(t, "told of changes", r.told(t, &after), []tenant.Change{
			{Kind: tenant.AccountChanged, Account: "other"},
			{Kind: tenant.StreamChanged, Account: "acme", Stream: "events"},
			{Kind: tenant.KeyChanged, Account: "acme", KeyID: "acme/ci"},
		})
		if got := r.cutoff(t, "acme/ci"); !got.Equal(r.clock.read().Add(r.skew())) {
			t.Errorf("cutoff of the narrowed key: %v", got)
		}
		// Wider again: that is the file's to do.
		d.Keys[0].Access = tenant.WriteAccess
		must(t, r.Declare(ctx, d))
		if got, err := r.KeyOf(ctx, d.Keys[0].Digest); err != nil || got.Access != tenant.WriteAccess {
			t.Errorf("wider: %v, %v", got, err)
		}
	})
}

// What leaves the file goes; what people made stays, and theirs is what it stood in.
func TestUndeclare(t *testing.T) {
	each(t, func(t *testing.T, r *rig) {
		ctx := t.Context()
		d := file(r)
		d.Streams = append(d.Streams, tenant.Stream{Account: "other", Name: "events"})
		must(t, r.Declare(ctx, d))
		must(t, r.CreateKey(ctx, someone(), r.aKey("acme", "made")))
		r.live(t, "acme", "made")
		after, err := r.Revision(ctx)
		must(t, err)

		must(t, r.Declare(ctx, Declaration{}))
		a, err := r.Account(ctx, "acme")
		if err != nil || a.Declared || a.State != tenant.Active {
			t.Errorf("the account that holds something: %+v, %v", a, err)
		}
		_, err = r.Account(ctx, "other")
		wants(t, "the account that holds nothing", err, ErrNotFound)
		streams, err := r.Streams(ctx, "acme", Page{Limit: 9})
		if err != nil || len(streams) != 1 || streams[0].Name != "made" {
			t.Errorf("streams: %v, %v", streams, err)
		}
		k, err := r.KeyOf(ctx, d.Keys[0].Digest)
		if err != nil || !k.RevokedAt.Equal(r.clock.read()) || !r.cutoff(t, "acme/ci").Equal(never()) {
			t.Errorf("the declared key: %v, %v", k.RevokedAt, err)
		}
		if k, err := r.KeyOf(ctx, tenant.DigestOf("made")); err != nil || !k.RevokedAt.IsZero() {
			t.Errorf("the key that was made: %v, %v", k.RevokedAt, err)
		}
		if told := r.told(t, &after); len(told) != 5 { // two streams, a key, two accounts
			t.Errorf("told %v", told)
		}
		// The id of what the file gave up is nobody else's.
		wants(t, "its id", r.CreateAccount(ctx, someone(), Account{ID: "other", State: tenant.Active}, nil), ErrTaken)

		// A line that was taken out by mistake comes back as it was, but for its tokens.
		r.clock.pass(time.Minute)
		must(t, r.Declare(ctx, d))
		if a, err := r.Account(ctx, "other"); err != nil || !a.Declared {
			t.Errorf("back: %+v, %v", a, err)
		}
		k, err = r.KeyOf(ctx, d.Keys[0].Digest)
		if err != nil || !k.RevokedAt.IsZero() || k.ID != "acme/ci" {
			t.Errorf("the key that is back: %+v, %v", k, err)
		}
		if got := r.cutoff(t, "acme/ci"); !got.Equal(r.clock.read().Add(r.skew())) {
			t.Errorf("its cutoff: %v", got)
		}
	})
}

func TestDeclareWhatPeopleMade(t *testing.T) {
	each(t, func(t *testing.T, r *rig) {
		ctx := t.Context()
		r.account(t, "acme")
		named, same := r.aKey("acme", "k1"), r.aKey("acme", "k2")
		named.Name = "ci"
		must(t, r.CreateKey(ctx, someone(), named))
		must(t, r.CreateKey(ctx, someone(), same))
		ends := r.aStream("acme", "events")
		ends.ExpiresAt = r.clock.read().Add(time.Minute)
		must(t, r.CreateStream(ctx, someone(), ends))
		must(t, r.MarkCreated(ctx, ends.ID, "inc1"))

		d := file(r)
		digest := r.aKey("acme", "acme/by-digest")
		digest.Digest = same.Digest
		d.Keys = append(d.Keys, digest.Key)
		must(t, r.Declare(ctx, d))
		st, err := r.Stream(ctx, "acme", "events")
		if err != nil || !st.Declared || st.ID != ends.ID || st.Incarnation != "inc1" || st.ContentType != "text/plain" {
			t.Errorf("stream: %+v, %v", st, err)
		}
		// The file knows no end, so there is none: it would take away what the file states.
		r.clock.pass(time.Hour)
		if left, err := r.Unsettled(ctx, 9); err != nil || len(left) != 0 {
			t.Errorf("to be settled: %v, %v", left, err)
		}
		// By its name: the file's secret is the one that counts.
		k, err := r.KeyOf(ctx, d.Keys[0].Digest)
		if err != nil || k.ID != "k1" || !k.Declared {
			t.Errorf("by its name: %+v, %v", k, err)
		}
		_, err = r.KeyOf(ctx, named.Digest)
		wants(t, "the secret that it had", err, ErrNotFound)
		if r.cutoff(t, "k1").IsZero() {
			t.Error("what was made from the secret that it had lives on")
		}
		// By its digest: it is the same secret, and nothing ends.
		k, err = r.KeyOf(ctx, same.Digest)
		if err != nil || k.ID != "k2" || !k.Declared || k.Name != digest.Name || !r.cutoff(t, "k2").IsZero() {
			t.Errorf("by its digest: %+v, %v, cutoff %v", k, err, r.cutoff(t, "k2"))
		}
		after, err := r.Revision(ctx)
		must(t, err)
		must(t, r.Declare(ctx, d))
		equal(t, "told the second time", r.told(t, &after), nil)
	})
}

// Two keys of the file change what they have with each other: in the wrong order each is
// taken by the other.
func TestDeclareSwaps(t *testing.T) {
	each(t, func(t *testing.T, r *rig) {
		ctx := t.Context()
		d := file(r)
		second := d.Keys[0]
		second.ID, second.Name, second.Digest = "acme/cd", "cd", tenant.DigestOf("second")
		d.Keys = append(d.Keys, second)
		must(t, r.Declare(ctx, d))
		d.Keys[0].Digest, d.Keys[1].Digest = d.Keys[1].Digest, d.Keys[0].Digest
		must(t, r.Declare(ctx, d))
		for _, k := range d.Keys {
			if got, err := r.KeyOf(ctx, k.Digest); err != nil || got.ID != k.ID {
				t.Errorf("%s: %v, %v", k.ID, got, err)
			}
		}
		// One leaves and its secret goes on under another name.
		d.Keys = d.Keys[:1]
		d.Keys[0].ID, d.Keys[0].Name = "acme/new", "new"
		must(t, r.Declare(ctx, d))
		if got, err := r.KeyOf(ctx, d.Keys[0].Digest); err != nil || got.ID != "acme/new" || !got.RevokedAt.IsZero() {
			t.Errorf("under another name: %+v, %v", got, err)
		}
		for _, gone := range []string{"acme/ci", "acme/cd"} {
			if k, err := r.Key(ctx, "acme", gone); err != nil || k.RevokedAt.IsZero() {
				t.Errorf("%s: %+v, %v", gone, k, err)
			}
		}
	})
}

func TestDeclareRefuses(t *testing.T) {
	each(t, func(t *testing.T, r *rig) {
		ctx := t.Context()
		r.account(t, "gone")
		must(t, r.DeleteAccount(ctx, someone(), "gone"))
		r.account(t, "acme")
		r.account(t, "made")
		named, same, other := r.aKey("acme", "k1"), r.aKey("acme", "k2"), r.aKey("made", "k3")
		named.Name = "ci"
		for _, k := range []Key{named, same, other} {
			must(t, r.CreateKey(ctx, someone(), k))
		}
		after, err := r.Revision(ctx)
		must(t, err)
		for _, tc := range []struct {
			name string
			edit func(*Declaration)
			want error
		}{
			{"an account twice", func(d *Declaration) { d.Accounts = append(d.Accounts, d.Accounts[0]) }, ErrTaken},
			{"a stream twice", func(d *Declaration) { d.Streams = append(d.Streams, d.Streams[0]) }, ErrTaken},
			{"a digest twice", func(d *Declaration) {
				k := d.Keys[0]
				k.Name, k.ID = "x", "acme/x"
				d.Keys = append(d.Keys, k)
			}, ErrTaken},
			{"a name twice", func(d *Declaration) {
				k := d.Keys[0]
				k.Digest = tenant.DigestOf("x")
				d.Keys = append(d.Keys, k)
			}, ErrTaken},
			{"a stream of none", func(d *Declaration) { d.Streams[0].Account = "none" }, ErrNotFound},
			{"a stream of an account that it does not state", func(d *Declaration) { d.Streams[0].Account = "made" }, ErrNotFound},
			{"a key of none", func(d *Declaration) { d.Keys[0].Account = "none" }, ErrNotFound},
			{"an account that was deleted", func(d *Declaration) { d.Accounts[1].ID = "gone" }, ErrTaken},
			{"the name of one key and the digest of another", func(d *Declaration) { d.Keys[0].Digest = same.Digest }, ErrTaken},
			{"the digest of another account's key", func(d *Declaration) { d.Keys[0].Digest = other.Digest }, ErrTaken},
			{"a name and a digest of one key for two", func(d *Declaration) {
				k := d.Keys[0]
				k.Name, k.ID, k.Digest = "x", "acme/x", named.Digest
				d.Keys = append(d.Keys, k)
			}, ErrTaken},
		} {
			d := file(r)
			tc.edit(&d)
			wants(t, tc.name, r.Declare(ctx, d), tc.want)
			equal(t, tc.name+": told", r.told(t, &after), nil)
			if _, err := r.Account(ctx, "other"); err == nil {
				t.Errorf("%s: half of it is in force", tc.name)
			}
		}
	})
}

// A stream that the file states while it is being deleted: its data goes, its name does
// not become anybody's, and the file's stream stands in its place then.
func TestDeclareWhatIsBeingDeleted(t *testing.T) {
	each(t, func(t *testing.T, r *rig) {
		ctx := t.Context()
		r.account(t, "acme")
		old := r.live(t, "acme", "events")
		_, err := r.DeleteStream(ctx, someone(), "acme", "events")
		must(t, err)
		must(t, r.Declare(ctx, file(r)))
		left, err := r.Unsettled(ctx, 9)
		if err != nil || len(left) != 1 || left[0].ID != old.ID || left[0].State != Deleting {
			t.Fatalf("to be settled: %v, %v", left, err)
		}
		must(t, r.RemoveStream(ctx, old.ID))
		st, err := r.Stream(ctx, "acme", "events")
		if err != nil || st.ID == old.ID || st.State != Live || !st.Declared || !st.Public || st.Incarnation != "" {
			t.Errorf("in its place: %+v, %v", st, err)
		}
		// And one that leaves the file while it is being deleted is deleted to the end.
		r.live(t, "acme", "more")
		_, err = r.DeleteStream(ctx, someone(), "acme", "more")
		must(t, err)
		d := file(r)
		d.Streams = append(d.Streams, tenant.Stream{Account: "acme", Name: "more"})
		must(t, r.Declare(ctx, d))
		must(t, r.Declare(ctx, file(r)))
		left, err = r.Unsettled(ctx, 9)
		left = slices.DeleteFunc(left, func(st Stream) bool { return st.State == Live }) // of which only the incarnation is asked
		if err != nil || len(left) != 1 || left[0].Declared {
			t.Errorf("to be settled: %+v, %v", left, err)
		}
	})
}

// A replica that was started again on a full disk, or beside one that was frozen within a
// change, could not declare what had been declared before, and ended.
func TestDeclareNothingNew(t *testing.T) {
	each(t, func(t *testing.T, r *rig) {
		d := file(r)
		must(t, r.Declare(t.Context(), d))
		before, err := r.Revision(t.Context())
		must(t, err)
		// Nobody else can write.
		tx, err := r.write.BeginTx(t.Context(), nil)
		must(t, err)
		must(t, run(t.Context(), tx, `UPDATE meta SET revision = revision`))
		must(t, r.Declare(t.Context(), d))
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		defer cancel()
		d.Streams[0].Public = false
		wants(t, "another file", r.Declare(ctx, d), ErrUnavailable)
		must(t, tx.Rollback())
		must(t, r.Declare(t.Context(), d))
		after, err := r.Revision(t.Context())
		must(t, err)
		equal(t, "revision", after, before+1)
	})
}
