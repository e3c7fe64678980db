package gateway

import (
	"fmt"

	"sluice/internal/tenant"
)

// The generated table of issue 3: every route, credential, stream and account
// state against what the documents say. matrixRow.expect is the oracle; it knows
// nothing of parseRoute, auth.Decide or the refusal table.

// matrixRow is one request. {stream} in its target is the stream's path, {token}
// and {offset} are its incarnation and the offset of its snapshot.
type matrixRow struct {
	method, target string
	class          rowClass
	allow          string // with rowNotAllowed
	headers        []string
}

// rowClass is what design §3 makes of a request.
type rowClass int

const (
	rowReads rowClass = iota
	rowReadsImmutable
	rowWrites
	rowLifecycle
	rowNotFound
	rowNotAllowed
	rowBadRequest
	rowBadQuery
)

func (r matrixRow) String() string { return r.method + " " + r.target }

// matrixRows spells design §3's table out, each path with each method, and what
// stands beside the table.
func matrixRows() []matrixRow {
	var rows []matrixRow
	for _, p := range []struct {
		path, allow string
		methods     map[string]rowClass
	}{
		{"{stream}", "GET, HEAD, POST, PUT, DELETE", map[string]rowClass{"GET": rowReads, "HEAD": rowReads, "POST": rowWrites, "PUT": rowLifecycle, "DELETE": rowLifecycle}},
		{"{stream}/incarnation/{token}/chunk/00000000000000000000", "GET, HEAD", map[string]rowClass{"GET": rowReadsImmutable, "HEAD": rowReadsImmutable}},
		{"{stream}/incarnation/{token}/snapshot/{offset}", "GET, HEAD", map[string]rowClass{"GET": rowReadsImmutable, "HEAD": rowReadsImmutable}},
		{"{stream}/snapshot/{offset}", "GET, HEAD, PUT", map[string]rowClass{"GET": rowReads, "HEAD": rowReads, "PUT": rowWrites}},
		{"{stream}/snapshot/{offset}/parts", "POST", map[string]rowClass{"POST": rowWrites}},
		{"{stream}/snapshot/parts", "DELETE", map[string]rowClass{"DELETE": rowWrites}},
		{"{stream}/retention/0", "PUT", map[string]rowClass{"PUT": rowWrites}},
		{"{stream}/bootstrap", "GET, HEAD", map[string]rowClass{"GET": rowReads, "HEAD": rowReads}},
	} {
		for _, method := range []string{"GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH", "get"} {
			row := matrixRow{method: method, target: p.path, class: rowNotAllowed, allow: p.allow}
			if c, ok := p.methods[method]; ok {
				row.class, row.allow = c, ""
			}
			if row.method == "POST" && p.path == "{stream}" {
				// Repeated, it answers the same each time.
				row.headers = []string{"Producer-Id", "matrix", "Producer-Epoch", "0", "Producer-Seq", "0"}
			}
			rows = append(rows, row)
		}
	}
	both := func(c rowClass, targets ...string) {
		for _, target := range targets {
			rows = append(rows, matrixRow{method: "GET", target: target, class: c}, matrixRow{method: "HEAD", target: target, class: c})
		}
	}
	both(rowReads, "{stream}?offset=-1", "{stream}?offset=-1&live=sse", "{stream}?offset=now&live=long-poll&timeout_ms=1")
	both(rowNotFound, "{stream}/records", "{stream}/snapshot", "/{account}", "/{account}/priv", "/", "/v1/streams", "/.well-known/other.json", "/__ursula/live")
	both(rowBadRequest, "{stream}/", "{stream}/../s.pub", "{stream}%2e", "/{account}/s.-x", "/ABC/s.priv", "{stream}/snapshot/1_0", "{stream}/incarnation/~/chunk/0")
	both(rowBadQuery, "{stream}?live=sse&live=sse", "{stream}?offset=1&%6fffset=1", "{stream}?live=websocket", "{stream}?a;b", "{stream}/bootstrap?x=%zz")
	for _, method := range []string{"POST", "DELETE", "OPTIONS"} {
		rows = append(rows,
			matrixRow{method: method, target: "{stream}/records", class: rowNotFound},
			matrixRow{method: method, target: "{stream};x", class: rowBadRequest})
	}
	return rows
}

// matrixCell is a row's request by one credential for one stream of one account.
type matrixCell struct {
	row        matrixRow
	credential string
	stream     string // priv, pub, missing
	state      tenant.State
}

func (c matrixCell) String() string {
	return fmt.Sprintf("%s [%s, %s stream, %s account]", c.row, c.credential, c.stream, c.state)
}

// verdict of the oracle; a status of 0 is the node's answer, whatever it is.
type matrixVerdict struct {
	status    int
	code      string
	challenge string // what the WWW-Authenticate of a 401 must hold
}

// expect is the oracle: the request path of design §2 as prose has it.
func (c matrixCell) expect() matrixVerdict {
	// What does not parse is refused whoever asks (§2, §3).
	switch c.row.class {
	case rowNotFound:
		return matrixVerdict{status: 404, code: "NOT_FOUND"}
	case rowNotAllowed:
		return matrixVerdict{status: 405, code: "METHOD_NOT_ALLOWED"}
	case rowBadRequest:
		return matrixVerdict{status: 400, code: "INVALID_REQUEST"}
	case rowBadQuery:
		return matrixVerdict{status: 400, code: "INVALID_QUERY"}
	case rowReads, rowReadsImmutable, rowWrites, rowLifecycle:
	}
	// A broken credential is not no credential, on a public stream either (§5, A18).
	switch c.credential {
	case "malformed", "unknown", "revoked", "agent":
		return matrixVerdict{status: 401, code: "INVALID_CREDENTIAL", challenge: `error="invalid_token"`}
	case "expired":
		return matrixVerdict{status: 401, code: "CREDENTIAL_EXPIRED", challenge: `error="invalid_token"`}
	}
	writing := c.row.class == rowWrites || c.row.class == rowLifecycle
	reached := false // by the credential's own right
	switch c.credential {
	case "full", "covering":
		reached = true
	case "read":
		reached = !writing
	case "narrowed", "other", "none":
	}
	if !reached && (writing || c.stream != "pub") {
		if c.credential == "none" {
			return matrixVerdict{status: 401, code: "INVALID_CREDENTIAL", challenge: "Bearer"}
		}
		return matrixVerdict{status: 403, code: "FORBIDDEN"}
	}
	switch {
	case c.state == tenant.Unpaid:
		return matrixVerdict{status: 402, code: "PAYMENT_REQUIRED"}
	case c.state == tenant.Revoked:
		return matrixVerdict{status: 403, code: "ACCOUNT_REVOKED"}
	case c.row.class == rowLifecycle:
		return matrixVerdict{status: 403, code: "STREAM_LIFECYCLE"}
	}
	return matrixVerdict{}
}
