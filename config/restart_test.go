package config

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestRestartOnly(t *testing.T) {
	old := parse(t, minimal)
	for name, tc := range map[string]struct {
		add  string
		want []string
	}{
		"nothing":        {"", nil},
		"listen":         {`listen: ":1"`, []string{"listen"}},
		"both":           {"admin: {listen: \"127.0.0.1:1\"}\nlisten: [\":2\", \":3\"]", []string{"listen", "admin.listen"}},
		"reloaded":       {"log: {level: debug}\ndrain_timeout: 1s\naccounts: [{id: acme}]", nil},
		"admin token":    {"admin: {token: x}", []string{"admin.token"}},
		"credentials":    {everyCredential, nil},
		"proxy protocol": {"proxy_protocol: required\ntrusted_proxies: [10.0.0.9]", []string{"proxy_protocol"}},
		"tls":            {"tls: {mode: acme, email: ops@example.com, domains: [streams.example.com], http_listen: \":80\", ca_root: r.pem, storage: s}", []string{"tls.mode", "tls.http_listen", "tls.ca_root", "tls.storage"}},
		"same, written":  {`listen: [":8080"]`, nil},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, RestartOnly(old, parse(t, minimal+tc.add))); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
	if got := RestartOnly(old, parse(t, strings.Replace(minimal, "streams.", "other.", 1))); !slices.Equal(got, []string{"origin"}) {
		t.Errorf("another origin: %v", got)
	}
}
