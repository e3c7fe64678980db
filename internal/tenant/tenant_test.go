package tenant

import (
	"errors"
	"strings"
	"testing"
)

func TestParseAccountID(t *testing.T) {
	for name, tc := range map[string]struct {
		in string
		ok bool
	}{
		"shortest":      {"acme", true},
		"longest":       {strings.Repeat("a", 64), true},
		"all kinds":     {"a_-9", true},
		"one underline": {"_abc", true},
		"too short":     {"abc", false},
		"too long":      {strings.Repeat("a", 65), false},
		"upper case":    {"Acme", false},
		"dot":           {"ac.me", false},
		"slash":         {"ac/me", false},
		"percent":       {"ac%6de", false},
		"non-ASCII":     {"acmé", false},
		"NUL":           {"acme\x00", false},
		"reserved":      {"snapshots", false},
		"console":       {"console", false},
		"operator":      {"__ursula", false},
		"empty":         {"", false},
	} {
		t.Run(name, func(t *testing.T) {
			id, err := ParseAccountID(tc.in)
			if (err == nil) != tc.ok || (err != nil && !errors.Is(err, ErrAccountID)) || (tc.ok && string(id) != tc.in) {
				t.Errorf("ParseAccountID(%q) = %q, %v; want ok %v", tc.in, id, err, tc.ok)
			}
		})
	}
}

func TestParseStreamName(t *testing.T) {
	for name, tc := range map[string]struct {
		in string
		ok bool
	}{
		"one letter":         {"a", true},
		"longest":            {strings.Repeat("x", 100), true},
		"all kinds":          {"A9._~-z", true},
		"too long":           {strings.Repeat("x", 101), false},
		"empty":              {"", false},
		"begins with dot":    {".a", false},
		"begins with hyphen": {"-a", false},
		"two dots":           {"a..b", false},
		"ends in two dots":   {"a..", false},
		"percent":            {"a%20b", false},
		"slash":              {"a/b", false},
		"semicolon":          {"a;b", false},
		"star":               {"a*", false},
		"non-ASCII":          {"é", false},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := ParseStreamName(tc.in)
			if (err == nil) != tc.ok || (err != nil && !errors.Is(err, ErrStreamName)) || (tc.ok && string(got) != tc.in) {
				t.Errorf("ParseStreamName(%q) = %q, %v; want ok %v", tc.in, got, err, tc.ok)
			}
		})
	}
}

func TestCheckStreamPathIsUrsulasLimit(t *testing.T) {
	account := AccountID(strings.Repeat("a", 64))
	fits := StreamName(strings.Repeat("x", MaxStreamPath-64-1-2))
	if err := CheckStreamPath(account, fits); err != nil {
		t.Errorf("%d bytes refused: %v", len(StreamPath(account, fits))-1, err)
	}
	if err := CheckStreamPath(account, fits+"x"); !errors.Is(err, ErrStreamName) {
		t.Errorf("123 bytes: got %v, want ErrStreamName", err)
	}
}

// P08: a prefix scope that was compared at the wrong border let "team-a" reach
// "team-ab". A name covers itself only; what a star covers is stated, case exact.
func TestStreamSetCovers(t *testing.T) {
	set := func(p ...string) StreamSet {
		s, err := ParseStreamSet(p)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	for name, tc := range map[string]struct {
		set  StreamSet
		in   StreamName
		want bool
	}{
		"zero value reaches nothing": {StreamSet{}, "team-a", false},
		"all":                        {AllStreams(), "anything", true},
		"name":                       {set("team-a"), "team-a", true},
		"name is no prefix":          {set("team-a"), "team-ab", false},
		"name, other case":           {set("team-a"), "TEAM-A", false},
		"pattern":                    {set("team-a*"), "team-ab", true},
		"pattern covers its prefix":  {set("team-a*"), "team-a", true},
		"pattern at a border":        {set("team-a.*"), "team-ab", false},
		"pattern, other case":        {set("team-a*"), "Team-ab", false},
		"second entry":               {set("x", "y"), "y", true},
		"star alone":                 {set("*"), "anything", true},
	} {
		t.Run(name, func(t *testing.T) {
			if got := tc.set.Covers(tc.in); got != tc.want {
				t.Errorf("Covers(%q) = %v, want %v", tc.in, got, tc.want)
			}
		})
	}
}

func TestParseStreamSetRefuses(t *testing.T) {
	for name, in := range map[string][]string{
		"nil":             nil,
		"empty":           {},
		"empty entry":     {""},
		"star inside":     {"a*b"},
		"two stars":       {"a**"},
		"bad name":        {"a/b"},
		"one bad of two":  {"a", "b..c"},
		"leading garbage": {"*a"},
	} {
		t.Run(name, func(t *testing.T) {
			if s, err := ParseStreamSet(in); !errors.Is(err, ErrStreamSet) || s.Covers("a") {
				t.Errorf("ParseStreamSet(%q) = %v, %v; want ErrStreamSet", in, s, err)
			}
		})
	}
}

func TestDigest(t *testing.T) {
	d := DigestOf("tbo_x")
	back, err := ParseDigest(d.String())
	if err != nil || back != d {
		t.Fatalf("ParseDigest(%s) = %v, %v", d, back, err)
	}
	for _, bad := range []string{"", "sha256:", d.String()[7:], d.String() + "0", "sha1:" + d.String()[7:], strings.ToUpper(d.String()), "sha256:" + strings.ToUpper(d.String()[7:]), "sha256:" + strings.Repeat("g", 64)} {
		if _, err := ParseDigest(bad); !errors.Is(err, ErrDigest) {
			t.Errorf("ParseDigest(%q): got %v, want ErrDigest", bad, err)
		}
	}
}
