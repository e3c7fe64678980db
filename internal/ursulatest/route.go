package ursulatest

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"unicode/utf8"
)

// operatorPrefix starts the operator paths, which keep their own plain answers.
const operatorPrefix = "/__ursula/"

// target is a matched client route: the decoded parameters of facts §1.2.
type target struct {
	bucket, stream string
	offset, token  string // raw parameter, "" where the route has none
	raw            string // request target in origin form, for redirects
	query          string
	hasQuery       bool // also for a bare "?"
	handler        func(*Node, *request) *answer
}

// request is one client request with its route.
type request struct {
	*http.Request
	target
	w http.ResponseWriter
}

func (t target) id() string { return t.bucket + "/" + t.stream }

// originForm reduces an absolute-form target to path and query and drops a
// fragment, as the node's HTTP library does (facts §1.3).
func originForm(raw string) string {
	if !strings.HasPrefix(raw, "/") {
		if _, rest, ok := strings.Cut(raw, "://"); ok {
			if i := strings.IndexAny(rest, "/?"); i < 0 {
				raw = "/"
			} else {
				raw = rest[i:]
			}
		}
	}
	raw, _, _ = strings.Cut(raw, "#")
	return raw
}

// methods maps a method to its handler, in the order of the Allow header.
type methods []struct {
	name   string
	handle func(*Node, *request) *answer
}

// match finds the route of a path. allow is nil when no route has it; params are
// undecoded: bucket, stream, token, offset.
func match(path string) (m methods, params [4]string) {
	if !strings.HasPrefix(path, "/") || strings.HasSuffix(path, "/") {
		return nil, params // the last parameter is never empty
	}
	s := strings.Split(path[1:], "/")
	params[0] = s[0]
	if len(s) > 1 {
		params[1] = s[1]
	}
	switch {
	case len(s) == 1:
		return methods{{http.MethodPut, (*Node).createBucket}}, params
	case len(s) == 2:
		return streamMethods(), params
	case len(s) == 3 && s[2] == "snapshot":
		return methods{{"", (*Node).removedSnapshot}}, params
	case len(s) == 3 && s[2] == "bootstrap":
		return methods{{http.MethodGet, (*Node).bootstrap}, {http.MethodHead, (*Node).bootstrap}}, params
	case len(s) == 4 && s[2] == "snapshot" && s[3] == "parts":
		return methods{{http.MethodDelete, (*Node).discardParts}}, params
	case len(s) == 4 && s[2] == "snapshot":
		params[3] = s[3]
		return methods{
			{http.MethodPut, (*Node).publishSnapshot},
			{http.MethodGet, (*Node).readSnapshot},
			{http.MethodHead, (*Node).readSnapshot},
		}, params
	case len(s) == 4 && s[2] == "retention":
		params[3] = s[3]
		return methods{{http.MethodPut, (*Node).advanceRetention}}, params
	case len(s) == 5 && s[2] == "snapshot" && s[4] == "parts":
		params[3] = s[3]
		return methods{{http.MethodPost, (*Node).stagePart}}, params
	case len(s) == 6 && s[2] == "incarnation" && (s[4] == "chunk" || s[4] == "snapshot"):
		params[2], params[3] = s[3], s[5]
		h := (*Node).readChunk
		if s[4] == "snapshot" {
			h = (*Node).readImmutableSnapshot
		}
		return methods{{http.MethodGet, h}, {http.MethodHead, h}}, params
	}
	return nil, params
}

func streamMethods() methods {
	return methods{
		{http.MethodPut, (*Node).create},
		{http.MethodPost, (*Node).appendTo},
		{http.MethodGet, (*Node).read},
		{http.MethodHead, (*Node).head},
		{http.MethodDelete, (*Node).delete},
	}
}

// find matches a request to its route, or gives the router's refusal.
func find(method, raw string) (target, *answer) {
	path, query, hasQuery := strings.Cut(raw, "?")
	ms, params := match(path)
	if ms == nil {
		return target{}, unrendered(http.StatusNotFound, "NOT_FOUND", "no route serves this path")
	}
	t := target{raw: raw, query: query, hasQuery: hasQuery}
	allow := make([]string, 0, len(ms))
	for _, m := range ms {
		if m.name == method || m.name == "" {
			t.handler = m.handle
		}
		allow = append(allow, m.name)
	}
	if t.handler == nil {
		a := unrendered(http.StatusMethodNotAllowed, "METHOD_NOT_ALLOWED", "the route does not serve this method")
		return target{}, a.set("Allow", strings.Join(allow, ","))
	}
	for i, p := range []*string{&t.bucket, &t.stream, &t.token, &t.offset} {
		v, err := url.PathUnescape(params[i])
		if err != nil || !utf8.ValidString(v) {
			return target{}, unrendered(http.StatusBadRequest, "INVALID_REQUEST", "the request is malformed")
		}
		*p = v
	}
	return t, nil
}

// answer is the real answer of the node, behind the faults.
func (n *Node) answer(w http.ResponseWriter, r *http.Request, raw string) {
	if a := n.operator(r.Method, raw); a != nil {
		n.send(w, r, a)
		return
	}
	// A declared size alone decides, before the route (facts §3.1).
	if isWrite(r.Method) && r.ContentLength > maxBody {
		n.send(w, r, tooLarge())
		return
	}
	t, refusal := find(r.Method, raw)
	if refusal != nil {
		n.send(w, r, refusal)
		return
	}
	req := &request{Request: r, target: t, w: w}
	a := t.handler(n, req)
	if a == nil {
		return // a live read wrote its own answer
	}
	drain(r)
	n.send(w, r, a)
}

func isWrite(method string) bool {
	switch method {
	case http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete:
		return true
	}
	return false
}

// drain reads the body of a request that was answered from its head, so that a
// client that sends first reads the answer and keeps the connection. HTTP/2
// and Expect get the answer at once (facts §4.1).
func drain(r *http.Request) {
	if r.ProtoMajor >= 2 || strings.EqualFold(r.Header.Get("Expect"), "100-continue") {
		return
	}
	_, _ = io.CopyN(io.Discard, r.Body, maxBody)
}

// operator answers the operator paths that a gateway may probe (facts §1.5);
// nil for every other path.
func (n *Node) operator(method, raw string) *answer {
	path, _, _ := strings.Cut(raw, "?")
	switch path {
	case operatorPrefix + "live", operatorPrefix + "ready", operatorPrefix + "metrics", operatorPrefix + "placement":
	default:
		return nil
	}
	if method != http.MethodGet && method != http.MethodHead {
		return bare(http.StatusMethodNotAllowed).set("Allow", "GET,HEAD")
	}
	if path == operatorPrefix+"live" {
		return bare(statusNoContent)
	}
	a := bare(http.StatusOK).set(hContentType, "application/json")
	switch path {
	case operatorPrefix + "metrics": // of which only what a gateway reads
		leader, term := n.cluster.leadership()
		a.body = fmt.Appendf(nil, `{"cluster_id":%q,"raft_groups":[{"raft_group_id":0,"node_id":%d,"current_term":%d,"leads_live":%t}]}`,
			n.cluster.id, n.index+1, term, leader == n.index)
		return a
	case operatorPrefix + "placement":
		a.body = fmt.Appendf(nil, `{"node":%d,"view":{"bootstrapped":{"params":{"group_count":1}}}}`, n.index+1)
		return a
	}
	a.body = fmt.Appendf(nil, `{"ready":true,"reason":null,"cluster_id":%q,"peer_cluster_mismatches":[],`+
		`"format_epoch_mismatch":false,"recovery_barriers_ready":true,"raft_maintenance":null,`+
		`"recovery_stalled_groups":[],"wal_disk_pressure":false,"wal_available_bytes":0,`+
		`"wal_min_available_bytes":0,"wal_resume_available_bytes":0,"wal_disk_stat_errors":0}`, n.cluster.id)
	return a
}

func tooLarge() *answer {
	return refuse(http.StatusRequestEntityTooLarge, "REQUEST_TOO_LARGE",
		fmt.Sprintf("the request body is above the request limit of %d bytes", maxBody)).
		set(hMaxRequest, decimal(maxBody))
}

// readBody reads a write's body within the request limit.
func readBody(r *request) ([]byte, *answer) {
	body, err := io.ReadAll(io.LimitReader(r.Body, maxBody+1))
	if err != nil {
		return nil, refuse(http.StatusBadRequest, "BODY_UNREADABLE", "request body unreadable")
	}
	if len(body) > maxBody {
		return nil, tooLarge()
	}
	return body, nil
}

// replay is a body that was read already.
func replay(body []byte) io.ReadCloser { return io.NopCloser(bytes.NewReader(body)) }
