package manage

import (
	"context"
	"errors"
	"net/http"
	"testing"

	"github.com/google/go-cmp/cmp"

	"sluice/internal/tenant"
)

// An account's own limits stand over the default one by one; what a change does not name
// stays, and null is the default again.
func TestLimits(t *testing.T) {
	g := newRig(t)
	burst := func(got answered) []any {
		t.Helper()
		if got.status >= 300 {
			t.Fatalf("%d %s", got.status, got.body)
		}
		return []any{got.at("limits", "burst"), got.at("own_limits", "burst"), got.at("limits", "open_tails"), got.at("own_limits", "open_tails")}
	}
	for _, tt := range []struct {
		method, target, body string
		want                 []any // burst and open_tails, each with the account's own
	}{
		{http.MethodPost, "/v1/accounts", `{"id":"other","limits":{"burst":7}}`, []any{7.0, 7.0, 16.0, nil}},
		{http.MethodPatch, "/v1/accounts/other", `{"limits":{"open_tails":0}}`, []any{7.0, 7.0, 0.0, 0.0}},
		{http.MethodPatch, "/v1/accounts/other", `{"state":"unpaid"}`, []any{7.0, 7.0, 0.0, 0.0}},
		{http.MethodPatch, "/v1/accounts/other", `{"limits":{"burst":null}}`, []any{100.0, nil, 0.0, 0.0}},
		{http.MethodGet, "/v1/accounts/other", ``, []any{100.0, nil, 0.0, 0.0}},
	} {
		if diff := cmp.Diff(tt.want, burst(g.ask(g.operator, "", tt.method, tt.target, tt.body))); diff != "" {
			t.Errorf("%s %s (-want +got):\n%s", tt.method, tt.body, diff)
		}
	}
}

// What is in use is shown where it is known.
func TestUse(t *testing.T) {
	g := newRig(t)
	for _, tt := range []struct {
		tails func(context.Context, tenant.AccountID) (int, error)
		want  any
	}{
		{nil, nil},
		{func(context.Context, tenant.AccountID) (int, error) { return 3, nil }, map[string]any{"open_tails": 3.0}},
		{func(context.Context, tenant.AccountID) (int, error) { return 0, errors.New("not now") }, nil},
	} {
		o := g.options
		o.OpenTails = tt.tails
		got := g.ask(NewOwner(o), g.key, http.MethodGet, "/v1/account", "")
		if diff := cmp.Diff(tt.want, got.at("use")); got.status != http.StatusOK || diff != "" {
			t.Errorf("%d %s %s", got.status, got.body, diff)
		}
	}
}
