package store

import (
	"context"
	"encoding/hex"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"sluice/internal/tenant"
)

// audit are the newest records, and how many there are of all.
func (r *rig) audit(tb testing.TB, q AuditQuery) []Record {
	tb.Helper()
	q.Limit = 10_000
	all, _, err := r.Audit(tb.Context(), q)
	must(tb, err)
	return all
}

// said is a record in one line.
func said(one Record) string {
	who := string(one.Actor.Kind)
	if one.Actor.KeyID != "" {
		who = string(one.Actor.Account) + "'s " + one.Actor.KeyID + " at " + one.Client.String() + " " + one.RequestID
	}
	return strings.TrimSpace(fmt.Sprintf("%s: %s %s %s %s", who, one.Account, one.Action, one.Target, one.Details))
}

// recorded are the records since the last call, the oldest first.
func (r *rig) recorded(tb testing.TB, after *int64) []string {
	tb.Helper()
	var lines []string
	for _, one := range r.audit(tb, AuditQuery{}) {
		if one.ID > *after {
			lines = append(lines, said(one))
			if !one.At.Equal(r.clock.read()) {
				tb.Errorf("%s: at %v", said(one), one.At)
			}
		}
	}
	if all := r.audit(tb, AuditQuery{}); len(all) > 0 {
		*after = all[0].ID
	}
	slices.Reverse(lines)
	return lines
}

// change is a call that may change something.
type testChange struct {
	what string
	do   func(ctx context.Context, by Author) error
	want []string // of the records, without the author's part
}

// changes are calls in order, each of which meets what those before it left.
func (r *rig) changes(tb testing.TB) []testChange {
	noon := r.clock.read()
	key, expiring := r.aKey("acme", "key_1"), r.aKey("acme", "key_1")
	key.Streams = streamsOf(tb, "a*", "b")
	expiring.ExpiresAt = noon.Add(time.Hour)
	stream := r.aStream("acme", "events")
	stream.Public, stream.ExpiresAt = true, noon.Add(24*time.Hour)
	first := r.aKey("acme", "key_first")
	return []testChange{
		{
			"an account", func(ctx context.Context, by Author) error {
				return r.CreateAccount(ctx, by, Account{ID: "acme", State: tenant.Active, Limits: OwnLimits{Burst: pointer(7)}}, &first)
			},
			[]string{`acme account.create acme {"api_key.hint":{"to":"hint"},"api_key.id":{"to":"key_first"},"limits.burst":{"to":7},"state":{"to":"active"}}`},
		},
		{"an account that is there", func(ctx context.Context, by Author) error {
			return r.CreateAccount(ctx, by, Account{ID: "acme", State: tenant.Active}, nil)
		}, nil},
		{
			"its state and a limit", func(ctx context.Context, by Author) error {
				_, err := r.ChangeAccount(ctx, by, "acme", AccountChange{State: pointer(tenant.Unpaid), Limits: func(l *OwnLimits) { l.Burst = nil }})
				return err
			},
			[]string{`acme account.update acme {"limits.burst":{"from":7,"to":null},"state":{"from":"active","to":"unpaid"}}`},
		},
		{"the same state", func(ctx context.Context, by Author) error {
			_, err := r.ChangeAccount(ctx, by, "acme", AccountChange{State: pointer(tenant.Unpaid)})
			return err
		}, nil},
		{
			"a key", func(ctx context.Context, by Author) error { return r.CreateKey(ctx, by, key) },
			[]string{`acme api_key.create key_1 {"access":{"to":"write"},"acts_as":{"to":"user"},"hint":{"to":"hint"},"name":{"to":"name of key_1"},"streams":{"to":["a*","b"]}}`},
		},
		{"a key of the same name", func(ctx context.Context, by Author) error { return r.CreateKey(ctx, by, key) }, nil},
		{
			"less of a key", func(ctx context.Context, by Author) error {
				_, err := r.ChangeKey(ctx, by, "acme", "key_1", KeyChange{Access: pointer(tenant.ReadAccess), ExpiresAt: &expiring.ExpiresAt, Streams: pointer(streamsOf(tb, "b"))})
				return err
			},
			[]string{`acme api_key.update key_1 {"access":{"from":"write","to":"read"},"expires_at":{"from":null,"to":"2026-06-01T13:00:00.3Z"},"streams":{"from":["a*","b"],"to":["b"]}}`},
		},
		{"no less of a key", func(ctx context.Context, by Author) error {
			_, err := r.ChangeKey(ctx, by, "acme", "key_1", KeyChange{Access: pointer(tenant.ReadAccess)})
			return err
		}, nil},
		{"more of a key", func(ctx context.Context, by Author) error {
			_, err := r.ChangeKey(ctx, by, "acme", "key_1", KeyChange{Access: pointer(tenant.WriteAccess)})
			return err
		}, nil},
		{
			"another secret", func(ctx context.Context, by Author) error {
				_, err := r.RotateKey(ctx, by, "acme", "key_1", NewSecret{Digest: tenant.DigestOf("second"), Hint: "2222", OldUntil: noon.Add(time.Minute)})
				return err
			},
			[]string{`acme api_key.rotate key_1 {"hint":{"from":"hint","to":"2222"},"old_hint":{"from":null,"to":"hint"},"old_until":{"from":null,"to":"2026-06-01T12:01:00.3Z"}}`},
		},
		{"a third secret", func(ctx context.Context, by Author) error {
			_, err := r.RotateKey(ctx, by, "acme", "key_1", NewSecret{Digest: tenant.DigestOf("third"), OldUntil: noon.Add(time.Minute)})
			return err
		}, nil},
		{
			"a third, alone", func(ctx context.Context, by Author) error {
				_, err := r.RotateKey(ctx, by, "acme", "key_1", NewSecret{Digest: tenant.DigestOf("third"), Hint: "3333", EndOlder: true})
				return err
			},
			[]string{`acme api_key.rotate key_1 {"hint":{"from":"2222","to":"3333"},"old_hint":{"from":"hint","to":null},"old_until":{"from":"2026-06-01T12:01:00.3Z","to":null}}`},
		},
		{
			"the end of a key", func(ctx context.Context, by Author) error { return r.RevokeKey(ctx, by, "acme", "key_1") },
			[]string{`acme api_key.revoke key_1 {"access":{"from":"read"},"acts_as":{"from":"user"},"expires_at":{"from":"2026-06-01T13:00:00.3Z"},"hint":{"from":"3333"},"name":{"from":"name of key_1"},"streams":{"from":["b"]}}`},
		},
		{"its end again", func(ctx context.Context, by Author) error { return r.RevokeKey(ctx, by, "acme", "key_1") }, nil},
		{
			"a stream", func(ctx context.Context, by Author) error { return r.CreateStream(ctx, by, stream) },
			[]string{`acme stream.create events {"content_type":{"to":"application/json"},"expires_at":{"to":"2026-06-02T12:00:00.3Z"},"public":{"to":true}}`},
		},
		{"a stream that is there", func(ctx context.Context, by Author) error { return r.CreateStream(ctx, by, stream) }, nil},
		{
			"a private stream", func(ctx context.Context, by Author) error {
				_, err := r.SetPublic(ctx, by, "acme", "events", false)
				return err
			},
			[]string{`acme stream.update events {"public":{"from":true,"to":false}}`},
		},
		{"the same again", func(ctx context.Context, by Author) error {
			_, err := r.SetPublic(ctx, by, "acme", "events", false)
			return err
		}, nil},
		{
			"the end of a stream", func(ctx context.Context, by Author) error {
				_, err := r.DeleteStream(ctx, by, "acme", "events")
				return err
			},
			[]string{`acme stream.delete events {"content_type":{"from":"application/json"},"expires_at":{"from":"2026-06-02T12:00:00.3Z"},"public":{"from":false}}`},
		},
		{"its end again", func(ctx context.Context, by Author) error {
			_, err := r.DeleteStream(ctx, by, "acme", "events")
			return err
		}, nil},
		{
			"the end of an account", func(ctx context.Context, by Author) error { return r.DeleteAccount(ctx, by, "acme") },
			[]string{`acme account.delete acme {"api_keys":{"from":1},"state":{"from":"unpaid"},"streams":{"from":0}}`},
		},
	}
}

// Each change has one record that says who, what, and what it was before; what changes
// nothing, and what is refused, has none.
func TestEachChangeIsRecorded(t *testing.T) {
	each(t, func(t *testing.T, r *rig) {
		var after int64
		for i, c := range r.changes(t) {
			by, who := someone(), "acme's key_of_someone at 192.0.2.7 request-7"
			if i%2 == 0 {
				by, who = ByOperator(netip.MustParseAddr("2001:db8::1"), "request-8"), "operator"
			}
			_ = c.do(t.Context(), by) // the refused ones are among them
			want := slices.Clone(c.want)
			for i := range want {
				want[i] = who + ": " + want[i]
			}
			equal(t, c.what, r.recorded(t, &after), want)
		}
		newest := r.audit(t, AuditQuery{})[0]
		equal(t, "the operator's address", newest.Client.String(), "2001:db8::1")
		equal(t, "the operator's request", newest.RequestID, "request-8")
		// Nothing of it opens anything.
		var all strings.Builder
		rows, err := list(t.Context(), r.read, func(row row) (string, error) {
			one, err := scanRecord(row)
			return fmt.Sprintf("%v %s", one, one.Details), err
		}, `SELECT `+auditColumns+` FROM audit`)
		must(t, err)
		for _, row := range rows {
			all.WriteString(row)
		}
		for _, secret := range []string{"key_1", "second", "third"} {
			digest := tenant.DigestOf(secret)
			for _, form := range []string{string(digest[:]), hex.EncodeToString(digest[:]), base64Of(digest[:])} {
				if strings.Contains(all.String(), form) {
					t.Errorf("the digest of %q is in a record", secret)
				}
			}
		}
	})
}

// What the program does by itself has a record too: what expires, what Ursula refuses, what
// the operator's file says, and the keys that sign tokens. Settling a stream has none.
func TestChangesOfNobodyAreRecorded(t *testing.T) {
	each(t, func(t *testing.T, r *rig) {
		ctx := t.Context()
		var after int64
		r.account(t, "acme")
		expiring := r.aStream("acme", "short")
		expiring.ExpiresAt = r.clock.read().Add(time.Minute)
		must(t, r.CreateStream(ctx, someone(), expiring))
		must(t, r.CreateStream(ctx, someone(), r.aStream("acme", "refused")))
		_ = r.recorded(t, &after)
		step := func(what string, err error, want ...string) {
			t.Helper()
			must(t, err)
			equal(t, what, r.recorded(t, &after), want)
		}
		step("made", r.MarkCreated(ctx, expiring.ID, "inc"))
		step("refused", r.RemoveStream(ctx, "acme refused"), `system: acme stream.undo refused {"content_type":{"from":"application/json"},"public":{"from":false}}`)
		r.clock.pass(time.Minute)
		due, err := r.Unsettled(ctx, 10)
		step("expired", err, `system: acme stream.expire short {"content_type":{"from":"application/json"},"expires_at":{"from":"2026-06-01T12:01:00.3Z"},"public":{"from":false}}`)
		equal(t, "to be settled", len(due), 1)
		_, err = r.Unsettled(ctx, 10)
		step("expired before", err)
		step("gone", r.RemoveStream(ctx, expiring.ID))
		step("used", r.UseKeys(ctx, map[string]time.Time{"key_1": r.clock.read()}))
		_, err = r.RotateSigningKeys(ctx, tenant.DefaultRotation())
		must(t, err)
		keys, err := r.SigningKeys(ctx)
		must(t, err)
		step("signing keys", nil, fmt.Sprintf(`system:  signing_keys.rotate  {"keys":{"from":[],"to":[%q]}}`, keys[0].ID))
		_, err = r.RotateSigningKeys(ctx, tenant.DefaultRotation())
		step("signing keys that are good", err)
	})
}

func TestDeclaredChangesAreRecorded(t *testing.T) {
	each(t, func(t *testing.T, r *rig) {
		ctx := t.Context()
		var after int64
		d := Declaration{
			Accounts: []Account{{ID: "acme", State: tenant.Active}, {ID: "beta", State: tenant.Active}},
			Streams:  []tenant.Stream{{Account: "acme", Name: "events", ContentType: "text/plain"}},
			Keys:     []tenant.Key{r.aKey("acme", "acme/ci").Key},
		}
		d.Keys[0].Name, d.Keys[0].Hint = "ci", ""
		step := func(what string, want ...string) {
			t.Helper()
			must(t, r.Declare(ctx, d))
			equal(t, what, r.recorded(t, &after), want)
		}
		const madeKey = `file: acme api_key.create acme/ci {"access":{"to":"write"},"acts_as":{"to":"user"},"name":{"to":"ci"}}`
		step("at first",
			`file: acme account.create acme {"state":{"to":"active"}}`, `file: beta account.create beta {"state":{"to":"active"}}`,
			`file: acme stream.create events {"content_type":{"to":"text/plain"},"public":{"to":false}}`, madeKey)
		step("the same again")
		d.Accounts[0].State, d.Streams[0].Public, d.Keys[0].Access = tenant.Unpaid, true, tenant.ReadAccess
		step("others", `file: acme account.update acme {"state":{"from":"active","to":"unpaid"}}`,
			`file: acme stream.update events {"public":{"from":false,"to":true}}`, `file: acme api_key.update acme/ci {"access":{"from":"write","to":"read"}}`)
		d.Keys[0].Digest = tenant.DigestOf("another")
		step("another secret", `file: acme api_key.rotate acme/ci`)
		key := d.Keys
		d.Streams, d.Keys, d.Accounts = nil, nil, d.Accounts[:1]
		step("less", `file: acme stream.undeclare events {"content_type":{"from":"text/plain"},"public":{"from":true}}`,
			`file: acme api_key.revoke acme/ci {"access":{"from":"read"},"acts_as":{"from":"user"},"name":{"from":"ci"}}`,
			`file: beta account.delete beta {"state":{"from":"active"}}`)
		d.Keys, d.Accounts = key, append(d.Accounts, Account{ID: "beta", State: tenant.Active})
		step("back", `file: beta account.create beta {"state":{"to":"active"}}`, strings.Replace(madeKey, `"write"`, `"read"`, 1))
		must(t, r.CreateStream(ctx, someone(), r.aStream("beta", "made")))
		_ = r.recorded(t, &after)
		d.Accounts = d.Accounts[:1]
		step("left to people", `file: beta account.update beta {"declared":{"from":true,"to":false}}`)
		d.Accounts, d.Streams = append(d.Accounts, Account{ID: "beta", State: tenant.Active}), []tenant.Stream{{Account: "beta", Name: "made", ContentType: "application/json"}}
		step("taken from people", `file: beta account.update beta {"declared":{"from":false,"to":true}}`, `file: beta stream.update made {"declared":{"from":false,"to":true}}`)
	})
}

// A change of nobody, and one that others hear of and that has no record, are refused.
func TestChangeWithoutAuthorOrRecord(t *testing.T) {
	each(t, func(t *testing.T, r *rig) {
		for _, c := range r.changes(t) {
			if c.want != nil {
				wants(t, c.what, c.do(t.Context(), Author{}), ErrNobody)
			}
		}
		err := r.change(t.Context(), "a trial", callTime, someone(), func(ctx context.Context, c *change) error {
			return c.insertAccount(ctx, Account{ID: "acme"})
		})
		wants(t, "without a record", err, errUnrecorded)
		_, err = r.Account(t.Context(), "acme")
		wants(t, "what it had begun", err, ErrNotFound)
		equal(t, "records", len(r.audit(t, AuditQuery{})), 0)
		if n, err := r.Revision(t.Context()); n != 0 || err != nil {
			t.Errorf("revision %d, %v", n, err)
		}
	})
}

// A change whose record cannot be written is not made, and one that fails behind its
// record leaves none.
func TestChangeAndRecordAreOne(t *testing.T) {
	each(t, func(t *testing.T, r *rig) {
		ctx := t.Context()
		for _, c := range r.changes(t) {
			if c.want == nil {
				_ = c.do(ctx, someone())
				continue
			}
			revision, err := r.Revision(ctx)
			must(t, err)
			before := len(r.audit(t, AuditQuery{}))
			must(t, run(ctx, r.write, `ALTER TABLE audit RENAME TO away`))
			wants(t, c.what+" without a place for its record", c.do(ctx, someone()), ErrUnavailable)
			must(t, run(ctx, r.write, `ALTER TABLE away RENAME TO audit`))
			if after, err := r.Revision(ctx); after != revision || err != nil {
				t.Errorf("%s: revision %d after %d, %v", c.what, after, revision, err)
			}
			// The log of changes comes after the record.
			must(t, run(ctx, r.write, `ALTER TABLE changes RENAME TO away`))
			wants(t, c.what+" without a place for its entry", c.do(ctx, someone()), ErrUnavailable)
			must(t, run(ctx, r.write, `ALTER TABLE away RENAME TO changes`))
			equal(t, c.what+": records of what was not made", len(r.audit(t, AuditQuery{}))-before, 0)
			must(t, c.do(ctx, someone()))
			equal(t, c.what+": records of what was", len(r.audit(t, AuditQuery{}))-before, 1)
		}
	})
}

// Ids rise in the order of changes, whatever the clocks of replicas say.
func TestRecordsAreInOrder(t *testing.T) {
	each(t, func(t *testing.T, r *rig) {
		replicas := []*rig{r}
		if r.Shared() {
			replicas = append(replicas, replica(t, r.url, &clock{now: r.clock.read().Add(-5 * time.Second)}))
		}
		const accounts = 12
		var group errgroup.Group
		for i, one := range replicas {
			group.Go(func() error {
				for n := range accounts {
					id := tenant.AccountID(fmt.Sprintf("acc%d-%d", i, n))
					if err := one.CreateAccount(t.Context(), someone(), Account{ID: id, State: tenant.Active}, nil); err != nil {
						return err
					}
				}
				return nil
			})
		}
		must(t, group.Wait())
		r.clock.pass(-time.Hour)
		r.account(t, "last")
		changes, _, err := r.Changes(t.Context(), 0, 1000)
		must(t, err)
		all := r.audit(t, AuditQuery{})
		slices.Reverse(all)
		changed, told := make([]tenant.AccountID, 0, len(all)), make([]tenant.AccountID, 0, len(changes))
		for i, one := range all {
			changed = append(changed, one.Account)
			if i > 0 && one.ID <= all[i-1].ID {
				t.Errorf("id %d follows %d", one.ID, all[i-1].ID)
			}
		}
		for _, c := range changes {
			told = append(told, c.Account)
		}
		equal(t, "in the order of the log", changed, told)
		equal(t, "records", len(all), accounts*len(replicas)+1)
	})
}

func TestAuditFilters(t *testing.T) {
	each(t, func(t *testing.T, r *rig) {
		ctx := t.Context()
		noon := r.clock.read()
		for _, id := range []tenant.AccountID{"acme", "beta"} {
			by := ByKey(id, "key_of_"+string(id), netip.Addr{}, "")
			must(t, r.CreateAccount(ctx, by, Account{ID: id, State: tenant.Active}, nil))
			for _, name := range []tenant.StreamName{"a", "b"} {
				r.clock.pass(time.Minute)
				must(t, r.CreateStream(ctx, by, r.aStream(id, name)))
			}
		}
		for what, tc := range map[string]struct {
			q    AuditQuery
			want []string
		}{
			"all":        {AuditQuery{}, []string{"beta b", "beta a", "beta beta", "acme b", "acme a", "acme acme"}},
			"an account": {AuditQuery{Account: "acme"}, []string{"acme b", "acme a", "acme acme"}},
			"an action":  {AuditQuery{Action: AccountCreate}, []string{"beta beta", "acme acme"}},
			"a key":      {AuditQuery{KeyID: "key_of_acme", Target: "a"}, []string{"acme a"}},
			"a target":   {AuditQuery{Target: "a"}, []string{"beta a", "acme a"}},
			"since":      {AuditQuery{Since: noon.Add(3 * time.Minute)}, []string{"beta b", "beta a"}},
			"until":      {AuditQuery{Until: noon.Add(time.Minute)}, []string{"acme acme"}},
			"nobody":     {AuditQuery{Account: "none"}, nil},
			"all of it": {AuditQuery{
				Account: "beta", Since: noon, Until: noon.Add(time.Hour), Action: StreamCreate, KeyID: "key_of_beta", Target: "b",
			}, []string{"beta b"}},
		} {
			all := r.audit(t, tc.q)
			got := make([]string, 0, len(all))
			for _, one := range all {
				got = append(got, string(one.Account)+" "+one.Target)
				if one.Client.IsValid() || one.RequestID != "" {
					t.Errorf("%s: %v", what, one)
				}
			}
			equal(t, what, got, tc.want)
		}
	})
}

// Whoever goes through the pages while others change things meets each record of before
// once, and none of after.
func TestAuditPages(t *testing.T) {
	each(t, func(t *testing.T, r *rig) {
		ctx := t.Context()
		r.account(t, "acme")
		for i := range 20 {
			must(t, r.CreateStream(ctx, someone(), r.aStream("acme", tenant.StreamName(fmt.Sprintf("s%d", i)))))
		}
		want := r.audit(t, AuditQuery{Account: "acme"})
		var got []Record
		for before, page := int64(0), 0; ; page++ {
			list, next, err := r.Audit(ctx, AuditQuery{Account: "acme", Before: before, Limit: 3})
			must(t, err)
			got = append(got, list...)
			if next == 0 {
				break
			}
			before = next
			must(t, r.CreateStream(ctx, someone(), r.aStream("acme", tenant.StreamName(fmt.Sprintf("more%d", page)))))
			r.account(t, tenant.AccountID(fmt.Sprintf("acc%d", page)))
		}
		texts := func(all []Record) []string {
			lines := make([]string, 0, len(all))
			for _, one := range all {
				lines = append(lines, fmt.Sprint(one.ID, " ", said(one)))
			}
			return lines
		}
		equal(t, "the records of before", texts(got), texts(want))
	})
}

// A filter that few records pass looks at a part of them at a time, and leads to all.
func TestAuditLooksAtPartsOfMany(t *testing.T) {
	each(t, func(t *testing.T, r *rig) {
		ctx := t.Context()
		r.lookedAt = 5
		r.account(t, "acme")
		for i := range 22 {
			must(t, r.CreateStream(ctx, someone(), r.aStream("acme", tenant.StreamName(fmt.Sprintf("s%d", i)))))
			r.clock.pass(time.Second)
		}
		_, err := r.SetPublic(ctx, someone(), "acme", "s0", true)
		must(t, err)
		find := func(q AuditQuery) (got []string, pages int) {
			t.Helper()
			for pages < 100 {
				list, next, err := r.Audit(ctx, q)
				must(t, err)
				for _, one := range list {
					got = append(got, string(one.Action)+" "+one.Target)
				}
				pages++
				if q.Before = next; next == 0 {
					break
				}
			}
			return got, pages
		}
		got, pages := find(AuditQuery{Account: "acme", Target: "s0", Limit: 10})
		equal(t, "found", got, []string{"stream.update s0", "stream.create s0"})
		equal(t, "pages of 24 records, five at a time", pages, 5)
		got, pages = find(AuditQuery{Target: "s0", Since: r.clock.read().Add(-3 * time.Second), Limit: 10})
		equal(t, "found since", got, []string{"stream.update s0"})
		equal(t, "pages since", pages, 1)
		got, _ = find(AuditQuery{Limit: 3})
		equal(t, "all of them", len(got), 24)
	})
}

// Old records go a few at a time, those of a deleted account with the others.
func TestForgetAudit(t *testing.T) {
	each(t, func(t *testing.T, r *rig) {
		ctx := t.Context()
		for i := range 5 {
			r.account(t, tenant.AccountID(fmt.Sprintf("acc%d", i)))
			r.clock.pass(time.Hour)
		}
		must(t, r.DeleteAccount(ctx, someone(), "acc0"))
		equal(t, "of a deleted account", len(r.audit(t, AuditQuery{Account: "acc0"})), 2)
		last := r.audit(t, AuditQuery{})[0].ID
		before := r.clock.read().Add(-2 * time.Hour) // that of acc3 is as old, and stays
		for _, want := range []int{2, 1, 0} {
			if n, err := r.ForgetAudit(ctx, before, 2); n != want || err != nil {
				t.Errorf("forgot %d, want %d: %v", n, want, err)
			}
		}
		all := r.audit(t, AuditQuery{})
		left := make([]string, 0, len(all))
		for _, one := range all {
			left = append(left, one.Target)
		}
		equal(t, "left", left, []string{"acc0", "acc4", "acc3"})
		// No id comes twice, though none of before is left and the clock is behind.
		if _, err := r.ForgetAudit(ctx, r.clock.read().Add(time.Hour), 100); err != nil {
			t.Error(err)
		}
		r.clock.pass(-10 * time.Hour)
		r.account(t, "later")
		if all := r.audit(t, AuditQuery{}); len(all) != 1 || all[0].ID <= last {
			t.Errorf("%v after %d", all, last)
		}
	})
}

// A list of the operator's file that is longer than any of the API's is cut.
func TestLongListsAreCut(t *testing.T) {
	t.Parallel()
	names := make([]string, 500)
	for i := range names {
		names[i] = strings.Repeat("x", 97) + fmt.Sprint(i) + "*"
	}
	got := string(made(keyFacts(tenant.Key{Streams: streamsOf(t, names...)})))
	contains(t, got, "and 400 more", names[99])
	if len(got) > 15_000 {
		t.Errorf("%d bytes", len(got))
	}
	if none := string(made(keyFacts(tenant.Key{Streams: tenant.StreamSet{}}))); !strings.Contains(none, `"streams":{"to":[]}`) {
		t.Errorf("a key that reaches nothing: %s", none)
	}
	if all := string(made(keyFacts(tenant.Key{Streams: tenant.AllStreams()}))); strings.Contains(all, `"streams"`) {
		t.Errorf("a key that reaches all: %s", all)
	}
}
