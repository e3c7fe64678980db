package config

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// everyCredential sets every key that is about credentials and their use.
const everyCredential = `
auth:
  token_lifetime: 1m
  exchange_per_second: 1
  signing_keys: ["${SIGNING_KEY}"]
  issuers: [{issuer: "https://login.example.com", audience: x, account_claim: account, accounts: [acme]}]
cors: {origins: ["https://app.example.com"]}
server: {failed_credentials_per_minute: 120}
`

// What is allowed for credentials, and yet odd.
func TestWarningsOfCredentials(t *testing.T) {
	const local = "origin: http://localhost:8080\nursula: {nodes: [\"http://10.0.0.1:4437\"]}\n"
	issuer := func(issuer, more string) string {
		return signed[:len(signed)-2] + ", issuers: [{issuer: \"" + issuer + "\", audience: x, account_claim: account, accounts: [acme, beta]" + more + "}]}\naccounts: [{id: acme}, {id: beta}]\n"
	}
	// The store keeps signing keys, and accounts that no file declares.
	const kept = minimal + "store: {url: \"sqlite:/var/lib/sluice/sluice.db\"}\n"
	for name, tc := range map[string]struct {
		file string
		want []string // "line path"
		says string   // in the first
	}{
		"no key for tokens":            {minimal, []string{"1 auth.signing_keys"}, "no other replica"},
		"an empty list of keys":        {minimal + "auth: {signing_keys: []}", []string{"3 auth.signing_keys"}, "openssl ecparam"},
		"no key, on one machine":       {local, nil, ""},
		"no key, with a store":         {kept, nil, ""},
		"an account that is kept":      {kept + `auth: {issuers: [{issuer: "https://login.example.com", audience: x, account_claim: account, accounts: [acme]}]}`, nil, ""},
		"no key, and no exchange":      {minimal + "auth: {exchange_per_second: 0}", []string{"3 auth.exchange_per_second"}, "turns the token exchange off"},
		"an issuer":                    {minimal + issuer("https://login.example.com", ""), nil, ""},
		"an issuer on loopback":        {minimal + issuer("http://127.0.0.1:9000", ""), []string{"3 auth.issuers[0].issuer"}, "trials"},
		"its keys on loopback":         {minimal + issuer("https://login.example.com", `, jwks_url: "HTTP://localhost/keys"`), []string{"3 auth.issuers[0].jwks_url"}, "trials"},
		"an account that is not there": {strings.Replace(minimal+issuer("https://login.example.com", ""), "accounts: [{id: acme}, ", "accounts: [", 1), []string{"3 auth.issuers[0].accounts[0]"}, "declare it"},
		"pages of everybody":           {minimal + signed + `cors: {origins: ["*"]}`, []string{"4 cors.origins"}, "any site"},
		"pages of one":                 {minimal + signed + `cors: {origins: ["https://app.example.com"]}`, nil, ""},
		"fewer failures than count":    {minimal + signed + "server: {failed_credentials_per_minute: 59}", []string{"4 server.failed_credentials_per_minute"}, "60 a minute"},
		"as many as count":             {minimal + signed + "server: {failed_credentials_per_minute: 60}", nil, ""},
		"no count of failures":         {minimal + signed + "server: {failed_credentials_per_minute: 0}", nil, ""},
	} {
		t.Run(name, func(t *testing.T) {
			warnings := parse(t, strings.TrimSuffix(tc.file, "\n")+"\n"+proxied).Warnings(time.Time{})
			got := make([]string, 0, len(warnings))
			for _, w := range warnings {
				got = append(got, fmt.Sprintf("%d %s", w.Line, w.Path))
			}
			if diff := cmp.Diff(tc.want, got, cmpopts.EquateEmpty()); diff != "" {
				t.Fatalf("warnings (-want +got):\n%s", diff)
			}
			if tc.says != "" && !strings.Contains(warnings[0].Message, tc.says) {
				t.Errorf("%q does not say %q", warnings[0].Message, tc.says)
			}
		})
	}
}

func TestPageOrigins(t *testing.T) {
	for _, good := range []string{
		"*", "https://app.example.com", "http://app.example.com:8080", "https://app.example.com:80", "http://127.0.0.1:3000", "http://[::1]:3000",
		"chrome-extension://abcdefghijklmnopabcdefghijklmnop", "tauri://localhost", "app+x.1-y://host:1",
	} {
		if err := checkPage(good); err != nil {
			t.Errorf("%q: %v", good, err)
		}
	}
	for _, bad := range []string{
		"", "null", "**", "https://*", "https://app.example.com.*", "//app.example.com", "https:app.example.com", "https:/app.example.com", "https://app.example.com?", "https://app.example.com#",
		"https://app.example.com:", "https://app.example.com:0", "https://app.example.com:65536", "https://APP.example.com", "http://[::1", "http://[0:0::1]", "https://äpp.example.com",
		"https://app.example.com https://b.example.com", "https://app.example.com,https://b.example.com", "1app://host", "App://host", "app://Host", "app://host/", "app://host:x", "app://host:", "app://", "app://host/x", "://host",
	} {
		if err := checkPage(bad); err == nil {
			t.Errorf("%q is taken", bad)
		}
	}
}

func TestTooManyIssuers(t *testing.T) {
	file := func(n int) string {
		var b strings.Builder
		b.WriteString(minimal + "auth:\n  issuers:\n")
		for i := range n {
			fmt.Fprintf(&b, "    - {issuer: \"https://%d.example.com\", audience: x, account_claim: account, accounts: [acme]}\n", i)
		}
		return b.String()
	}
	parse(t, file(maxIssuers))
	_, err := Parse("f", []byte(file(maxIssuers+1)), testOptions())
	if want := "f:4: auth.issuers: has 65 issuers; at most 64 are taken"; err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
}

// A signing key is no bearer token, and an admin token is no key: what a secret
// may be made of depends on what it is for.
func TestOnlyBearerTokensAreHeldToTheirForm(t *testing.T) {
	if got := parse(t, minimal+signed).Auth.SigningKeys[0].Reveal(); got != twoLines {
		t.Errorf("got %q", got)
	}
	_, err := Parse("f", []byte(minimal+`admin: {token: "${SIGNING_KEY}"}`), testOptions())
	if err == nil || !strings.Contains(err.Error(), "no client could send") {
		t.Errorf("a text of two lines as a token: %v", err)
	}
}
