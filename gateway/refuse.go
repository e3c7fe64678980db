package gateway

import (
	"errors"
	"net/http"

	"sluice/auth"
	"sluice/gateway/upstream"
	"sluice/internal/refusal"
	"sluice/internal/tenant"
)

// refuse answers a request with an error: the one place where errors become
// answers. Nothing has been written before.
func (c *chain) refuse(s *Scope, r *http.Request, err error) {
	s.cause = err
	if errors.Is(err, errClientGone) || s.answer.status != 0 {
		panic(http.ErrAbortHandler)
	}
	ref := asRefusal(err)
	if errors.Is(err, auth.ErrForbidden) && s.Principal != nil && s.Principal.IsToken() {
		ref = ref.With("WWW-Authenticate", insufficient(s.Route.Operation.Writes()))
	}
	s.cause, s.refused = ref.Cause, ref.Code
	h := s.answer.Header()
	h.Set(requestIDHeader, s.ID)
	// HTTP/2 has no such header: there a refused body ends its stream only.
	if !c.drain(s, r) && r.ProtoMajor == 1 {
		h.Set("Connection", "close")
	}
	if err := refusal.Write(&s.answer, r.Method, ref); err != nil {
		s.end = endClientClosed
		return
	}
	c.linger(s, r)
}

// The challenges of RFC 6750 §3: bare where no credential was sent.
const (
	challenge        = `Bearer realm="streams"`
	challengeInvalid = challenge + `, error="invalid_token", error_description="The credential is malformed, unknown or revoked"`
	challengeExpired = challenge + `, error="invalid_token", error_description="The credential has expired"`
	challengeRequest = challenge + `, error="invalid_request", error_description="Send one Authorization header"`
)

const badCredential = "The credential is malformed, unknown, revoked or not for direct use: send one valid API key or token, once, as 'Authorization: Bearer <credential>'."

// insufficient tells a token's holder what scope would have done (RFC 6750 §3.1).
func insufficient(writes bool) string {
	scope := auth.ScopeRead
	if writes {
		scope = auth.ScopeWrite
	}
	return challenge + `, error="insufficient_scope", error_description="The token does not reach this stream with this operation", scope="` + scope + `"`
}

// asOAuth is the refusal of an exchange, in the shape that OAuth clients read
// (RFC 6749 §5.2). Its code is for logs and metrics.
func asOAuth(e *auth.ExchangeError) *refusal.Refusal {
	code, status := refusal.InvalidRequest, http.StatusBadRequest
	switch e.Code {
	case auth.CodeInvalidGrant:
		code = refusal.InvalidCredential
	case auth.CodeInvalidScope, auth.CodeInvalidTarget:
		code = refusal.Forbidden
	case auth.CodeTemporarilyUnavailable:
		code, status = refusal.AuthenticationUnavailable, http.StatusServiceUnavailable
	}
	ref := refusal.New(code, e)
	ref.OAuth = &refusal.OAuth{Status: status, Error: e.Code, Description: e.Description}
	return ref
}

// asRefusal is the one table from errors to refusals.
func asRefusal(err error) *refusal.Refusal {
	const header = "WWW-Authenticate"
	var own *refusal.Refusal
	var node *upstream.Error
	var exchange *auth.ExchangeError
	switch {
	case errors.As(err, &own):
		return own
	case errors.As(err, &exchange):
		return asOAuth(exchange)
	case errors.Is(err, auth.ErrNoCredential):
		return refusal.New(refusal.InvalidCredential, err).With(header, challenge)
	case errors.Is(err, auth.ErrSeveralCredentials):
		return refusal.Because(refusal.InvalidCredential, "There is more than one Authorization header: send one.", err).With(header, challengeRequest)
	case errors.Is(err, auth.ErrInvalidCredential):
		return refusal.Because(refusal.InvalidCredential, badCredential, err).With(header, challengeInvalid)
	case errors.Is(err, auth.ErrCredentialExpired):
		return refusal.New(refusal.CredentialExpired, err).With(header, challengeExpired)
	case errors.Is(err, auth.ErrUnavailable):
		return refusal.New(refusal.AuthenticationUnavailable, err)
	case errors.Is(err, tenant.ErrUnavailable):
		return refusal.New(refusal.AuthorizationUnavailable, err)
	case errors.Is(err, auth.ErrForbidden):
		return refusal.New(refusal.Forbidden, err)
	case errors.As(err, &node) && node.Kind == upstream.NoRoom:
		return connectionsExhausted(err)
	case errors.As(err, &node):
		return refusal.New(nodeCode(node.Kind), err)
	default:
		return refusal.From(err)
	}
}

// connectionsExhausted is the refusal where the gateway itself has no connection to
// spare. The code is one that clients know: it proves that nothing was applied.
func connectionsExhausted(cause error) *refusal.Refusal {
	return refusal.Because(refusal.UpstreamUnreachable, "The gateway has as many connections open as it can hold; nothing was applied. Try again after Retry-After seconds.", cause)
}

func nodeCode(k upstream.Kind) refusal.Code {
	switch k {
	case upstream.NoUpstream:
		return refusal.NoUpstream
	case upstream.Unreachable, upstream.NoRoom:
		return refusal.UpstreamUnreachable
	case upstream.NoLeader:
		return refusal.NoLeader
	case upstream.TimedOut:
		return refusal.UpstreamTimeout
	case upstream.Failed:
		return refusal.UpstreamFailed
	default:
		return refusal.UpstreamFailed
	}
}
