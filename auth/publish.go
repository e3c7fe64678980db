package auth

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
)

// Where others find what they need to verify our tokens, under the origin.
const (
	JWKSPath     = "/.well-known/jwks.json"
	MetadataPath = "/.well-known/oauth-authorization-server"
)

// publicKey is a key of ours as it is published (RFC 7517): what is secret of
// it has no place here.
type publicKey struct {
	Type      string `json:"kty"`
	Curve     string `json:"crv"`
	X         string `json:"x"`
	Y         string `json:"y"`
	Use       string `json:"use"`
	Algorithm string `json:"alg"`
	ID        string `json:"kid"`
}

// JWKS is the document of our own keys (RFC 7517 §5): those that sign, those
// that will, and those whose tokens may live. The error wraps ErrUnavailable.
func (a *Authenticator) JWKS(ctx context.Context) ([]byte, error) {
	keys, err := a.directory.SigningKeys(ctx)
	if err != nil {
		return nil, fmt.Errorf("%w: signing keys: %w", ErrUnavailable, err)
	}
	set := struct {
		Keys []publicKey `json:"keys"`
	}{Keys: []publicKey{}}
	for _, k := range keys {
		if !k.Verifies(a.now()) {
			continue
		}
		point, err := k.Private.PublicKey.Bytes() // 4, then both coordinates at full width
		if err != nil {
			return nil, fmt.Errorf("%w: signing keys: %w", ErrUnavailable, err)
		}
		half := 1 + len(point)/2
		encode := base64.RawURLEncoding.EncodeToString
		set.Keys = append(set.Keys, publicKey{
			Type: "EC", Curve: "P-256", X: encode(point[1:half]), Y: encode(point[half:]),
			Use: "sig", Algorithm: "ES256", ID: k.ID,
		})
	}
	text, err := json.Marshal(set)
	if err != nil {
		return nil, fmt.Errorf("%w: signing keys: %w", ErrUnavailable, err)
	}
	return text, nil
}

// Metadata is what an authorization server says of itself (RFC 8414 §2).
type Metadata struct {
	Issuer            string   `json:"issuer"`
	TokenEndpoint     string   `json:"token_endpoint"`
	JWKSURI           string   `json:"jwks_uri"`
	GrantTypes        []string `json:"grant_types_supported"`
	TokenEndpointAuth []string `json:"token_endpoint_auth_methods_supported"`
	Scopes            []string `json:"scopes_supported"`
	ResponseTypes     []string `json:"response_types_supported"` // required, and there are none
}

// Metadata is ours, with the exchange at that URL. Clients do not authenticate
// there: the subject token is what is judged.
func (a *Authenticator) Metadata(tokenEndpoint string) Metadata {
	return Metadata{
		Issuer: a.origin, TokenEndpoint: tokenEndpoint, JWKSURI: a.origin + JWKSPath,
		GrantTypes:        []string{GrantTokenExchange},
		TokenEndpointAuth: []string{"none"},
		Scopes:            []string{ScopeRead, ScopeWrite},
		ResponseTypes:     []string{},
	}
}
