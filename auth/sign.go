package auth

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"sluice/internal/secret"
	"sluice/internal/tenant"
)

// tokenIDBytes is how much of the randomness is in a "jti".
const tokenIDBytes = 16

var (
	errNoSigningKey = errors.New("no signing key is in force")
	errTokenSize    = fmt.Errorf("the token would be larger than %d bytes", maxToken)
)

// tokenHeader and tokenClaims are a Streams token (design §5, RFC 9068 §2).
type tokenHeader struct {
	Algorithm string `json:"alg"`
	Type      string `json:"typ"`
	KeyID     string `json:"kid"`
}

type tokenClaims struct {
	Issuer   string   `json:"iss"`
	Audience string   `json:"aud"`
	Subject  string   `json:"sub"`
	ClientID string   `json:"client_id"`
	Account  string   `json:"account"`
	Scope    string   `json:"scope"`
	Streams  []string `json:"streams,omitempty"` // missing = all of the account
	IssuedAt int64    `json:"iat"`
	Expires  int64    `json:"exp"`
	ID       string   `json:"jti"`
	Root     *root    `json:"root,omitempty"`
}

// sign makes a token with the key that signs at that time. errTokenSize says
// that nobody would take it; other errors are faults on our side.
func (a *Authenticator) sign(ctx context.Context, c tokenClaims, now time.Time) (secret.Secret, error) {
	keys, err := a.directory.SigningKeys(ctx)
	if err != nil {
		return secret.Secret{}, fmt.Errorf("signing keys: %w", err)
	}
	key, ok := tenant.Signer(keys, now)
	if !ok {
		return secret.Secret{}, errNoSigningKey
	}
	head, err := json.Marshal(tokenHeader{Algorithm: "ES256", Type: "at+jwt", KeyID: key.ID})
	if err != nil {
		return secret.Secret{}, fmt.Errorf("sign a token: %w", err)
	}
	body, err := json.Marshal(c)
	if err != nil {
		return secret.Secret{}, fmt.Errorf("sign a token: %w", err)
	}
	encode := base64.RawURLEncoding.EncodeToString
	signed := encode(head) + "." + encode(body)
	signature, err := jwt.SigningMethodES256.Sign(signed, key.Private)
	if err != nil {
		return secret.Secret{}, fmt.Errorf("sign a token: %w", err)
	}
	token := signed + "." + encode(signature)
	if len(token) > maxToken {
		return secret.Secret{}, errTokenSize
	}
	return secret.New(token), nil
}

func newTokenID(random io.Reader) (string, error) {
	var id [tokenIDBytes]byte
	if _, err := io.ReadFull(random, id[:]); err != nil {
		return "", fmt.Errorf("make a token's id: %w", err)
	}
	return base64.RawURLEncoding.EncodeToString(id[:]), nil
}
