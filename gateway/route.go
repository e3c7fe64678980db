package gateway

import (
	"net/http"
	"strconv"
	"strings"
	"time"

	"sluice/auth"
	"sluice/internal/refusal"
	"sluice/internal/tenant"
)

// Operation is what a request asks for (design §3). The zero value is none:
// the request was not understood.
type Operation uint8

// The operations on a stream.
const (
	NoOperation Operation = iota
	Append
	Read
	Head
	ReadChunk
	ReadImmutableSnapshot
	ReadSnapshot
	PublishSnapshot
	StagePart
	DiscardParts
	AdvanceRetention
	Bootstrap
	Create
	Delete
	// Those that the gateway answers itself.
	ExchangeToken
	ReadKeys
	ReadMetadata
	Manage
)

var operationNames = [...]string{
	"none", "append", "read", "head", "read_chunk", "read_immutable_snapshot", "read_snapshot",
	"publish_snapshot", "stage_part", "discard_parts", "advance_retention", "bootstrap", "create", "delete",
	"exchange_token", "read_keys", "read_metadata", "manage",
}

// String names the operation in logs and metrics.
func (o Operation) String() string { return operationNames[o] }

// Writes reports whether the operation needs write access.
func (o Operation) Writes() bool {
	switch o {
	case Append, PublishSnapshot, StagePart, DiscardParts, AdvanceRetention, Create, Delete:
		return true
	default:
		return false
	}
}

// TakesBody reports whether a request for the operation may have a body.
func (o Operation) TakesBody() bool { return o.Writes() || o == ExchangeToken || o == Manage }

// OfStream reports whether the operation is one on a stream, which a node answers.
func (o Operation) OfStream() bool { return o != NoOperation && o < ExchangeToken }

// Immutable reports whether the answer can never change.
func (o Operation) Immutable() bool { return o == ReadChunk || o == ReadImmutableSnapshot }

// Tail is the kind of a live read.
type Tail uint8

// The kinds of live reads.
const (
	NoTail Tail = iota
	LongPoll
	SSE
)

// String names the kind as the query does.
func (t Tail) String() string { return [...]string{"none", "long-poll", "sse"}[t] }

// Route is the one reading of a request's target. Path and Query are the bytes
// that were authorised and are sent on.
type Route struct {
	Path     string
	Query    string // raw, without '?'
	HasQuery bool   // a '?' was there, maybe with nothing behind it

	Account   tenant.AccountID
	Stream    tenant.StreamName
	Operation Operation
	Tail      Tail
	Leader    bool          // the query already says consistency
	Wait      time.Duration // timeout_ms of a long-poll; 0 = absent or unreadable
}

// shape is a row of design §3's table: what stands behind the stream, and what
// each method means there.
type shape struct {
	behind  []string // segments; offset and token stand for one of [0-9A-Za-z-]
	allow   string
	methods map[string]Operation
}

const (
	offset = "{offset}"
	token  = "{token}"
)

// shapes is searched from the top: "parts" is never an offset.
var shapes = [...]shape{
	{nil, "GET, HEAD, POST, PUT, DELETE", map[string]Operation{
		http.MethodGet: Read, http.MethodHead: Head, http.MethodPost: Append, http.MethodPut: Create, http.MethodDelete: Delete,
	}},
	{[]string{"incarnation", token, "chunk", offset}, "GET, HEAD", map[string]Operation{http.MethodGet: ReadChunk, http.MethodHead: ReadChunk}},
	{[]string{"incarnation", token, "snapshot", offset}, "GET, HEAD", map[string]Operation{http.MethodGet: ReadImmutableSnapshot, http.MethodHead: ReadImmutableSnapshot}},
	{[]string{"snapshot", "parts"}, "DELETE", map[string]Operation{http.MethodDelete: DiscardParts}},
	{[]string{"snapshot", offset}, "GET, HEAD, PUT", map[string]Operation{http.MethodGet: ReadSnapshot, http.MethodHead: ReadSnapshot, http.MethodPut: PublishSnapshot}},
	{[]string{"snapshot", offset, "parts"}, "POST", map[string]Operation{http.MethodPost: StagePart}},
	{[]string{"retention", offset}, "PUT", map[string]Operation{http.MethodPut: AdvanceRetention}},
	{[]string{"bootstrap"}, "GET, HEAD", map[string]Operation{http.MethodGet: Bootstrap, http.MethodHead: Bootstrap}},
}

// maxSegments is the longest shape with account and stream.
const maxSegments = 6

// parseRoute reads a request's target, once, from its raw bytes. What does not
// parse is refused, never repaired (design §3): P01, P04, P05. The error is a
// *refusal.Refusal.
func parseRoute(method, target string) (Route, error) {
	if method == http.MethodConnect {
		return Route{}, refusal.New(refusal.MethodNotAllowed, nil).With("Allow", shapes[0].allow)
	}
	if target == "" || target[0] != '/' {
		return Route{}, refusal.Because(refusal.InvalidRequest, "The request target must be a path: /{account}/s.{name}.", nil)
	}
	rt := Route{Path: target}
	rt.Path, rt.Query, rt.HasQuery = strings.Cut(target, "?")
	// None of what is managed reaches a node: the API reads its own paths, in which ids
	// may be encoded, and its own queries.
	managed := strings.HasPrefix(rt.Path, managementPrefix) && rt.Path != TokenPath
	if err := checkPath(rt.Path, managed); err != nil {
		return Route{}, err
	}
	if managed {
		rt.Operation = Manage
		return rt, nil
	}
	if sh := findOwn(rt.Path); sh != nil {
		return rt, sh.take(method, &rt)
	}
	var segments [maxSegments]string
	n := split(rt.Path, &segments)
	if n < 2 || segments[0] == "__ursula" || !strings.HasPrefix(segments[1], tenant.StreamPrefix) {
		return Route{}, refusal.New(refusal.NotFound, nil)
	}
	sh := findShape(segments[2:n])
	if sh == nil {
		return Route{}, refusal.New(refusal.NotFound, nil)
	}
	if err := rt.names(segments[0], segments[1]); err != nil {
		return Route{}, err
	}
	if err := checkValues(sh, segments[2:n]); err != nil {
		return Route{}, err
	}
	if err := sh.take(method, &rt); err != nil {
		return Route{}, err
	}
	if err := rt.readQuery(rt.Operation); err != nil {
		return Route{}, err
	}
	return rt, nil
}

// managementPrefix is where the Management API is (design §3).
const managementPrefix = "/v1/"

// take finds what the method means for the shape.
func (sh *shape) take(method string, rt *Route) error {
	op, ok := sh.methods[method]
	if !ok {
		return refusal.New(refusal.MethodNotAllowed, nil).With("Allow", sh.allow)
	}
	rt.Operation = op
	return nil
}

// own are the paths that the gateway answers itself.
var own = [...]struct {
	path string
	shape
}{
	{TokenPath, shape{allow: "POST", methods: map[string]Operation{http.MethodPost: ExchangeToken}}},
	{auth.JWKSPath, shape{allow: "GET, HEAD", methods: map[string]Operation{http.MethodGet: ReadKeys, http.MethodHead: ReadKeys}}},
	{auth.MetadataPath, shape{allow: "GET, HEAD", methods: map[string]Operation{http.MethodGet: ReadMetadata, http.MethodHead: ReadMetadata}}},
}

func findOwn(path string) *shape {
	for i := range own {
		if own[i].path == path {
			return &own[i].shape
		}
	}
	return nil
}

// checkPath refuses every byte and segment that no stream path needs and that
// two readers could read differently: '%', '\', ';', '#', control and non-ASCII
// bytes, empty and dot segments. The root path alone passes, to be not found. In a
// managed path '%' passes.
func checkPath(path string, managed bool) error {
	start := 1
	for i := 1; i <= len(path); i++ {
		if i < len(path) && path[i] != '/' {
			if c := path[i]; c <= ' ' || c >= 0x7f || c == '%' && !managed || c == '\\' || c == ';' || c == '#' {
				return refusal.Because(refusal.InvalidRequest, "The path holds a character that no stream URL needs: send it as it is, without any encoding.", nil)
			}
			continue
		}
		if seg := path[start:i]; (seg == "" && path != "/") || seg == "." || seg == ".." {
			return refusal.Because(refusal.InvalidRequest, "The path holds an empty or a dot segment: send the stream URL as it is.", nil)
		}
		start = i + 1
	}
	return nil
}

// split cuts a checked path into its segments and counts them; one more than
// maxSegments is counted as none, since no shape is that long.
func split(path string, into *[maxSegments]string) int {
	n := 0
	for seg := range strings.SplitSeq(path[1:], "/") {
		if n == maxSegments {
			return 0
		}
		into[n] = seg
		n++
	}
	return n
}

func findShape(behind []string) *shape {
	for i := range shapes {
		if matches(shapes[i].behind, behind) {
			return &shapes[i]
		}
	}
	return nil
}

func matches(want, got []string) bool {
	if len(want) != len(got) {
		return false
	}
	for i, w := range want {
		if w != got[i] && w != offset && w != token {
			return false
		}
	}
	return true
}

func (rt *Route) names(account, stream string) error {
	var err error
	if rt.Account, err = tenant.ParseAccountID(account); err != nil {
		return refusal.Because(refusal.InvalidRequest, "The path names no account: "+err.Error()+".", err)
	}
	if rt.Stream, err = tenant.ParseStreamName(stream[len(tenant.StreamPrefix):]); err == nil {
		err = tenant.CheckStreamPath(rt.Account, rt.Stream)
	}
	if err != nil {
		return refusal.Because(refusal.InvalidRequest, "The path names no stream: "+err.Error()+".", err)
	}
	return nil
}

// checkValues lets offsets and tokens of [0-9A-Za-z-] go on for the node to
// judge; "parts" is no offset.
func checkValues(sh *shape, segments []string) error {
	for i, w := range sh.behind {
		if w != offset && w != token {
			continue
		}
		if !isToken(segments[i]) || w == offset && segments[i] == "parts" {
			return refusal.Because(refusal.InvalidRequest, "The offset or token in the path is not one: it has 0-9, A-Z, a-z and '-' only.", nil)
		}
	}
	return nil
}

func isToken(s string) bool {
	for i := range len(s) {
		if !tokenByte(s[i]) {
			return false
		}
	}
	return s != ""
}

func tokenByte(c byte) bool {
	return '0' <= c && c <= '9' || 'A' <= c && c <= 'Z' || 'a' <= c && c <= 'z' || c == '-'
}

// route is the first step: it refuses what cannot be understood in one way
// only, in target and framing, and fills in the Scope's Route.
func (c *chain) route(next handler) handler {
	return func(s *Scope, w http.ResponseWriter, r *http.Request) error {
		rt, err := parseRoute(r.Method, r.RequestURI)
		if err != nil {
			return err
		}
		s.Route = rt
		if err := checkFraming(rt, r); err != nil {
			return err
		}
		return next(s, w, r)
	}
}

// checkFraming refuses a message whose body could be read in two ways, or not at
// all, by what net/http leaves to see of it.
func checkFraming(rt Route, r *http.Request) error {
	if _, ok := r.Header["Upgrade"]; ok {
		return refusal.Because(refusal.InvalidRequest, "Upgrade is not offered here: send the request without it.", nil)
	}
	// A Transfer-Encoding in HTTP/1.0 is faulty framing (RFC 9112 §6.1), but
	// net/http drops it unseen, and the body with it: an empty write would be
	// stored in place of the one that was sent.
	if rt.Operation.TakesBody() && !r.ProtoAtLeast(1, 1) {
		return refusal.Because(refusal.InvalidRequest, "A write needs HTTP/1.1 or later (behind nginx: proxy_http_version 1.1).", nil)
	}
	// HTTP/2 requests may declare a length and end without it (RFC 9113 §8.1.1).
	if length, ok := r.Header["Content-Length"]; ok && (len(length) != 1 || length[0] != strconv.FormatInt(r.ContentLength, 10)) {
		return refusal.Because(refusal.InvalidRequest, "Content-Length is not the length of the body: send it once, as it is, or leave it out.", nil)
	}
	// A chunked body counts even when it is empty: a read has none (H21).
	if r.ContentLength != 0 && !rt.Operation.TakesBody() {
		return refusal.Because(refusal.InvalidRequest, "A read takes no body: send the request without one.", nil)
	}
	return nil
}
