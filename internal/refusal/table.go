package refusal

import "net/http"

// Code is the stable, public name of a refusal. Clients branch on it.
type Code string

// The codes of design §4.
const (
	InvalidRequest            Code = "INVALID_REQUEST"
	InvalidQuery              Code = "INVALID_QUERY"
	BodyUnreadable            Code = "BODY_UNREADABLE"
	InvalidCredential         Code = "INVALID_CREDENTIAL"
	CredentialExpired         Code = "CREDENTIAL_EXPIRED"
	PaymentRequired           Code = "PAYMENT_REQUIRED"
	AccountRevoked            Code = "ACCOUNT_REVOKED"
	Forbidden                 Code = "FORBIDDEN"
	StreamLifecycle           Code = "STREAM_LIFECYCLE"
	NotFound                  Code = "NOT_FOUND"
	StreamNotFound            Code = "STREAM_NOT_FOUND"
	KeyNotFound               Code = "API_KEY_NOT_FOUND"
	AccountNotFound           Code = "ACCOUNT_NOT_FOUND"
	MethodNotAllowed          Code = "METHOD_NOT_ALLOWED"
	BodyTooSlow               Code = "BODY_TOO_SLOW"
	StreamTaken               Code = "STREAM_ALREADY_EXISTS_CONFLICT"
	KeyTaken                  Code = "API_KEY_ALREADY_EXISTS_CONFLICT"
	KeyRevoked                Code = "API_KEY_REVOKED_CONFLICT"
	KeyRotation               Code = "API_KEY_ROTATION_CONFLICT"
	AccountTaken              Code = "ACCOUNT_ALREADY_EXISTS_CONFLICT"
	Declared                  Code = "DECLARED_CONFLICT"
	RequestTooLarge           Code = "REQUEST_TOO_LARGE"
	RateLimited               Code = "RATE_LIMITED"
	LiveReadsExhausted        Code = "LIVE_READS_EXHAUSTED"
	UploadsExhausted          Code = "UPLOADS_EXHAUSTED"
	UploadBytesExhausted      Code = "UPLOAD_BYTES_EXHAUSTED"
	Internal                  Code = "INTERNAL"
	UpstreamFailed            Code = "UPSTREAM_FAILED"
	AuthenticationUnavailable Code = "AUTHENTICATION_UNAVAILABLE"
	AuthorizationUnavailable  Code = "AUTHORIZATION_UNAVAILABLE"
	StoreUnavailable          Code = "STORE_UNAVAILABLE"
	NoUpstream                Code = "NO_UPSTREAM"
	UpstreamUnreachable       Code = "UPSTREAM_UNREACHABLE"
	NoLeader                  Code = "NO_LEADER"
	UploadBudgetExhausted     Code = "UPLOAD_BUDGET_EXHAUSTED"
	UpstreamTimeout           Code = "UPSTREAM_TIMEOUT"
)

// Entry is one row of the table: what a code means to a client.
type Entry struct {
	Code    Code
	Status  int
	Message string   // the public sentence; it says what to do next
	When    string   // for docs/errors.md
	Headers []string // headers that come with it beyond those of every refusal
	Outcome string   // what the answer proves about a write: OutcomeNone or OutcomeUnknown
}

// What an answer proves about the write it answers (design §4).
const (
	OutcomeNone    = "nothing was applied, nor will be"
	OutcomeUnknown = "unknown: repeat the same keyed request"
)

// retryAfterNow is the Retry-After of refusals whose cause may pass any moment.
const retryAfterNow = "1"

// Table lists every refusal in the order of its status.
func Table() []Entry {
	return append(clientFaults(), serverFaults()...)
}

func clientFaults() []Entry {
	return []Entry{
		{InvalidRequest, http.StatusBadRequest, "The request does not parse: check its target, its headers and its framing.", "the path, the target's form or the framing does not parse; a PUT of a fork", nil, OutcomeNone},
		{InvalidQuery, http.StatusBadRequest, "The query does not parse: send offset and live at most once, live as sse or long-poll, and no ';'.", "the query does not parse", nil, OutcomeNone},
		{BodyUnreadable, http.StatusBadRequest, "The request body broke off or is not framed as declared; nothing of it was applied. Send it again.", "a body that breaks while it is read, before anything was forwarded", nil, OutcomeNone},
		{InvalidCredential, http.StatusUnauthorized, "A valid API key is needed: send it once, as 'Authorization: Bearer <key>'.", "no credential where one is needed; malformed, unknown or revoked; two Authorization headers; another scheme; an agent's key used directly", []string{"WWW-Authenticate"}, OutcomeNone},
		{CredentialExpired, http.StatusUnauthorized, "The credential has expired: get a new one.", "a key or token past its expiry", []string{"WWW-Authenticate"}, OutcomeNone},
		{PaymentRequired, http.StatusPaymentRequired, "The account is unpaid: settle it with the operator of this service.", "the stream's account is unpaid", nil, OutcomeNone},
		{AccountRevoked, http.StatusForbidden, "The account is revoked: ask the operator of this service.", "the stream's account is revoked", nil, OutcomeNone},
		{Forbidden, http.StatusForbidden, "The credential does not reach this stream with this operation: use one that does.", "another account's stream, existing or not; a stream that is not among the credential's; a write with a credential that reads only", nil, OutcomeNone},
		{StreamLifecycle, http.StatusForbidden, "Streams are created and deleted by the operator of this service, not at the stream URL.", "PUT or DELETE of a stream by someone who may write it, unless streams.lifecycle is protocol", nil, OutcomeNone},
		{NotFound, http.StatusNotFound, "There is no such route: a stream's URL is {origin}/{account}/s.{name}.", "no such route", nil, OutcomeNone},
		{StreamNotFound, http.StatusNotFound, "There is no such stream: list those of the account, or create it.", "a stream that does not exist, or is being deleted", nil, OutcomeNone},
		{KeyNotFound, http.StatusNotFound, "There is no such API key: list those of the account.", "an API key that does not exist", nil, OutcomeNone},
		{AccountNotFound, http.StatusNotFound, "There is no such account: list those that there are.", "an account that does not exist; to the operator only", nil, OutcomeNone},
		{MethodNotAllowed, http.StatusMethodNotAllowed, "This path does not take that method: see the Allow header.", "a known path with another method", []string{"Allow"}, OutcomeNone},
		{BodyTooSlow, http.StatusRequestTimeout, "The request body came too slowly; nothing of it was forwarded. Send it again, faster or in smaller pieces.", "no byte of the body for 30 s, or less than 1024 B/s over 30 s", []string{"Connection: close"}, OutcomeNone},
		{StreamTaken, http.StatusConflict, "The name is taken: choose another, or delete the stream that has it.", "a stream's name that is taken; a PUT or DELETE of a stream that the Management API is just making or deleting (with Retry-After)", nil, OutcomeNone},
		{KeyTaken, http.StatusConflict, "A key that is not revoked has this name: choose another, or revoke that key.", "a key's name that is taken", nil, OutcomeNone},
		{KeyRevoked, http.StatusConflict, "The key is revoked: create another.", "a change of a key that is revoked", nil, OutcomeNone},
		{KeyRotation, http.StatusConflict, "Two secrets of this key are good already, and the older would end at once: wait until old_until, or send end_older.", "a rotation of a key while the one before still overlaps, or of one that has expired", nil, OutcomeNone},
		{AccountTaken, http.StatusConflict, "The id is or was an account's, and is not given out again: choose another.", "an account's id that is or was taken", nil, OutcomeNone},
		{Declared, http.StatusConflict, "The operator's file states this: it is changed there.", "a change of what the operator's file states, a DELETE of its stream too", nil, OutcomeNone},
		{RequestTooLarge, http.StatusRequestEntityTooLarge, "The request body is larger than Ursula-Max-Request-Bytes allows: send it in smaller pieces.", "a body over the account's request_bytes", []string{"Ursula-Max-Request-Bytes"}, OutcomeNone},
		{RateLimited, http.StatusTooManyRequests, "The account's rate is used up: wait for Retry-After seconds.", "more requests than the account's rate and burst allow; too many bad credentials from one address; too many exchanges with one key", []string{"Retry-After", "RateLimit", "RateLimit-Policy"}, OutcomeNone},
		{LiveReadsExhausted, http.StatusTooManyRequests, "The account has as many tails open as it may: close one, or wait for Retry-After seconds.", "more open tails than the account may have", []string{"Retry-After"}, OutcomeNone},
		{UploadsExhausted, http.StatusTooManyRequests, "The account has as many large bodies under way as it may: wait for Retry-After seconds, or send smaller ones.", "more bodies over 1 MiB at one time than the account may send", []string{"Retry-After"}, OutcomeNone},
		{UploadBytesExhausted, http.StatusTooManyRequests, "The account's large bodies under way hold as many bytes as they may: wait for Retry-After seconds, or send smaller ones.", "more bytes of bodies over 1 MiB at one time than the account may send", []string{"Retry-After"}, OutcomeNone},
	}
}

func serverFaults() []Entry {
	return []Entry{
		{Internal, http.StatusInternalServerError, "The gateway failed: repeat a keyed write as it was; tell the operator the request id.", "a fault of the gateway's own", nil, OutcomeUnknown},
		{UpstreamFailed, http.StatusBadGateway, "The storage node broke the exchange: repeat a read, or a keyed write as it was.", "a node broke the exchange", nil, OutcomeUnknown},
		{AuthenticationUnavailable, http.StatusServiceUnavailable, "The credential cannot be checked at the moment: try again after Retry-After seconds.", "the key directory is out of reach", []string{"Retry-After"}, OutcomeNone},
		{AuthorizationUnavailable, http.StatusServiceUnavailable, "Access cannot be checked at the moment: try again after Retry-After seconds.", "the account or stream directory is out of reach", []string{"Retry-After"}, OutcomeNone},
		{StoreUnavailable, http.StatusServiceUnavailable, "What is stored cannot be reached at the moment: look after Retry-After seconds whether a change was made before you repeat it.", "the store is out of reach for the Management API, or for a PUT or DELETE of a stream, of which nothing is sent on then", []string{"Retry-After"}, OutcomeUnknown},
		{NoUpstream, http.StatusServiceUnavailable, "No storage node is configured: try again after Retry-After seconds.", "no node is configured", []string{"Retry-After"}, OutcomeNone},
		{UpstreamUnreachable, http.StatusServiceUnavailable, "No storage node can be reached; nothing was applied. Try again after Retry-After seconds.", "no node takes a connection; the gateway has as many connections open as it can hold, towards clients (server.connections; this one is answered so, and closed) or towards nodes", []string{"Retry-After"}, OutcomeNone},
		{NoLeader, http.StatusServiceUnavailable, "The stream has no leader at the moment; nothing was applied. Try again after Retry-After seconds.", "the nodes redirect, but to none that can be used", []string{"Retry-After"}, OutcomeNone},
		{UploadBudgetExhausted, http.StatusServiceUnavailable, "The gateway is reading as many bodies as it can hold; nothing was applied. Try again after Retry-After seconds.", "limits.body_budget is taken", []string{"Retry-After"}, OutcomeNone},
		{UpstreamTimeout, http.StatusGatewayTimeout, "The storage node did not answer in time: repeat a read, or a keyed write as it was.", "no answer of a node in time", nil, OutcomeUnknown},
	}
}

// byCode is the table by code; it never changes.
var byCode = index(Table())

func index(entries []Entry) map[Code]Entry {
	m := make(map[Code]Entry, len(entries))
	for _, e := range entries {
		m[e.Code] = e
	}
	return m
}

// lookup finds the row of a code. A code without a row is a fault of the
// program and reads as Internal.
func lookup(c Code) Entry {
	if e, ok := byCode[c]; ok {
		return e
	}
	return byCode[Internal]
}
