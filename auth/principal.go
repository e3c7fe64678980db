package auth

import (
	"time"

	"sluice/internal/tenant"
)

// The scopes of a token (design §5). Writing includes reading.
const (
	ScopeRead  = "streams:read"
	ScopeWrite = "streams:write"
)

// Principal is who a credential stands for. Values are never changed once
// handed out and may be shared between goroutines.
type Principal struct {
	// KeyID is the id of the API key, for logs, rates and revocation; not secret.
	// A token has that of the key it was made from, over any chain of exchanges.
	// Where another issuer's token began the chain it is "{iss}#{client_id}",
	// which no directory knows.
	KeyID     string
	Account   tenant.AccountID // whose streams it reaches
	Access    tenant.Access    // write includes reading; anything unknown reaches nothing
	Streams   tenant.StreamSet // the zero value reaches none
	ActsAs    tenant.ActsAs    // of a key; User for every token
	ExpiresAt time.Time        // the credential is dead at and after this; zero = never

	// Of tokens only.
	TokenID string   // "jti"
	Issuer  string   // "iss"
	Subject string   // "sub"; who it is only together with Issuer (facts J7)
	Scopes  []string // "scope", each once

	// What it stands on, to look at again without the credential's text.
	digest  tenant.Digest // of a key
	grounds *grounds      // of a token
}

// grounds are what a token stands on.
type grounds struct {
	issuedAt     time.Time // "iat"
	key          any       // what a token's signature was verified with, by pointer
	kid          string
	audience     []string // of another issuer's token
	accountClaim string   // the claim that named its account
	root         *root    // of our token, where a chain of exchanges began with another issuer's
}

// root names the token of another issuer that began a chain of exchanges.
type root struct {
	Issuer string `json:"iss"`
	KeyID  string `json:"kid"` // of the issuer's key that signed it
}

// IsToken reports whether the credential was a token, not a key.
func (p *Principal) IsToken() bool { return p.TokenID != "" }

func keyPrincipal(key *tenant.Key) *Principal {
	return &Principal{
		KeyID: key.ID, Account: key.Account, Access: key.Access,
		Streams: key.Streams, ActsAs: key.ActsAs, ExpiresAt: key.ExpiresAt,
		digest: key.Digest,
	}
}

// accessOf is what scopes allow; of neither it is an access that reaches nothing.
func accessOf(scopes []string) tenant.Access {
	var access tenant.Access
	for _, s := range scopes {
		switch s {
		case ScopeWrite:
			return tenant.WriteAccess
		case ScopeRead:
			access = tenant.ReadAccess
		}
	}
	return access
}
