package auth

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"sluice/internal/tenant"
)

func mustStreams(tb testing.TB, patterns ...string) tenant.StreamSet {
	tb.Helper()
	s, err := tenant.ParseStreamSet(patterns)
	if err != nil {
		tb.Fatal(err)
	}
	return s
}

// decideCase is one row of the access table, in the words of the oracle.
type decideCase struct {
	anonymous bool
	own       bool // the principal's account is the stream's
	access    tenant.Access
	covers    bool // the principal's streams hold the name
	public    bool
	write     bool
}

// oracle is design §5 as grants: each line of it says what a right is good for,
// and the answer is the best grant, else the refusal.
func (c decideCase) oracle() (Standing, []error) {
	type grant struct {
		held         bool
		read, write  bool
		withStanding Standing
	}
	inside := !c.anonymous && c.own && c.covers
	for _, g := range []grant{
		{held: inside && c.access == "write", read: true, write: true, withStanding: Owner},
		{held: inside && c.access == "read", read: true, withStanding: Owner},
		{held: c.public, read: true, withStanding: Public},
	} {
		if g.held && (c.write && g.write || !c.write && g.read) {
			return g.withStanding, nil
		}
	}
	known := c.access == "read" || c.access == "write"
	switch {
	case c.anonymous:
		return 0, []error{ErrNoCredential}
	case !c.own:
		return 0, []error{ErrForbidden, ErrOtherAccount}
	case known && !c.covers:
		return 0, []error{ErrForbidden, ErrNotAmongStreams}
	case known:
		return 0, []error{ErrForbidden, ErrReadOnly}
	default:
		return 0, []error{ErrForbidden, ErrNoAccess}
	}
}

func allReasons() []error {
	return []error{ErrNoCredential, ErrForbidden, ErrOtherAccount, ErrNotAmongStreams, ErrReadOnly, ErrNoAccess, ErrInvalidCredential}
}

func (c decideCase) check(t *testing.T, p *Principal, s Resource) {
	t.Helper()
	standing, err := Decide(p, s, c.write)
	wantStanding, wantErrs := c.oracle()
	if standing != wantStanding || (err == nil) != (wantErrs == nil) {
		t.Errorf("%+v: got %v, %v; want %v, %v", c, standing, err, wantStanding, wantErrs)
	}
	for _, reason := range allReasons() {
		want := slices.Contains(wantErrs, reason)
		if errors.Is(err, reason) != want {
			t.Errorf("%+v: %v: Is(%v) = %t, want %t", c, err, reason, !want, want)
		}
	}
}

// A21: too narrow was not told from wrong. H17: a read-only key wrote. Every
// combination is held against the oracle.
func TestDecideAgainstOracle(t *testing.T) {
	sets := []struct {
		name   string
		set    tenant.StreamSet
		covers bool
	}{
		{"all", tenant.AllStreams(), true},
		{"name", mustStreams(t, "events"), true},
		{"second name", mustStreams(t, "other", "events"), true},
		{"pattern", mustStreams(t, "ev*"), true},
		{"star", mustStreams(t, "*"), true},
		{"none", tenant.StreamSet{}, false},
		{"other name", mustStreams(t, "event"), false},
		{"other case", mustStreams(t, "Events"), false},
		{"other pattern", mustStreams(t, "events.*"), false},
	}
	rows := 0
	for _, public := range []bool{false, true} {
		for _, write := range []bool{false, true} {
			s := Resource{Account: "acme", Name: "events", Public: public}
			decideCase{anonymous: true, public: public, write: write}.check(t, nil, s)
			decideCase{public: public, write: write}.check(t, &Principal{}, s)
			rows += 2
			for _, account := range []tenant.AccountID{"acme", "beta", "acm", "acmee", "ACME", ""} {
				for _, access := range []tenant.Access{"write", "read", "", "admin", "Write", "read "} {
					for _, set := range sets {
						for _, actsAs := range []tenant.ActsAs{tenant.User, tenant.Agent} {
							c := decideCase{own: account == "acme", access: access, covers: set.covers, public: public, write: write}
							c.check(t, &Principal{KeyID: "k", Account: account, Access: access, Streams: set.set, ActsAs: actsAs}, s)
							rows++
						}
					}
				}
			}
		}
	}
	if want := 4 * (2 + 6*6*9*2); rows != want {
		t.Errorf("tried %d rows, want %d", rows, want)
	}
}

// A16: a stream's existence was told by the status. Access never learns of it:
// a missing stream is one that is not public, and every credential gets for it
// what it gets for a private one, whatever the name.
func TestDecideSameForMissingAndPrivate(t *testing.T) {
	private := Resource{Account: "acme", Name: "events"}
	missing := Resource{Account: "acme", Name: "no-such-stream"}
	for _, tc := range []struct {
		name string
		p    *Principal
		want error
	}{
		{"anonymous", nil, ErrNoCredential},
		{"another account's", &Principal{Account: "beta", Access: tenant.WriteAccess, Streams: tenant.AllStreams()}, ErrOtherAccount},
		{"narrowed elsewhere", &Principal{Account: "acme", Access: tenant.WriteAccess, Streams: mustStreams(t, "logs")}, ErrNotAmongStreams},
	} {
		for _, write := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, write %t", tc.name, write), func(t *testing.T) {
				s1, err1 := Decide(tc.p, private, write)
				s2, err2 := Decide(tc.p, missing, write)
				if s1 != s2 || !errors.Is(err1, tc.want) || err1.Error() != err2.Error() {
					t.Errorf("private: %v, %v; missing: %v, %v; want %v for both", s1, err1, s2, err2, tc.want)
				}
			})
		}
	}
}

// Design §6: strangers have an allowance of their own, so an owner who reads its
// own public stream must not be counted among them, nor a stranger as owner.
func TestDecideStandingOnPublicStreams(t *testing.T) {
	s := Resource{Account: "acme", Name: "events", Public: true}
	for _, tc := range []struct {
		name string
		p    *Principal
		want Standing
	}{
		{"owner", &Principal{Account: "acme", Access: tenant.ReadAccess, Streams: tenant.AllStreams()}, Owner},
		{"stranger", nil, Public},
		{"other account", &Principal{Account: "beta", Access: tenant.WriteAccess, Streams: tenant.AllStreams()}, Public},
		{"own account, narrowed elsewhere", &Principal{Account: "acme", Access: tenant.WriteAccess, Streams: mustStreams(t, "logs")}, Public},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got, err := Decide(tc.p, s, false); got != tc.want || err != nil {
				t.Errorf("got %v, %v; want %v, nil", got, err, tc.want)
			}
		})
	}
}

func TestDecideDoesNotAllocate(t *testing.T) {
	p := &Principal{Account: "acme", Access: tenant.ReadAccess, Streams: mustStreams(t, "logs", "ev*")}
	s := Resource{Account: "acme", Name: "events"}
	n := testing.AllocsPerRun(100, func() {
		_, _ = Decide(p, s, false)
		_, _ = Decide(p, s, true)
		_, _ = Decide(nil, s, false)
	})
	if n != 0 {
		t.Errorf("got %v allocations, want 0", n)
	}
}

func FuzzDecide(f *testing.F) {
	f.Add("acme", "acme", "write", "ev*", "events", false, true, false)
	f.Add("acme", "beta", "read", "events", "events", true, false, false)
	f.Add("acme", "acme", "read", "", "events", true, true, false)
	f.Add("acme", "acme", "", "*", "a", true, false, false)
	f.Add("", "", "", "", "", false, false, true)
	f.Fuzz(func(t *testing.T, mine, theirs, access, pattern, name string, public, write, anonymous bool) {
		set, err := tenant.ParseStreamSet([]string{pattern})
		covers := err == nil && pattern == name
		if n := len(pattern) - 1; err == nil && n >= 0 && pattern[n] == '*' {
			covers = len(name) >= n && name[:n] == pattern[:n]
		}
		if pattern == "" && strings.HasPrefix(access, "w") { // a whole account's key, too
			set, covers = tenant.AllStreams(), true
		}
		p := &Principal{Account: tenant.AccountID(mine), Access: tenant.Access(access), Streams: set}
		if anonymous {
			p = nil
		}
		c := decideCase{
			anonymous: anonymous, own: mine == theirs, access: tenant.Access(access),
			covers: covers, public: public, write: write,
		}
		c.check(t, p, Resource{Account: tenant.AccountID(theirs), Name: tenant.StreamName(name), Public: public})
	})
}
