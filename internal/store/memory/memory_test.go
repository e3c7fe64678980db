package memory

import (
	"errors"
	"testing"

	"sluice/internal/tenant"
)

func content() Content {
	return Content{
		Accounts: []tenant.Account{{ID: "acme", State: tenant.Active}, {ID: "other", State: tenant.Unpaid}},
		Streams:  []tenant.Stream{{Account: "acme", Name: "events", Public: true}, {Account: "other", Name: "events"}},
		Keys:     []tenant.Key{{ID: "acme/ci", Account: "acme", Digest: tenant.DigestOf("a")}, {ID: "other/ci", Account: "other", Digest: tenant.DigestOf("b")}},
	}
}

func TestLookUps(t *testing.T) {
	d, err := New(content())
	if err != nil {
		t.Fatal(err)
	}
	ctx := t.Context()
	if k, err := d.Key(ctx, tenant.DigestOf("a")); err != nil || k.ID != "acme/ci" {
		t.Errorf("Key: %v, %v", k, err)
	}
	if _, err := d.Key(ctx, tenant.DigestOf("c")); !errors.Is(err, tenant.ErrNotFound) {
		t.Errorf("unknown key: %v", err)
	}
	if a, err := d.Account(ctx, "other"); err != nil || a.State != tenant.Unpaid {
		t.Errorf("Account: %v, %v", a, err)
	}
	if _, err := d.Account(ctx, "none"); !errors.Is(err, tenant.ErrNotFound) {
		t.Errorf("unknown account: %v", err)
	}
	// The same name in two accounts is two streams.
	if s, err := d.Stream(ctx, "acme", "events"); err != nil || !s.Public {
		t.Errorf("Stream acme: %v, %v", s, err)
	}
	if s, err := d.Stream(ctx, "other", "events"); err != nil || s.Public {
		t.Errorf("Stream other: %v, %v", s, err)
	}
	if _, err := d.Stream(ctx, "acme", "none"); !errors.Is(err, tenant.ErrNotFound) {
		t.Errorf("unknown stream: %v", err)
	}
	if got := d.Streams(); len(got) != 2 {
		t.Errorf("Streams: %v", got)
	}
}

func TestReplaceKeepsTheOldOnError(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*Content)
		want   error
	}{
		"account twice":  {func(c *Content) { c.Accounts = append(c.Accounts, c.Accounts[0]) }, ErrDuplicate},
		"stream twice":   {func(c *Content) { c.Streams = append(c.Streams, c.Streams[0]) }, ErrDuplicate},
		"digest twice":   {func(c *Content) { c.Keys[1].Digest = c.Keys[0].Digest }, ErrDuplicate},
		"id of two":      {func(c *Content) { c.Keys[1].ID = c.Keys[0].ID }, ErrDuplicate},
		"stream of none": {func(c *Content) { c.Streams[0].Account = "none" }, ErrForeign},
		"key of none":    {func(c *Content) { c.Keys[0].Account = "none" }, ErrForeign},
	} {
		t.Run(name, func(t *testing.T) {
			d, err := New(content())
			if err != nil {
				t.Fatal(err)
			}
			c := content()
			c.Accounts[0].State = tenant.Revoked
			tc.change(&c)
			if err := d.Replace(c); !errors.Is(err, tc.want) {
				t.Fatalf("Replace: %v, want %v", err, tc.want)
			}
			if a, err := d.Account(t.Context(), "acme"); err != nil || a.State != tenant.Active {
				t.Errorf("half of a refused change is in force: %v, %v", a, err)
			}
		})
	}
}
