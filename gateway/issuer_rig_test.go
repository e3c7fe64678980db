package gateway

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"sluice/auth"
	"sluice/internal/tenant"
)

const (
	idpIssuer   = "https://idp.example.com"
	idpKeys     = idpIssuer + "/keys"
	idpAudience = "streams"
)

func idpOptions() []auth.IssuerOptions {
	return []auth.IssuerOptions{{
		Issuer: idpIssuer, Audience: idpAudience, JWKSURL: idpKeys, AccountClaim: "org", Accounts: []tenant.AccountID{"acme", "other"},
	}}
}

// idp is an identity provider without a network. It implements http.RoundTripper.
type idp struct {
	mu    sync.Mutex
	keys  map[string]*ecdsa.PrivateKey // by their ids; published in full
	fault *idpFault                    // nil = it answers
	asked int
}

// idpFault is how a provider fails.
type idpFault struct {
	err     error // of the exchange
	hangs   bool  // before its head
	status  int
	text    string
	more    int64 // bytes behind text
	endless bool  // the body does not end
}

func newIDP(t testing.TB, kids ...string) *idp {
	t.Helper()
	p := &idp{keys: map[string]*ecdsa.PrivateKey{}}
	for _, kid := range kids {
		p.add(t, kid)
	}
	return p
}

func (p *idp) add(t testing.TB, kid string) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.keys[kid] = private
}

// fail has it fail; nil ends that.
func (p *idp) fail(fault *idpFault) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.fault = fault
}

// RoundTrip implements http.RoundTripper.
func (p *idp) RoundTrip(r *http.Request) (*http.Response, error) {
	p.mu.Lock()
	p.asked++
	fault := p.fault
	p.mu.Unlock()
	if fault == nil {
		text, err := p.document()
		if err != nil {
			return nil, err
		}
		fault = &idpFault{status: http.StatusOK, text: text}
	}
	if fault.hangs {
		<-r.Context().Done()
		return nil, r.Context().Err()
	}
	if fault.err != nil {
		return nil, fault.err
	}
	body := io.MultiReader(strings.NewReader(fault.text), io.LimitReader(endless('x'), fault.more))
	if fault.endless {
		body = stuck{r.Context()}
	}
	return &http.Response{StatusCode: fault.status, Header: http.Header{}, Body: io.NopCloser(body), Request: r}, nil
}

// stuck is a body of which nothing comes.
type stuck struct{ ctx context.Context }

func (s stuck) Read([]byte) (int, error) {
	<-s.ctx.Done()
	return 0, s.ctx.Err()
}

// endless is a body of one byte, again and again.
type endless byte

func (e endless) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = byte(e)
	}
	return len(p), nil
}

func (p *idp) document() (string, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	encode := base64.RawURLEncoding.EncodeToString
	set := map[string][]map[string]string{"keys": {}}
	for kid, k := range p.keys {
		point, err := k.PublicKey.Bytes()
		if err != nil {
			return "", err
		}
		set["keys"] = append(set["keys"], map[string]string{
			"kty": "EC", "crv": "P-256", "kid": kid, "use": "sig", "x": encode(point[1:33]), "y": encode(point[33:]),
		})
	}
	text, err := json.Marshal(set)
	return string(text), err
}

// hits is how often it was asked.
func (p *idp) hits() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.asked
}

// token is a good one of the provider's, for acme, changed by pairs: claims, nil for
// none, and "typ", which is the header's.
func (p *idp) token(t testing.TB, kid string, pairs ...any) string {
	t.Helper()
	now, typ := time.Now(), any("at+jwt")
	claims := jwt.MapClaims{
		"iss": idpIssuer, "aud": idpAudience, "sub": "user-7", "client_id": "app-1", "org": "acme", "scope": "openid streams:read",
		"iat": now.Unix(), "exp": now.Add(15 * time.Minute).Unix(), "jti": "id-1",
	}
	for i := 0; i+1 < len(pairs); i += 2 {
		name, ok := pairs[i].(string)
		if !ok {
			t.Fatalf("%v is no claim's name", pairs[i])
		}
		switch value := pairs[i+1]; {
		case name == "typ":
			typ = value
		case value == nil:
			delete(claims, name)
		default:
			claims[name] = value
		}
	}
	token := jwt.NewWithClaims(jwt.SigningMethodES256, claims)
	token.Header["typ"], token.Header["kid"] = typ, kid
	p.mu.Lock()
	private := p.keys[kid]
	p.mu.Unlock()
	text, err := token.SignedString(private)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

var errNoRoute = errors.New("no route to host")
