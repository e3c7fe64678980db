package main

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"sluice/config"
	"sluice/internal/tenant"
	"sluice/ratelimit"
)

// Facts Q4: what a file says of limits: nothing is the contract's defaults, which are
// never "none"; a default of its own is for all, and an account's own goes before it,
// field by field; 0 stays 0.
func TestLimitsOfAFile(t *testing.T) {
	const head = "origin: https://a.example\nursula: {nodes: [\"http://a.example:1\"]}\n"
	const mib = 1 << 20
	defaults := tenant.Limits{RequestsPerSecond: 50, Burst: 100, OpenTails: 16, Uploads: 8, UploadBytes: 64 * mib, RequestBytes: 8 * mib}
	with := func(change func(*tenant.Limits)) tenant.Limits {
		l := defaults
		change(&l)
		return l
	}
	for name, tc := range map[string]struct {
		limits, account string
		want            tenant.Limits
		floor           ratelimit.Floor
	}{
		"nothing": {"", "", defaults, ratelimit.Floor{RequestsPerSecond: 50, OpenTails: 16}},
		"a default": {"limits: {default: {burst: 7, upload_bytes: 1MiB}}\n", "", with(func(l *tenant.Limits) {
			l.Burst, l.UploadBytes = 7, mib
		}), ratelimit.Floor{RequestsPerSecond: 50, OpenTails: 16}},
		"an account's own": {"limits: {default: {burst: 7, uploads: 3}, floor: {requests_per_second: 5, open_tails: 2}}\n", "limits: {burst: 9, open_tails: 0}", with(func(l *tenant.Limits) {
			l.Burst, l.Uploads, l.OpenTails = 9, 3, 0
		}), ratelimit.Floor{RequestsPerSecond: 5, OpenTails: 2}},
		"closed": {"limits: {floor: {requests_per_second: 0, open_tails: 0}}\n", "limits: {requests_per_second: 0, burst: 0, uploads: 0, upload_bytes: 0}", with(func(l *tenant.Limits) {
			l.RequestsPerSecond, l.Burst, l.Uploads, l.UploadBytes = 0, 0, 0, 0
		}), ratelimit.Floor{}},
	} {
		t.Run(name, func(t *testing.T) {
			account := "accounts:\n  - id: acme\n"
			if tc.account != "" {
				account += "    " + tc.account + "\n"
			}
			c, err := config.Parse("f", []byte(head+tc.limits+account), config.Options{Grammar: grammar()})
			if err != nil {
				t.Fatal(err)
			}
			content, err := declared(c)
			if err != nil {
				t.Fatal(err)
			}
			got := content.Accounts[0].Limits
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("limits (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(tc.floor, floorOf(c)); diff != "" {
				t.Errorf("floor (-want +got):\n%s", diff)
			}
		})
	}
}

// L10: check says of each limit of 0, wherever it stands, that it refuses all.
func TestClosedLimitsAreRemarkedOn(t *testing.T) {
	const closed = "{requests_per_second: 0, burst: 0, open_tails: 0, uploads: 0, upload_bytes: 0, request_bytes: 0}"
	c, err := config.Parse("f", []byte("origin: https://a.example\nursula: {nodes: [\"http://a.example:1\"]}\nlimits:\n  default: "+closed+"\naccounts:\n  - id: acme\n    limits: "+closed+"\n"), config.Options{Grammar: grammar()})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, w := range c.Warnings(time.Time{}) {
		if strings.Contains(w.Message, "does not mean unlimited") {
			got = append(got, w.Path)
		}
	}
	want := make([]string, 0, 12)
	for _, at := range []string{"limits.default.", "accounts[0].limits."} {
		for _, key := range []string{"requests_per_second", "burst", "open_tails", "uploads", "upload_bytes", "request_bytes"} {
			want = append(want, at+key)
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("remarks (-want +got):\n%s", diff)
	}
}
