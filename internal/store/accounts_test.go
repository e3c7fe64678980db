package store

import (
	"slices"
	"strings"
	"testing"

	"sluice/internal/tenant"
)

func TestAccounts(t *testing.T) {
	each(t, func(t *testing.T, r *rig) {
		ctx := t.Context()
		want := Account{ID: "acme", State: tenant.Active, Limits: OwnLimits{Burst: pointer(0), UploadBytes: pointer(int64(1) << 40)}, CreatedAt: r.clock.read()}
		first := r.aKey("acme", "k1")
		must(t, r.CreateAccount(ctx, someone(), want, &first))
		got, err := r.Account(ctx, "acme")
		must(t, err)
		equal(t, "account", got, want)
		key, err := r.Key(ctx, "acme", "k1")
		must(t, err)
		equal(t, "first key", key, first)

		wants(t, "a second of that id", r.CreateAccount(ctx, someone(), want, nil), ErrTaken)
		other := r.aKey("other", "k2")
		other.Digest = first.Digest
		wants(t, "a first key whose digest is taken", r.CreateAccount(ctx, someone(), Account{ID: "other", State: tenant.Active}, &other), ErrTaken)
		// The account had been made without its key.
		_, err = r.Account(ctx, "other")
		wants(t, "the account of the key that is not", err, ErrNotFound)

		want.State = tenant.Unpaid
		got, err = r.ChangeAccount(ctx, someone(), "acme", AccountChange{State: pointer(tenant.Unpaid)})
		must(t, err)
		equal(t, "other state", got, want)
		want.Limits = OwnLimits{RequestsPerSecond: pointer(7), OpenTails: pointer(8), Uploads: pointer(9), RequestBytes: pointer(int64(10))}
		_, err = r.ChangeAccount(ctx, someone(), "acme", AccountChange{Limits: func(l *OwnLimits) { *l = want.Limits }})
		must(t, err)
		got, err = r.Account(ctx, "acme")
		must(t, err)
		equal(t, "other limits", got, want)
		_, err = r.ChangeAccount(ctx, someone(), "none", AccountChange{})
		wants(t, "change of none", err, ErrNotFound)
		wants(t, "deletion of none", r.DeleteAccount(ctx, someone(), "none"), ErrNotFound)
	})
}

// The order is that of bytes with every database: a page that ends at "b_" in one order and
// goes on behind it in another would leave accounts out.
func TestAccountPages(t *testing.T) {
	each(t, func(t *testing.T, r *rig) {
		ids := []tenant.AccountID{"a-bc", "a0bc", "a_bc", "aabc", "aaca", "b-bc", "babc"} // sorted
		for _, i := range []int{3, 0, 6, 2, 4, 1, 5} {
			r.account(t, ids[i])
		}
		pages := func(p Page) (all []tenant.AccountID) {
			t.Helper()
			for {
				page, err := r.Accounts(t.Context(), p)
				must(t, err)
				if len(page) == 0 {
					return all
				}
				for _, a := range page {
					all = append(all, a.ID)
				}
				if len(page) > p.Limit {
					t.Fatalf("%d accounts in a page of %d", len(page), p.Limit)
				}
				p.After = string(page[len(page)-1].ID)
			}
		}
		for limit := 1; limit <= len(ids)+1; limit++ {
			equal(t, "all", pages(Page{Limit: limit}), ids)
			equal(t, "a…", pages(Page{Limit: limit, Prefix: "a"}), ids[:5])
		}
		equal(t, "aa…", pages(Page{Limit: 9, Prefix: "aa"}), ids[3:5])
		// What a client sends as a cursor or a prefix may be anything: Postgres takes no NUL
		// and nothing that is not UTF-8, and said so as if it were gone.
		for _, odd := range []string{"\x00", "a\xff", "é", "zzzz"} {
			equal(t, "prefix "+odd, pages(Page{Limit: 9, Prefix: odd}), nil)
		}
		equal(t, "behind a NUL", pages(Page{Limit: 9, After: "aabc\x00"}), ids[4:])
		equal(t, "behind no UTF-8", pages(Page{Limit: 9, After: "a\xff"}), ids[5:])
		_, err := r.Account(t.Context(), "a\x00bc")
		wants(t, "an id with a NUL", err, ErrNotFound)
	})
}

func TestDeleteAccount(t *testing.T) {
	each(t, func(t *testing.T, r *rig) {
		ctx := t.Context()
		r.account(t, "acme")
		r.account(t, "other")
		for _, id := range []string{"k1", "k2"} {
			must(t, r.CreateKey(ctx, someone(), r.aKey("acme", id)))
		}
		must(t, r.CreateKey(ctx, someone(), r.aKey("other", "k3")))
		must(t, r.RevokeKey(ctx, someone(), "acme", "k2"))
		revoked, err := r.Key(ctx, "acme", "k2")
		must(t, err)
		a, b := r.live(t, "acme", "a"), r.aStream("acme", "b")
		must(t, r.CreateStream(ctx, someone(), b))
		r.live(t, "other", "a")
		after, err := r.Revision(ctx)
		must(t, err)
		r.clock.pass(1e9)

		must(t, r.DeleteAccount(ctx, someone(), "acme"))
		_, err = r.Account(ctx, "acme")
		wants(t, "account", err, ErrNotFound)
		list, err := r.Accounts(ctx, Page{Limit: 9})
		if err != nil || len(list) != 1 {
			t.Errorf("list: %v, %v", list, err)
		}
		k, err := r.KeyOf(ctx, tenant.DigestOf("k1"))
		if err != nil || !k.RevokedAt.Equal(r.clock.read()) {
			t.Errorf("its key: revoked %v, %v", k.RevokedAt, err)
		}
		again, err := r.Key(ctx, "acme", "k2")
		must(t, err)
		equal(t, "a key that was revoked before", again, revoked)
		a.State, b.State = Deleting, Deleting
		streams, err := r.Streams(ctx, "acme", Page{Limit: 9})
		must(t, err)
		equal(t, "its streams", streams, []Stream{a, b})
		if got := r.cutoff(t, "k1"); !got.Equal(never()) {
			t.Errorf("cutoff of its key: %v", got)
		}
		told := r.told(t, &after)
		slices.SortStableFunc(told, func(a, b tenant.Change) int { return strings.Compare(string(a.Stream), string(b.Stream)) })
		equal(t, "told", told, []tenant.Change{
			{Kind: tenant.AccountChanged, Account: "acme"},
			{Kind: tenant.KeyChanged, KeyID: "k1", Account: "acme"},
			{Kind: tenant.StreamChanged, Account: "acme", Stream: "a"},
			{Kind: tenant.StreamChanged, Account: "acme", Stream: "b"},
		})
		// Nothing of another account.
		k, err = r.KeyOf(ctx, tenant.DigestOf("k3"))
		if err != nil || !k.RevokedAt.IsZero() || !r.cutoff(t, "k3").IsZero() {
			t.Errorf("another's key: %v, %v", k, err)
		}

		wants(t, "again", r.DeleteAccount(ctx, someone(), "acme"), ErrNotFound)
		wants(t, "its id", r.CreateAccount(ctx, someone(), Account{ID: "acme", State: tenant.Active}, nil), ErrTaken)
		_, err = r.ChangeAccount(ctx, someone(), "acme", AccountChange{State: pointer(tenant.Active)})
		wants(t, "change", err, ErrNotFound)
		wants(t, "a key for it", r.CreateKey(ctx, someone(), r.aKey("acme", "k9")), ErrNotFound)
		wants(t, "a stream for it", r.CreateStream(ctx, someone(), r.aStream("acme", "z")), ErrNotFound)
		// What has to go is still there to be settled.
		unsettled, err := r.Unsettled(ctx, 9)
		if err != nil || len(unsettled) != 2 {
			t.Errorf("unsettled: %v, %v", unsettled, err)
		}
	})
}
