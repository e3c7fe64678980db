package failover

import (
	"encoding/json"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// Outcome is what one answer says of the write that it answers (facts §5.3).
type Outcome int

// The outcomes of a write.
const (
	Applied Outcome = iota // a 2xx with the receipt
	Refused                // nothing of it applied, or ever will by this request
	Unknown                // it may have applied: repeat under the same key
	Wrong                  // a client can do nothing about it: the trial failed
)

// answer is what a client keeps of an answer.
type answer struct {
	outcome    Outcome
	status     int           // 0 = none came
	code       string        // of the error body; for no answer, why
	retryAfter time.Duration // 0 = not said
	from, to   int64         // the receipt's offsets; -1 = none
	odd        []string      // what no answer may be or carry
}

// label names an answer in a table: its status and code.
func (a answer) label() string {
	if a.status == 0 {
		return a.code
	}
	return strings.TrimSpace(strconv.Itoa(a.status) + " " + a.code)
}

// proving are the codes that prove, at their status, that nothing applied
// (facts §5.3), as far as an append can meet them.
func proving(status int, code string) bool {
	switch status {
	case http.StatusRequestTimeout:
		return code == "BODY_TOO_SLOW"
	case http.StatusServiceUnavailable:
		switch code {
		case "NO_LEADER", "WAL_DISK_PRESSURE", "RAFT_LOG_PRESSURE", "INGRESS_BODY_BYTES_LIMIT_REACHED",
			"COLD_BACKPRESSURE", "RAFT_UNCOMMITTED_BACKPRESSURE", "APPLY_STOPPED", "GROUP_RESTARTING",
			"HISTORY_PENDING", "JSON_BOUNDARY_UNVERIFIED", "SNAPSHOT_COMMITS_BUSY",
			"AUTHENTICATION_UNAVAILABLE", "AUTHORIZATION_UNAVAILABLE", "NO_UPSTREAM",
			"UPSTREAM_UNREACHABLE", "UPLOAD_BUDGET_EXHAUSTED":
			return true
		}
	}
	return false
}

// known are the other answers that the contract has for a fault of a node
// (design §4, facts §5.2). A 500 is none: it is a fault of the gateway's own or
// of a node, and no trial gives cause for one.
func known(status int, code string) bool {
	switch status {
	case http.StatusBadGateway:
		return code == "UPSTREAM_FAILED"
	case http.StatusServiceUnavailable:
		return code == "OUTCOME_UNKNOWN" || code == "LIVE_READ_BACKPRESSURE" || code == "SNAPSHOT_COMMIT_IN_PROGRESS"
	case http.StatusGatewayTimeout:
		return code == "UPSTREAM_TIMEOUT"
	}
	return false
}

// judge reads an answer to an append. keyed says whether it had a producer key,
// whose receipt has two offsets.
func judge(r reply, keyed bool) answer {
	a := read(r)
	switch {
	case a.status/100 == 2:
		receipt := a.to >= 0 && (a.from >= 0 || !keyed)
		if !receipt {
			a.outcome = Unknown
			a.odd = append(a.odd, a.label()+" without a receipt")
		}
	case proving(a.status, a.code):
		a.outcome = Refused
	case a.status == http.StatusRequestTimeout || a.status/100 == 5:
		a.outcome = Unknown
	default:
		a.outcome = Wrong
	}
	return a
}

// read takes the parts of any answer, and notes what the contract forbids.
func read(r reply) answer {
	a := answer{status: r.status, from: offsetOf(r.header, "Stream-Offset"), to: offsetOf(r.header, "Stream-Next-Offset")}
	if a.status >= 400 {
		a.code = codeOf(r.body)
		if !proving(a.status, a.code) && !known(a.status, a.code) {
			a.odd = append(a.odd, "answer "+a.label())
		}
	}
	if seconds, err := strconv.Atoi(r.header.Get("Retry-After")); err == nil && seconds >= 0 {
		a.retryAfter = time.Duration(seconds) * time.Second
	} else if a.status == http.StatusTooManyRequests || a.status == http.StatusServiceUnavailable {
		a.odd = append(a.odd, a.label()+" without Retry-After")
	}
	if got := r.header.Get("Cache-Control"); got != "no-store" {
		a.odd = append(a.odd, "Cache-Control "+strconv.Quote(got))
	}
	for name := range r.header {
		if strings.HasPrefix(name, "X-Ursula-") || name == "Location" {
			a.odd = append(a.odd, "header "+name)
		}
	}
	if a.status >= 400 && strings.Contains(string(r.body), "127.0.0.1") {
		a.odd = append(a.odd, a.label()+" names an address")
	}
	return a
}

// codeOf is the code of an error body; "" for a body of another shape.
func codeOf(body []byte) string {
	var shape struct {
		Error struct{ Code string } `json:"error"`
	}
	_ = json.Unmarshal(body, &shape) // no code is odd enough
	return shape.Error.Code
}

// offsetOf is an offset header's value, or -1.
func offsetOf(h http.Header, name string) int64 {
	n, err := strconv.ParseInt(h.Get(name), 10, 64)
	if err != nil || n < 0 {
		return -1
	}
	return n
}
