package auth

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"sluice/internal/secret"
	"sluice/internal/store/memory"
	"sluice/internal/tenant"
)

const rigOrigin = "https://streams.example.com"

// tokenRig is an Authenticator and an Exchanger over a directory in memory, at
// a time that tests move.
type tokenRig struct {
	*Authenticator
	x         *Exchanger
	directory *memory.Directory
	content   memory.Content // what Replace was given last
	signing   tenant.SigningKey
	secrets   map[string]string // API keys by id

	mu  sync.Mutex
	now time.Time
}

// newTokenRig has the accounts acme (active), debt (unpaid) and gone (revoked),
// and a key "acme/full" of acme that reaches everything.
func newTokenRig(t testing.TB, issuers *Issuers) *tokenRig {
	t.Helper()
	r := &tokenRig{secrets: make(map[string]string), now: time.Date(2026, 6, 1, 12, 0, 0, 300e6, time.UTC)}
	var err error
	if r.signing, err = tenant.GenerateSigningKey(rand.Reader); err != nil {
		t.Fatal(err)
	}
	r.content = memory.Content{
		Accounts: []tenant.Account{
			{ID: "acme", State: tenant.Active},
			{ID: "other", State: tenant.Active},
			{ID: "debt", State: tenant.Unpaid},
			{ID: "gone", State: tenant.Revoked},
		},
		SigningKeys: []tenant.SigningKey{r.signing},
	}
	if r.directory, err = memory.Open(memory.Options{Content: r.content, Now: r.clock}); err != nil {
		t.Fatal(err)
	}
	r.key(t, "acme/full", nil)
	r.Authenticator = New(Options{Directory: r.directory, Now: r.clock, Origin: rigOrigin, Issuers: issuers})
	r.x = NewExchanger(ExchangeOptions{Authenticator: r.Authenticator})
	return r
}

func (r *tokenRig) clock() time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.now
}

func (r *tokenRig) pass(d time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.now = r.now.Add(d)
}

// key adds an API key, or changes the one of that id, and returns its secret.
func (r *tokenRig) key(t testing.TB, id string, edit func(*tenant.Key)) string {
	t.Helper()
	if r.secrets[id] == "" {
		r.secrets[id] = newKey(t)
	}
	account, _, _ := strings.Cut(id, "/")
	k := tenant.Key{
		ID: id, Account: tenant.AccountID(account), Digest: tenant.DigestOf(r.secrets[id]),
		Access: tenant.WriteAccess, Streams: tenant.AllStreams(), ActsAs: tenant.User,
	}
	if edit != nil {
		edit(&k)
	}
	r.content.Keys = slices.DeleteFunc(slices.Clone(r.content.Keys), func(k tenant.Key) bool { return k.ID == id })
	r.content.Keys = append(r.content.Keys, k)
	r.replace(t)
	return r.secrets[id]
}

func (r *tokenRig) replace(t testing.TB) {
	t.Helper()
	if err := r.directory.Replace(r.content); err != nil {
		t.Fatal(err)
	}
}

// exchange asks for a token by the parameters given in pairs, over good ones.
func (r *tokenRig) exchange(t testing.TB, subject string, pairs ...string) (*ExchangeResponse, *ExchangeError) {
	t.Helper()
	req, err := ParseExchange(exchangeForm(subject, pairs...))
	if err != nil {
		return nil, err
	}
	return r.x.Exchange(t.Context(), req)
}

func exchangeForm(subject string, pairs ...string) url.Values {
	form := url.Values{
		"grant_type": {GrantTokenExchange}, "subject_token": {subject}, "subject_token_type": {TypeAccessToken},
	}
	for pair := range slices.Chunk(pairs, 2) {
		if pair[0] == "resource" || pair[0] == "audience" {
			form.Add(pair[0], pair[1])
		} else {
			form.Set(pair[0], pair[1])
		}
	}
	return form
}

// token is one from the exchange.
func (r *tokenRig) token(t testing.TB, subject string, pairs ...string) string {
	t.Helper()
	res, err := r.exchange(t, subject, pairs...)
	if err != nil {
		t.Fatalf("exchange: %v", err)
	}
	return res.AccessToken.Reveal()
}

// use presents a token as a request does.
func (r *tokenRig) use(t testing.TB, token string) (*Principal, error) {
	t.Helper()
	return r.Authenticate(t.Context(), bearer(token))
}

// members are those of a JOSE header or of a claims set.
type members map[string]any

func (m members) with(pairs ...any) members {
	n := members{}
	for k, v := range m {
		n[k] = v
	}
	for pair := range slices.Chunk(pairs, 2) {
		name, ok := pair[0].(string)
		if !ok {
			panic("not a name")
		}
		if n[name] = pair[1]; pair[1] == nil {
			delete(n, name)
		}
	}
	return n
}

// header and claims of a good token of our own, made by hand.
func (r *tokenRig) header() members {
	return members{"alg": "ES256", "typ": "at+jwt", "kid": r.signing.ID}
}

func (r *tokenRig) claims() members {
	now := r.clock().Unix()
	return members{
		"iss": rigOrigin, "aud": rigOrigin, "sub": "acme/full", "client_id": "acme/full", "account": "acme",
		"scope": "streams:read streams:write", "iat": now, "exp": now + 600, "jti": "id-1",
	}
}

// mint signs what it is given, however wrong it is. A member that is a
// json.RawMessage stands as it is.
func mint(t testing.TB, header, claims any, key crypto.PrivateKey) string {
	t.Helper()
	return mintText(t, jsonOf(t, header), jsonOf(t, claims), key)
}

func jsonOf(t testing.TB, v any) []byte {
	t.Helper()
	text, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func mintText(t testing.TB, header, claims []byte, key crypto.PrivateKey) string {
	t.Helper()
	encode := base64.RawURLEncoding.EncodeToString
	signed := encode(header) + "." + encode(claims)
	var h struct {
		Alg any `json:"alg"`
	}
	_ = json.Unmarshal(header, &h) // a header may be broken on purpose
	m := jwt.GetSigningMethod(fmt.Sprint(h.Alg))
	if k, ok := key.(*ecdsa.PrivateKey); ok { // the header may claim anything
		if m = jwt.SigningMethodES256; k.Curve == elliptic.P384() {
			m = jwt.SigningMethodES384
		}
	}
	signature, err := m.Sign(signed, key)
	if err != nil {
		t.Fatalf("sign with %s: %v", m.Alg(), err)
	}
	return signed + "." + encode(signature)
}

// answer is how the identity provider answers at a URL.
type answer struct {
	status   int
	body     string
	bytes    int64         // more of the body, made as it is read
	location string        // of a redirect
	err      error         // in place of an answer
	hangs    bool          // until the request is given up
	wait     chan struct{} // answers when it is closed
}

func (a answer) response(r *http.Request) (*http.Response, error) {
	if a.wait != nil {
		<-a.wait
	}
	if a.hangs {
		<-r.Context().Done()
		return nil, r.Context().Err()
	}
	if a.err != nil {
		return nil, a.err
	}
	body := io.MultiReader(strings.NewReader(a.body), io.LimitReader(repeat('['), a.bytes))
	return &http.Response{
		StatusCode: a.status, Header: http.Header{"Location": {a.location}}, Body: io.NopCloser(body), Request: r,
	}, nil
}

// keysOK is a good answer.
func keysOK(t testing.TB, keys ...otherKey) answer {
	t.Helper()
	return answer{status: http.StatusOK, body: keySetOf(t, keys...)}
}

// idp is an identity provider without a network: it answers by URL.
type idp struct {
	mu      sync.Mutex
	answers map[string]answer
	asked   []string
}

func newIDP() *idp { return &idp{answers: make(map[string]answer)} }

var errNoRoute = errors.New("no route to host")

// RoundTrip implements http.RoundTripper.
func (p *idp) RoundTrip(r *http.Request) (*http.Response, error) {
	p.mu.Lock()
	at := r.URL.String()
	p.asked = append(p.asked, at)
	a, ok := p.answers[at]
	p.mu.Unlock()
	if !ok {
		return nil, errNoRoute
	}
	return a.response(r)
}

func (p *idp) serve(at string, a answer) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.answers[at] = a
}

// log is what it was asked since the last reset.
func (p *idp) log() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.asked)
}

func (p *idp) reset() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.asked = nil
}

// hits is how often it was asked.
func (p *idp) hits() int { return len(p.log()) }

// otherKey is a signing key of an identity provider.
type otherKey struct {
	kid     string
	alg     string
	private crypto.PrivateKey
	public  members // its JWK
}

func newOtherKey(t testing.TB, kid, alg string) otherKey {
	t.Helper()
	encode := func(n *big.Int, size int) string {
		return base64.RawURLEncoding.EncodeToString(n.FillBytes(make([]byte, size)))
	}
	k := otherKey{kid: kid, alg: alg}
	switch alg[:2] {
	case "ES":
		curve, name, size := elliptic.P256(), "P-256", 32
		if alg == "ES384" {
			curve, name, size = elliptic.P384(), "P-384", 48
		}
		private, err := ecdsa.GenerateKey(curve, rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		point, err := private.PublicKey.Bytes()
		if err != nil {
			t.Fatal(err)
		}
		x, y := new(big.Int).SetBytes(point[1:1+size]), new(big.Int).SetBytes(point[1+size:])
		k.private = private
		k.public = members{"kty": "EC", "crv": name, "x": encode(x, size), "y": encode(y, size)}
	default:
		private, err := rsa.GenerateKey(rand.Reader, 2048)
		if err != nil {
			t.Fatal(err)
		}
		k.private = private
		k.public = members{"kty": "RSA", "n": encode(private.N, 256), "e": "AQAB"}
	}
	k.public = k.public.with("kid", kid, "use", "sig")
	return k
}

func keySetOf(t testing.TB, keys ...otherKey) string {
	t.Helper()
	set := struct {
		Keys []members `json:"keys"`
	}{}
	for _, k := range keys {
		set.Keys = append(set.Keys, k.public)
	}
	return string(jsonOf(t, set))
}

const (
	idpName = "https://idp.example.com/tenant-1"
	idpKeys = "https://idp.example.com/tenant-1/keys"
)

func idpOptions() IssuerOptions {
	return IssuerOptions{
		Issuer: idpName, Audience: "sluice", JWKSURL: idpKeys,
		AccountClaim: "org", Accounts: []tenant.AccountID{"acme", "other"},
	}
}

// otherToken is a good token of the identity provider, changed by pairs.
func otherToken(t testing.TB, k otherKey, now time.Time, pairs ...any) string {
	t.Helper()
	claims := members{
		"iss": idpName, "aud": "sluice", "sub": "user-7", "client_id": "app-1", "org": "acme",
		"scope": "openid streams:read", "iat": now.Unix(), "exp": now.Unix() + 900, "jti": "other-1",
	}
	return mint(t, members{"alg": k.alg, "typ": "at+jwt", "kid": k.kid}, claims.with(pairs...), k.private)
}

func secretOf(text string) secret.Secret { return secret.New(text) }
