package auth

import (
	"errors"
	"fmt"
)

// Errors of authentication. A caller answers by the first four; the others tell
// a log why.
var (
	// ErrInvalidCredential is a credential that is malformed, of another scheme,
	// unknown, revoked or not for direct use. Never "anonymous": a broken
	// credential is not no credential.
	ErrInvalidCredential = errors.New("invalid credential")
	// ErrCredentialExpired is a known credential at or past its expiry. It does
	// not wrap ErrInvalidCredential.
	ErrCredentialExpired = errors.New("credential expired")
	// ErrUnavailable says that it could not be told whether the credential is
	// good; it wraps the cause too.
	ErrUnavailable = errors.New("authentication unavailable")
	// ErrNoCredential is an anonymous request for what needs a credential.
	ErrNoCredential = errors.New("credential required")

	// ErrSeveralCredentials is more than one Authorization header (H05).
	ErrSeveralCredentials = fmt.Errorf("%w: more than one Authorization header", ErrInvalidCredential)
	// ErrMalformedCredential is an Authorization header that is empty or not
	// "Bearer" and one token.
	ErrMalformedCredential = fmt.Errorf("%w: not of the form \"Bearer TOKEN\"", ErrInvalidCredential)
	// ErrScheme is a scheme other than Bearer.
	ErrScheme = fmt.Errorf("%w: the scheme is not Bearer", ErrInvalidCredential)
	// ErrMalformedKey is a text that is not an API key: prefix, length, alphabet
	// or checksum is wrong.
	ErrMalformedKey = fmt.Errorf("%w: not a well-formed API key", ErrInvalidCredential)
	// ErrUnknownKey is a well-formed key that the directory does not hold.
	ErrUnknownKey = fmt.Errorf("%w: unknown API key", ErrInvalidCredential)
	// ErrRevokedKey is a key that was revoked, expired or not.
	ErrRevokedKey = fmt.Errorf("%w: revoked API key", ErrInvalidCredential)
	// ErrAgentKey is a key that is good for the token exchange only.
	ErrAgentKey = fmt.Errorf("%w: an agent's key is not for direct use", ErrInvalidCredential)
)

// Reasons for which a signed token is refused; all wrap ErrInvalidCredential and
// are for the log, some with the name of a claim behind them.
var (
	// ErrMalformedToken is a text that is not a signed JWT in compact form: its
	// segments, their alphabet, their JSON, a member that stands twice.
	ErrMalformedToken = fmt.Errorf("%w: not a well-formed token", ErrInvalidCredential)
	// ErrTokenHeader is a header with "crit", or without a usable "kid".
	ErrTokenHeader = fmt.Errorf("%w: the token's header is not accepted", ErrInvalidCredential)
	// ErrTokenType is a JWT that is not an access token (A05).
	ErrTokenType = fmt.Errorf("%w: not an access token", ErrInvalidCredential)
	// ErrTokenAlgorithm is an algorithm that is not taken at all, or not with
	// this key (A01, A02).
	ErrTokenAlgorithm = fmt.Errorf("%w: the token's algorithm is not accepted", ErrInvalidCredential)
	// ErrTokenClaims is a claim that is missing, or not of the form or size that
	// it must have.
	ErrTokenClaims = fmt.Errorf("%w: the token's claims are not accepted", ErrInvalidCredential)
	// ErrTokenIssuer is a token of somebody who is no issuer here.
	ErrTokenIssuer = fmt.Errorf("%w: the token's issuer is not known", ErrInvalidCredential)
	// ErrTokenAudience is a token made for somebody else.
	ErrTokenAudience = fmt.Errorf("%w: the token is for another audience", ErrInvalidCredential)
	// ErrTokenKey is a token signed with a key that its issuer does not have, or
	// has no more.
	ErrTokenKey = fmt.Errorf("%w: the token's key is not known", ErrInvalidCredential)
	// ErrTokenSignature is a signature that is wrong.
	ErrTokenSignature = fmt.Errorf("%w: the token's signature is wrong", ErrInvalidCredential)
	// ErrTokenNotYet is a token that is issued or valid in the future, beyond the
	// leeway.
	ErrTokenNotYet = fmt.Errorf("%w: the token is not valid yet", ErrInvalidCredential)
	// ErrTokenAccount is an account that the token's issuer may not name.
	ErrTokenAccount = fmt.Errorf("%w: the token's issuer may not name its account", ErrInvalidCredential)
	// ErrRevokedToken is a token made from a key that was revoked, or lost
	// rights, since.
	ErrRevokedToken = fmt.Errorf("%w: the token was revoked with its key", ErrInvalidCredential)
)

// Errors of access. ErrForbidden is what a client is told; the reasons wrap it
// and are for the log only, since to a stranger all of them must look the same
// (A16).
var (
	// ErrForbidden is a good credential that does not reach the stream with this
	// operation.
	ErrForbidden = errors.New("forbidden")
	// ErrOtherAccount is another account's stream, existing or not.
	ErrOtherAccount = fmt.Errorf("%w: another account's stream", ErrForbidden)
	// ErrNotAmongStreams is a stream that the credential is not narrowed to.
	ErrNotAmongStreams = fmt.Errorf("%w: not among the credential's streams", ErrForbidden)
	// ErrReadOnly is a write with a credential that only reads.
	ErrReadOnly = fmt.Errorf("%w: the credential reads only", ErrForbidden)
	// ErrNoAccess is a credential whose access is neither read nor write.
	ErrNoAccess = fmt.Errorf("%w: the credential grants no access", ErrForbidden)
)
