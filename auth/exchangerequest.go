package auth

import (
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"sluice/internal/secret"
	"sluice/internal/tenant"
)

// Identifiers of RFC 8693.
const (
	// GrantTokenExchange is the only grant there is (§2.1).
	GrantTokenExchange = "urn:ietf:params:oauth:grant-type:token-exchange" //nolint:gosec // a name, no credential
	// TypeAccessToken and TypeJWT are token types (§3). An API key is an access
	// token; a signed token is either.
	TypeAccessToken = "urn:ietf:params:oauth:token-type:access_token" //nolint:gosec // a name, no credential
	TypeJWT         = "urn:ietf:params:oauth:token-type:jwt"
)

// Bounds of a request for a token.
const (
	// MinTokenLifetime is the shortest life that may be asked for; the longest is
	// tenant.MaxTokenLife (design §5).
	MinTokenLifetime = 30 * time.Second
	// DefaultTokenLifetime is that of a token whose life nobody chose.
	DefaultTokenLifetime = 10 * time.Minute

	maxResources = 256 // "resource" parameters
)

// Codes of exchange errors (RFC 6749 §5.2, RFC 8693 §2.2.2, RFC 8707 §2).
const (
	CodeInvalidRequest       = "invalid_request"
	CodeInvalidGrant         = "invalid_grant"
	CodeInvalidScope         = "invalid_scope"
	CodeInvalidTarget        = "invalid_target"
	CodeUnsupportedGrantType = "unsupported_grant_type"
	// CodeTemporarilyUnavailable says that it could not be told now whether the
	// exchange is allowed; nothing is wrong with the request. It is RFC 6749's for
	// another endpoint (§4.1.2.1), for want of one here.
	CodeTemporarilyUnavailable = "temporarily_unavailable"
)

// ExchangeError is a refusal in the shape that OAuth clients read. It never
// repeats what was sent.
type ExchangeError struct {
	Code        string // one of the Code constants
	Description string // for the client's developer: what to do, without '"' and '\'
	cause       error
}

// Error has the description and the cause, for the log.
func (e *ExchangeError) Error() string {
	text := e.Code + ": " + e.Description
	if e.cause != nil {
		text += ": " + e.cause.Error()
	}
	return text
}

// Unwrap is the cause: one of the errors of authentication, or nil.
func (e *ExchangeError) Unwrap() error { return e.cause }

func refuse(code, description string) *ExchangeError {
	return &ExchangeError{Code: code, Description: description}
}

// ExchangeRequest is a token exchange as it was asked for: read, and checked as
// far as that needs nothing but itself.
type ExchangeRequest struct {
	SubjectToken secret.Secret // exported, since fmt prints the inside of what is not

	scopes     []string // none = the parent's
	resources  []string // none = all that the parent reaches
	audiences  []string
	lifetime   time.Duration // 0 = the default
	issuedType string
}

// ParseExchange reads the parameters of a token exchange (RFC 8693 §2.1). It
// takes those of the body, and only them: what stands in a URL is written to
// logs. Parameters that it does not know, "client_id" and "client_secret" too,
// are passed over (RFC 6749 §3.2); those without a value are as if omitted, but
// for "resource", which must never widen by being empty.
func ParseExchange(form url.Values) (ExchangeRequest, *ExchangeError) {
	var r ExchangeRequest
	for name, values := range form {
		if len(values) > 1 && name != "resource" && name != "audience" {
			return r, refuse(CodeInvalidRequest, "a parameter is given more than once")
		}
	}
	switch form.Get("grant_type") {
	case GrantTokenExchange:
	case "":
		return r, refuse(CodeInvalidRequest, "grant_type is missing")
	default:
		return r, refuse(CodeUnsupportedGrantType, "grant_type must be "+GrantTokenExchange)
	}
	if form.Get("actor_token") != "" || form.Get("actor_token_type") != "" {
		return r, refuse(CodeInvalidRequest, "actor_token is not supported")
	}
	if err := r.readSubject(form); err != nil {
		return r, err
	}
	if err := r.readScope(form.Get("scope")); err != nil {
		return r, err
	}
	if r.resources = form["resource"]; len(r.resources) > maxResources {
		return r, refuse(CodeInvalidTarget, "there are more than "+strconv.Itoa(maxResources)+" resources")
	}
	r.audiences = slices.DeleteFunc(slices.Clone(form["audience"]), func(s string) bool { return s == "" })
	err := r.readLifetime(form.Get("expires_in"))
	return r, err
}

func (r *ExchangeRequest) readSubject(form url.Values) *ExchangeError {
	subject := form.Get("subject_token")
	if subject == "" {
		return refuse(CodeInvalidRequest, "subject_token is missing: send the API key or the token to exchange")
	}
	isKey := strings.HasPrefix(subject, KeyPrefix)
	switch form.Get("subject_token_type") {
	case TypeAccessToken:
	case TypeJWT:
		if isKey {
			return refuse(CodeInvalidRequest, "subject_token_type of an API key is "+TypeAccessToken)
		}
	case "":
		return refuse(CodeInvalidRequest, "subject_token_type is missing: it is "+TypeAccessToken)
	default:
		return refuse(CodeInvalidRequest, "subject_token_type must be "+TypeAccessToken)
	}
	switch form.Get("requested_token_type") {
	case "", TypeAccessToken:
		r.issuedType = TypeAccessToken
	case TypeJWT:
		r.issuedType = TypeJWT
	default:
		return refuse(CodeInvalidRequest, "requested_token_type must be "+TypeAccessToken)
	}
	r.SubjectToken = secret.New(subject)
	return nil
}

func (r *ExchangeRequest) readScope(text string) *ExchangeError {
	r.scopes = splitScopes(text)
	for _, s := range r.scopes {
		if s != ScopeRead && s != ScopeWrite {
			return refuse(CodeInvalidScope, "scope is made of "+ScopeRead+" and "+ScopeWrite)
		}
	}
	if text != "" && len(r.scopes) == 0 {
		return refuse(CodeInvalidScope, "scope is blank: leave it out to get the scope of the subject token")
	}
	return nil
}

func (r *ExchangeRequest) readLifetime(text string) *ExchangeError {
	if text == "" {
		return nil
	}
	seconds, err := strconv.ParseUint(text, 10, 32)
	r.lifetime = time.Duration(seconds) * time.Second
	if err != nil || r.lifetime < MinTokenLifetime || r.lifetime > tenant.MaxTokenLife {
		return refuse(CodeInvalidRequest, "expires_in is a whole number of seconds from 30 to 3600")
	}
	return nil
}

// streams is the set of streams that the resources name, in that account of
// that origin. A resource is a stream's URL, as it is, or such a URL whose name
// ends in "*", as the names in a key do.
func (r *ExchangeRequest) streams(origin string, account tenant.AccountID) (tenant.StreamSet, *ExchangeError) {
	if len(r.resources) == 0 {
		return tenant.AllStreams(), nil
	}
	const what = "a resource is the URL of a stream of the subject token's account, as in https://host/account/s.name"
	prefix := origin + tenant.StreamPath(account, "")
	names := make([]string, 0, len(r.resources))
	for _, resource := range r.resources {
		name, ok := strings.CutPrefix(resource, prefix)
		if !ok || tenant.CheckStreamPath(account, tenant.StreamName(strings.TrimSuffix(name, "*"))) != nil {
			return tenant.StreamSet{}, refuse(CodeInvalidTarget, what)
		}
		names = append(names, name)
	}
	slices.Sort(names)
	set, err := tenant.ParseStreamSet(slices.Compact(names))
	if err != nil {
		return tenant.StreamSet{}, refuse(CodeInvalidTarget, what)
	}
	return set, nil
}
