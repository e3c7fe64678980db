package main

import (
	"bufio"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"sluice/config"
)

// signingKey writes a new key as a file of the operator's, and gives its path.
func signingKey(t *testing.T, name string) string {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), name)
	writeFile(t, path, string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})))
	return path
}

// Replicas that are given the same signing keys take each other's tokens, over a
// rotation too; a key that is taken away takes its tokens and their tails with it.
// Without any, tokens outlive a reload of one replica and are nothing to another.
func TestSigningKeysOfTheFile(t *testing.T) {
	node := standIn(t)
	first, second := signingKey(t, "1.pem"), signingKey(t, "2.pem")
	keys := func(paths ...string) string {
		return `auth: {signing_keys: ["file:` + strings.Join(paths, `", "file:`) + "\"]}\n"
	}
	one, path := editable(t, node, keys(first))
	two := &edge{Account: one.Account, Key: one.Key, Reads: one.Reads}
	two.start(t, edgeFile(two, []string{node}, keys(second, first)), nil)
	old := one.token(t, one.Key, "expires_in", "3600")
	read := func(e *edge, token string) int {
		return e.doAs(t, http1(), token, http.MethodGet, e.path("json"), nil).StatusCode
	}
	if a, b := read(one, old), read(two, old); a != 200 || b != 200 {
		t.Errorf("at the replica that made it %d, at the other %d", a, b)
	}
	if fresh := two.token(t, one.Key); read(two, fresh) != 200 || read(one, fresh) != 401 {
		t.Error("a key that one replica does not know yet")
	}
	reload := func(extra string) {
		t.Helper()
		writeFile(t, path, edgeFile(one, []string{node}, extra))
		want(t, one.admin(t, http.MethodPost, "/reload"), http.StatusOK)
	}
	reload(keys(second, first))
	if fresh := two.token(t, one.Key); read(one, fresh) != 200 || read(one, old) != 200 {
		t.Error("both keys are there, but not both tokens taken")
	}
	res := one.open(t.Context(), t, http1(), old, http.MethodGet, one.path("json")+"?offset=now&live=sse", nil)
	defer func() { _ = res.Body.Close() }()
	events := bufio.NewReader(res.Body)
	readEvent(t, events)
	reload(keys(second))
	if text, err := io.ReadAll(events); err != nil || string(text) != lastEvent {
		t.Errorf("the tail of a key that is gone: %q %v", text, err)
	}
	if read(one, old) != 401 || read(one, one.token(t, one.Key)) != 200 {
		t.Error("after the rotation")
	}

	reload("")
	made := one.token(t, one.Key)
	reload("cors: {origins: [\"https://app.example.com\"]}\n")
	if read(one, made) != 200 || read(two, made) != 401 {
		t.Error("a token of the replica's own key")
	}
	preflight := one.doAs(t, http1(), "", http.MethodOptions, one.path("json"), nil, "Origin", "https://app.example.com", "Access-Control-Request-Method", "GET")
	want(t, preflight, http.StatusNoContent, "Access-Control-Allow-Origin", "https://app.example.com")
}

// An identity provider of the operator's own, by its file alone. Facts J5: its keys
// are found by its metadata, whose place is before its path. Its tokens reach the
// account that they name, if it may name it; a reload takes the provider away, and
// with it the tokens and the tails.
func TestIssuerOfTheFile(t *testing.T) {
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	point, err := private.PublicKey.Bytes()
	if err != nil {
		t.Fatal(err)
	}
	encode := base64.RawURLEncoding.EncodeToString
	var provider *httptest.Server
	provider = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/.well-known/oauth-authorization-server/tenant":
			_, _ = fmt.Fprintf(w, `{"issuer":"%s/tenant","jwks_uri":"%s/keys"}`, provider.URL, provider.URL)
		case "/keys":
			_, _ = fmt.Fprintf(w, `{"keys":[{"kty":"EC","crv":"P-256","kid":"k1","x":%q,"y":%q}]}`, encode(point[1:33]), encode(point[33:]))
		default:
			http.NotFound(w, r)
		}
	}))
	defer provider.Close()
	node := standIn(t)
	e := &edge{Account: testAccount(t), Key: newTestKey(t), Reads: newTestKey(t)}
	extra := fmt.Sprintf("auth: {issuers: [{issuer: %q, audience: streams, account_claim: org, accounts: [%s]}]}\n", provider.URL+"/tenant", e.Account)
	path := filepath.Join(t.TempDir(), "sluice.yaml")
	writeFile(t, path, edgeFile(e, []string{node}, extra))
	e.start(t, edgeFile(e, []string{node}, extra), func() (*config.Config, error) {
		return config.Load(path, config.Options{Grammar: grammar()})
	})
	mint := func(account string) string {
		token := jwt.NewWithClaims(jwt.SigningMethodES256, jwt.MapClaims{
			"iss": provider.URL + "/tenant", "aud": []string{"streams"}, "sub": "user-1", "client_id": "app", "org": account, "scope": "streams:read",
			"iat": time.Now().Unix(), "exp": time.Now().Add(time.Minute).Unix(), "jti": "1",
		})
		token.Header["typ"], token.Header["kid"] = "at+jwt", "k1"
		text, err := token.SignedString(private)
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	read := func(token string) reply {
		return e.doAs(t, http1(), token, http.MethodGet, e.path("json"), nil)
	}
	mine := mint(e.Account)
	eventually(t, "its tokens are taken", func() bool { return read(mine).StatusCode == http.StatusOK })
	want(t, read(mint("other-account")), http.StatusUnauthorized)
	child := e.token(t, mine)
	want(t, read(child), http.StatusOK)
	res := e.open(t.Context(), t, http2(), child, http.MethodGet, e.path("json")+"?offset=now&live=sse", nil)
	defer func() { _ = res.Body.Close() }()
	events := bufio.NewReader(res.Body)
	readEvent(t, events)
	writeFile(t, path, edgeFile(e, []string{node}, ""))
	want(t, e.admin(t, http.MethodPost, "/reload"), http.StatusOK)
	if text, err := io.ReadAll(events); err != nil || string(text) != lastEvent {
		t.Errorf("the tail: %q %v", text, err)
	}
	want(t, read(mine), http.StatusUnauthorized)
	want(t, read(child), http.StatusUnauthorized)
	want(t, e.do(t, http.MethodGet, e.path("json"), nil), http.StatusOK)
}

// A19, by the program's own default: what spins is told to come back, and what is
// good behind the same address is not.
func TestFailedCredentialsAreLimited(t *testing.T) {
	e := newEdge(t, standIn(t))
	told := map[int]int{}
	for range 100 {
		told[e.doAs(t, http1(), "tbo_nonsense", http.MethodGet, e.path("json"), nil).StatusCode]++
	}
	if told[401] < 60 || told[429] == 0 || told[401]+told[429] != 100 {
		t.Errorf("100 bad credentials were answered %v", told)
	}
	want(t, e.do(t, http.MethodGet, e.path("json"), nil), http.StatusOK)
}
