package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"sluice/auth"
	"sluice/config"
	"sluice/internal/tenant"
)

// signingKeys is one new key in both forms, and its public half.
func signingKeys(t *testing.T) (sec1, pkcs8, public string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	encode := func(kind string, der []byte, err error) string {
		if err != nil {
			t.Fatal(err)
		}
		return string(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}))
	}
	der, err := x509.MarshalECPrivateKey(key)
	sec1 = encode("EC PRIVATE KEY", der, err)
	der, err = x509.MarshalPKCS8PrivateKey(key)
	pkcs8 = encode("PRIVATE KEY", der, err)
	der, err = x509.MarshalPKIXPublicKey(&key.PublicKey)
	return sec1, pkcs8, encode("PUBLIC KEY", der, err)
}

// What check says of issuers and signing keys is what serve would find: each has
// its line, and a key that is written in two ways is one key.
func TestGrammarOfCredentials(t *testing.T) {
	sec1, pkcs8, public := signingKeys(t)
	other, _, _ := signingKeys(t)
	vars := map[string]string{"SEC1": sec1, "PKCS8": pkcs8, "PUBLIC": public, "OTHER": other}
	check := func(text string) (*config.Config, error) {
		return config.Parse("f", []byte("origin: https://a.example\nursula: {nodes: [\"http://a.example:1\"]}\nauth:\n"+text+"\n"), config.Options{
			Grammar: grammar(), Env: func(name string) (string, bool) { v, ok := vars[name]; return v, ok },
		})
	}
	for name, tc := range map[string]struct {
		text string
		want []string // "line path"; none = taken
	}{
		"two keys":              {`  signing_keys: ["${PKCS8}", "${OTHER}"]`, nil},
		"one key in both forms": {"  signing_keys:\n  - \"${PKCS8}\"\n  - \"${SEC1}\"", []string{"6 auth.signing_keys[1]"}},
		"a public key":          {"  signing_keys:\n  - \"${PUBLIC}\"", []string{"5 auth.signing_keys[0]"}},
		"no key":                {"  signing_keys:\n  - hello", []string{"5 auth.signing_keys[0]"}},
		"an issuer":             {issuerEntry("https://login.example.com/realms/x", "https://login.example.com/keys?v=1"), nil},
		"http":                  {issuerEntry("http://login.example.com", "http://login.example.com/keys"), []string{"5 auth.issuers[0].issuer", "6 auth.issuers[0].jwks_url"}},
		"http on loopback":      {issuerEntry("http://127.0.0.1:1", "http://localhost:1/keys"), nil},
		"a query":               {issuerEntry("https://login.example.com?x=1", "https://login.example.com/keys"), []string{"5 auth.issuers[0].issuer"}},
		"a user":                {issuerEntry("https://login.example.com", "https://u:hunter2@login.example.com/keys"), []string{"6 auth.issuers[0].jwks_url"}},
		"no URL":                {issuerEntry("login.example.com", "keys"), []string{"5 auth.issuers[0].issuer", "6 auth.issuers[0].jwks_url"}},
		"the origin":            {issuerEntry("https://a.example", "https://a.example/keys"), []string{"5 auth.issuers[0].issuer"}},
	} {
		t.Run(name, func(t *testing.T) {
			c, err := check(tc.text)
			var invalid *config.Invalid
			var got []string
			if errors.As(err, &invalid) {
				for _, p := range invalid.Problems {
					got = append(got, fmt.Sprintf("%d %s", p.Line, p.Path))
				}
				if strings.Contains(err.Error(), "hunter2") || strings.Contains(err.Error(), "KEY-----") {
					t.Errorf("a secret is printed: %v", err)
				}
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Fatalf("problems (-want +got):\n%s\n%v", diff, err)
			}
			if err == nil {
				takes(t, c)
			}
		})
	}
}

func issuerEntry(issuer, jwksURL string) string {
	return fmt.Sprintf("  issuers:\n  - issuer: %q\n    jwks_url: %q\n    audience: x\n    account_claim: account\n    accounts: [acme]", issuer, jwksURL)
}

// takes checks that the parts take what the file's checks have passed.
func takes(t *testing.T, c *config.Config) {
	t.Helper()
	content, err := declared(c)
	if err != nil || len(content.SigningKeys) != len(c.Auth.SigningKeys) {
		t.Errorf("%d keys, %v", len(content.SigningKeys), err)
	}
	if err := setIssuers(c.Origin, issuersOf(c)); err != nil {
		t.Error(err)
	}
}

// setIssuers tells whether the authenticator takes a list; nobody is asked.
func setIssuers(origin string, list []auth.IssuerOptions) error {
	unplugged := roundTrip(func(*http.Request) (*http.Response, error) { return nil, http.ErrServerClosed })
	issuers := auth.NewIssuers(auth.IssuersOptions{Origin: origin, Transport: unplugged})
	defer issuers.Close()
	return issuers.Set(list)
}

// The file's bound on issuers is the authenticator's: one list is too long for
// both, the next shorter one for neither.
func TestAsManyIssuersAsAreTaken(t *testing.T) {
	for n, want := range map[int]bool{64: true, 65: false} {
		var b strings.Builder
		b.WriteString("origin: https://a.example\nursula: {nodes: [\"http://a.example:1\"]}\nauth:\n  issuers:\n")
		list := make([]auth.IssuerOptions, n)
		for i := range list {
			name := fmt.Sprintf("https://%d.example.com", i)
			list[i] = auth.IssuerOptions{Issuer: name, Audience: "x", AccountClaim: "account", Accounts: []tenant.AccountID{"acme"}}
			fmt.Fprintf(&b, "  - {issuer: %q, audience: x, account_claim: account, accounts: [acme]}\n", name)
		}
		_, err := config.Parse("f", []byte(b.String()), config.Options{Grammar: grammar()})
		if got := err == nil; got != want {
			t.Errorf("%d in the file: %v", n, err)
		}
		if err := setIssuers("https://a.example", list); (err == nil) != want {
			t.Errorf("%d in the authenticator: %v", n, err)
		}
	}
}

// roundTrip is a way out that is a function.
type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }
