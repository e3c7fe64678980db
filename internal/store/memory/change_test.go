package memory

import (
	"cmp"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"

	"sluice/internal/store/watch"
	"sluice/internal/tenant"
)

// rig is a directory with a clock, and two listeners that hear every change.
type rig struct {
	*Directory
	content Content

	mu    sync.Mutex
	now   time.Time
	heard [2][]tenant.Change
}

func newRig(t *testing.T) *rig {
	t.Helper()
	r := &rig{now: time.Date(2026, 6, 1, 12, 0, 0, 300e6, time.UTC)}
	key := func(id string, account tenant.AccountID) tenant.Key {
		return tenant.Key{
			ID: id, Account: account, Digest: tenant.DigestOf(id), Access: tenant.WriteAccess,
			Streams: tenant.AllStreams(), ActsAs: tenant.User,
		}
	}
	r.content = Content{
		Accounts: []tenant.Account{{ID: "acme", State: tenant.Active}, {ID: "other", State: tenant.Active}},
		Streams: []tenant.Stream{
			{Account: "acme", Name: "pub", Public: true}, {Account: "acme", Name: "priv"}, {Account: "other", Name: "pub", Public: true},
		},
		Keys: []tenant.Key{key("acme/a", "acme"), key("acme/b", "acme"), key("other/a", "other")},
	}
	var err error
	if r.Directory, err = Open(Options{Content: r.content, Now: r.clock, Random: rand.Reader}); err != nil {
		t.Fatal(err)
	}
	for i := range r.heard {
		t.Cleanup(r.Watch(func(c tenant.Change) {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.heard[i] = append(r.heard[i], c)
		}))
	}
	return r
}

func (r *rig) clock() time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.now
}

func (r *rig) pass(d time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.now = r.now.Add(d)
}

// told is what both listeners heard since the last call, in a fixed order.
func (r *rig) told(t *testing.T) []tenant.Change {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range r.heard {
		slices.SortFunc(r.heard[i], func(a, b tenant.Change) int { return cmp.Compare(fmt.Sprint(a), fmt.Sprint(b)) })
	}
	if diff := gocmp.Diff(r.heard[0], r.heard[1]); diff != "" {
		t.Errorf("the two heard different things:\n%s", diff)
	}
	heard := r.heard[0]
	r.heard = [2][]tenant.Change{}
	return heard
}

// replace puts the content in force with one key of it changed.
func (r *rig) replace(t *testing.T, edit func(*Content)) {
	t.Helper()
	r.content.Keys = slices.Clone(r.content.Keys)
	r.content.Streams = slices.Clone(r.content.Streams)
	r.content.Accounts = slices.Clone(r.content.Accounts)
	edit(&r.content)
	if err := r.Replace(r.content); err != nil {
		t.Fatal(err)
	}
}

func keyChanged(id string, account tenant.AccountID) tenant.Change {
	return tenant.Change{Kind: tenant.KeyChanged, KeyID: id, Account: account}
}

func TestReplaceTellsTheDifferences(t *testing.T) {
	set := func(patterns ...string) tenant.StreamSet {
		s, err := tenant.ParseStreamSet(patterns)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	lost := []tenant.Change{keyChanged("acme/a", "acme")}
	key := func(edit func(*tenant.Key)) func(*Content) {
		return func(c *Content) { edit(&c.Keys[0]) }
	}
	for _, tc := range []struct {
		name   string
		before func(*Content)
		change func(*Content)
		told   []tenant.Change
		cut    bool // the key acme/a has a cutoff then
	}{
		{"nothing", nil, func(*Content) {}, nil, false},
		{"key removed", nil, func(c *Content) { c.Keys = c.Keys[1:] }, lost, true},
		{"key revoked", nil, key(func(k *tenant.Key) { k.RevokedAt = time.Unix(1, 0) }), lost, true},
		{"another digest", nil, key(func(k *tenant.Key) { k.Digest[0] ^= 1 }), lost, true},
		{"another id", nil, key(func(k *tenant.Key) { k.ID = "acme/x" }), lost, true},
		{"another account", nil, key(func(k *tenant.Key) { k.Account = "other" }), lost, true},
		{"write to read", nil, key(func(k *tenant.Key) { k.Access = tenant.ReadAccess }), lost, true},
		{"write to nothing known", nil, key(func(k *tenant.Key) { k.Access = "admin" }), lost, true},
		{"read to nothing known", key(func(k *tenant.Key) { k.Access = tenant.ReadAccess }), key(func(k *tenant.Key) { k.Access = "" }), lost, true},
		{"read to write", key(func(k *tenant.Key) { k.Access = tenant.ReadAccess }), key(func(k *tenant.Key) { k.Access = tenant.WriteAccess }), nil, false},
		{"user to agent", nil, key(func(k *tenant.Key) { k.ActsAs = tenant.Agent }), lost, true},
		{"agent to user", key(func(k *tenant.Key) { k.ActsAs = tenant.Agent }), key(func(k *tenant.Key) { k.ActsAs = tenant.User }), nil, false},
		{"now expires", nil, key(func(k *tenant.Key) { k.ExpiresAt = time.Unix(4e9, 0) }), lost, true},
		{"expires earlier", key(func(k *tenant.Key) { k.ExpiresAt = time.Unix(4e9, 0) }), key(func(k *tenant.Key) { k.ExpiresAt = time.Unix(3e9, 0) }), lost, true},
		{"expires later", key(func(k *tenant.Key) { k.ExpiresAt = time.Unix(3e9, 0) }), key(func(k *tenant.Key) { k.ExpiresAt = time.Unix(4e9, 0) }), nil, false},
		{"never expires now", key(func(k *tenant.Key) { k.ExpiresAt = time.Unix(3e9, 0) }), key(func(k *tenant.Key) { k.ExpiresAt = time.Time{} }), nil, false},
		{"fewer streams", nil, key(func(k *tenant.Key) { k.Streams = set("a", "b") }), lost, true},
		{"one stream less", key(func(k *tenant.Key) { k.Streams = set("a", "b") }), key(func(k *tenant.Key) { k.Streams = set("a") }), lost, true},
		{"other streams", key(func(k *tenant.Key) { k.Streams = set("a*") }), key(func(k *tenant.Key) { k.Streams = set("b*") }), lost, true},
		{"more streams", key(func(k *tenant.Key) { k.Streams = set("ab", "b") }), key(func(k *tenant.Key) { k.Streams = set("a*", "b") }), nil, false},
		{"another name", nil, key(func(k *tenant.Key) { k.Name, k.Hint = "x", "abcd" }), nil, false},
		{"key added", nil, func(c *Content) { c.Keys = append(c.Keys, tenant.Key{ID: "acme/new", Account: "acme"}) }, nil, false},
		{"second secret", nil, func(c *Content) {
			k := c.Keys[0]
			k.Digest[0] ^= 1
			c.Keys = append(c.Keys, k)
		}, nil, false},
		{"account gone, with what it had", nil, func(c *Content) {
			c.Accounts, c.Streams, c.Keys = c.Accounts[1:], c.Streams[2:], c.Keys[2:]
		}, []tenant.Change{
			keyChanged("acme/a", "acme"), keyChanged("acme/b", "acme"),
			{Kind: tenant.AccountChanged, Account: "acme"},
			{Kind: tenant.StreamChanged, Account: "acme", Stream: "priv"},
			{Kind: tenant.StreamChanged, Account: "acme", Stream: "pub"},
		}, true},
		{"account unpaid", nil, func(c *Content) { c.Accounts[0].State = tenant.Unpaid }, []tenant.Change{{Kind: tenant.AccountChanged, Account: "acme"}}, false},
		{"limits", nil, func(c *Content) { c.Accounts[0].Limits.Burst = 7 }, nil, false},
		{"stream private", nil, func(c *Content) { c.Streams[0].Public = false }, []tenant.Change{{Kind: tenant.StreamChanged, Account: "acme", Stream: "pub"}}, false},
		{"stream public", nil, func(c *Content) { c.Streams[1].Public = true }, nil, false},
		{"stream gone", nil, func(c *Content) { c.Streams = c.Streams[1:] }, []tenant.Change{{Kind: tenant.StreamChanged, Account: "acme", Stream: "pub"}}, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := newRig(t)
			if tc.before != nil {
				r.replace(t, tc.before)
				r.pass(2 * tenant.CutoffKept)
				r.replace(t, func(*Content) {})
				r.told(t)
			}
			r.replace(t, tc.change)
			if diff := gocmp.Diff(tc.told, r.told(t)); diff != "" {
				t.Errorf("told (-want +got):\n%s", diff)
			}
			if cut := r.Cutoff("acme/a"); cut.IsZero() == tc.cut || !cut.IsZero() && cut.Before(r.clock()) {
				t.Errorf("cutoff %v, want one: %t", cut, tc.cut)
			}
			if tc.name != "account gone, with what it had" && !r.Cutoff("acme/b").IsZero() {
				t.Error("another key has a cutoff")
			}
			r.replace(t, func(*Content) {})
			if told := r.told(t); told != nil {
				t.Errorf("told again: %v", told)
			}
		})
	}
}

func TestManyChangesAreOne(t *testing.T) {
	r := newRig(t)
	r.replace(t, func(c *Content) {
		for i := range watch.MaxTold + 1 {
			c.Streams = append(c.Streams, tenant.Stream{Account: "acme", Name: tenant.StreamName(fmt.Sprint("s", i)), Public: true})
		}
	})
	r.replace(t, func(c *Content) { c.Streams = c.Streams[:3] })
	if diff := gocmp.Diff([]tenant.Change{{Kind: tenant.Everything}}, r.told(t)); diff != "" {
		t.Errorf("told (-want +got):\n%s", diff)
	}
}

// What is told is in force by then, for whoever looks at that moment; and the
// callback may change the directory itself.
func TestChangeIsInForceWhenTold(t *testing.T) {
	r := newRig(t)
	var revoked, cut, again bool
	stop := r.Watch(func(c tenant.Change) {
		if c.Kind == tenant.KeyChanged && c.KeyID == "acme/a" {
			k, err := r.Key(t.Context(), tenant.DigestOf("acme/a"))
			revoked = err == nil && !k.RevokedAt.IsZero()
			cut = !r.Cutoff("acme/a").IsZero()
			again = r.RevokeKey("acme/b") == nil
		}
	})
	if err := r.RevokeKey("acme/a"); err != nil {
		t.Fatal(err)
	}
	if !revoked || !cut || !again {
		t.Errorf("revoked %t, cut off %t, changed inside %t", revoked, cut, again)
	}
	if diff := gocmp.Diff([]tenant.Change{keyChanged("acme/a", "acme"), keyChanged("acme/b", "acme")}, r.told(t)); diff != "" {
		t.Errorf("told (-want +got):\n%s", diff)
	}
	stop()
	stop()
	revoked = false
	if err := r.RevokeKey("other/a"); err != nil || revoked {
		t.Errorf("told after its stop: %t, %v", revoked, err)
	}
}

func TestSingleChanges(t *testing.T) {
	r := newRig(t)
	for _, tc := range []struct {
		name string
		do   func() error
		want error
		told []tenant.Change
	}{
		{"revoke", func() error { return r.RevokeKey("acme/a") }, nil, []tenant.Change{keyChanged("acme/a", "acme")}},
		{"revoke again", func() error { return r.RevokeKey("acme/a") }, nil, nil},
		{"revoke none", func() error { return r.RevokeKey("acme/none") }, tenant.ErrNotFound, nil},
		{"unpaid", func() error { return r.SetAccountState("acme", tenant.Unpaid) }, nil, []tenant.Change{{Kind: tenant.AccountChanged, Account: "acme"}}},
		{"unpaid again", func() error { return r.SetAccountState("acme", tenant.Unpaid) }, nil, nil},
		{"no account", func() error { return r.SetAccountState("none", tenant.Unpaid) }, tenant.ErrNotFound, nil},
		{"private", func() error { return r.SetPublic("acme", "pub", false) }, nil, []tenant.Change{{Kind: tenant.StreamChanged, Account: "acme", Stream: "pub"}}},
		{"public", func() error { return r.SetPublic("acme", "pub", true) }, nil, nil},
		{"no stream", func() error { return r.SetPublic("acme", "none", true) }, tenant.ErrNotFound, nil},
	} {
		if err := tc.do(); !errors.Is(err, tc.want) {
			t.Errorf("%s: %v, want %v", tc.name, err, tc.want)
		}
		if diff := gocmp.Diff(tc.told, r.told(t)); diff != "" {
			t.Errorf("%s: told (-want +got):\n%s", tc.name, diff)
		}
	}
	if a, err := r.Account(t.Context(), "acme"); err != nil || a.State != tenant.Unpaid {
		t.Errorf("account: %v, %v", a, err)
	}
	if s, err := r.Stream(t.Context(), "other", "pub"); err != nil || !s.Public {
		t.Errorf("another's stream: %v, %v", s, err)
	}
	if k, err := r.Key(t.Context(), tenant.DigestOf("acme/a")); err != nil || !k.RevokedAt.Equal(r.clock()) {
		t.Errorf("key: %v, %v", k, err)
	}
}

// Look-ups while changes go on see whole states: never a revoked key without its
// cutoff.
func TestChangesAreAtomic(t *testing.T) {
	r := newRig(t)
	var group sync.WaitGroup
	done := make(chan struct{})
	for range 2 {
		group.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
				}
				k, err := r.Key(t.Context(), tenant.DigestOf("acme/a"))
				if err != nil {
					t.Error(err)
					return
				}
				if revoked := !k.RevokedAt.IsZero(); revoked && r.Cutoff("acme/a").IsZero() {
					t.Error("a revoked key without a cutoff")
					return
				}
			}
		})
	}
	for range 200 {
		if err := errors.Join(r.RevokeKey("acme/a"), r.Replace(r.content), r.SetPublic("acme", "pub", false), r.RotateSigningKeys()); err != nil {
			t.Error(err)
		}
	}
	close(done)
	group.Wait()
}
