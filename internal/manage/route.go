package manage

import (
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"sluice/internal/refusal"
)

// target is what a request is, read from its method and path alone.
type target struct {
	handle     handler
	parameters []string // that its query may have
	body       bool     // it takes one
	open       bool     // no credential is asked for
	account    string   // in the path of an operator's call
	ofAccount  bool     // about something that the account of the path has
	id         string
}

// methods are what a path takes; HEAD goes with GET.
type methods map[string]target

// route reads the target of a request. Each segment of the path is decoded once: ids of
// declared keys hold a slash. Other escapes than are needed are refused, so that each thing
// has one path.
func (a *API) route(r *http.Request) (target, error) {
	rest, ok := strings.CutPrefix(r.URL.EscapedPath(), Prefix)
	if !ok {
		return target{}, noSuchPath()
	}
	segments, needless := strings.Split(rest, "/"), false
	for i, s := range segments {
		decoded, err := url.PathUnescape(s)
		if err != nil || decoded == "" {
			return target{}, noSuchPath()
		}
		if needlessEscape(s) {
			needless = true
			continue // as it stands it is none of our words
		}
		segments[i] = decoded
	}
	found, path := a.path(segments)
	if found == nil {
		return target{}, noSuchPath()
	}
	method := r.Method
	if method == http.MethodHead {
		method = http.MethodGet
	}
	t, ok := found[method]
	if !ok {
		return target{}, refusal.New(refusal.MethodNotAllowed, nil).With("Allow", found.allow())
	}
	if needless {
		return target{}, refusal.Because(refusal.InvalidRequest, "The path has an escape of a character that needs none: write it as it is.", nil)
	}
	t.account, t.ofAccount, t.id = path.account, path.ofAccount, path.id
	return t, nil
}

// needlessEscape reports whether a segment that decodes has an escape of what stands for
// itself everywhere (RFC 3986 §2.3). Whoever filters by paths would see another name.
func needlessEscape(segment string) bool {
	for {
		_, after, ok := strings.Cut(segment, "%")
		if !ok {
			return false
		}
		if n, err := strconv.ParseUint(after[:2], 16, 8); err == nil && unreserved(byte(n)) {
			return true
		}
		segment = after[2:]
	}
}

func unreserved(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || strings.IndexByte("-._~", c) >= 0
}

func noSuchPath() error {
	return refusal.Because(refusal.NotFound, "There is no such path: see "+Prefix+"openapi.yaml.", nil)
}

func (m methods) allow() string {
	var names []string
	for name := range m {
		names = append(names, name)
		if name == http.MethodGet {
			names = append(names, http.MethodHead)
		}
	}
	slices.Sort(names)
	return strings.Join(names, ", ")
}

// path finds what a path takes, and the names in it.
func (a *API) path(segments []string) (methods, target) {
	if len(segments) == 1 && segments[0] == "openapi.yaml" {
		return methods{http.MethodGet: {handle: readReference, open: true}}, target{}
	}
	if len(segments) == 1 && segments[0] == "audit" {
		parameters := []string{"limit", "cursor", "since", "until", "action", "actor", "target"}
		if a.operator {
			parameters = append(parameters, "account")
		}
		return methods{http.MethodGet: {handle: a.listAudit, parameters: parameters}}, target{}
	}
	if !a.operator {
		if len(segments) == 1 && segments[0] == "account" {
			return methods{http.MethodGet: {handle: a.showOwnAccount}}, target{}
		}
		found, id := a.resource(segments)
		return found, target{id: id}
	}
	if len(segments) == 2 && segments[0] == "usage" && segments[1] == "batches" {
		return methods{http.MethodGet: {handle: a.listUsageBatches, parameters: []string{"limit", "after"}}}, target{}
	}
	if segments[0] != "accounts" {
		return nil, target{}
	}
	switch len(segments) {
	case 1:
		return methods{
			http.MethodGet:  {handle: a.listAccounts, parameters: []string{"limit", "cursor", "prefix"}},
			http.MethodPost: {handle: a.createAccount, body: true},
		}, target{}
	case 2:
		return methods{
			http.MethodGet:    {handle: a.showAccount},
			http.MethodPatch:  {handle: a.updateAccount, body: true},
			http.MethodDelete: {handle: a.deleteAccount},
		}, target{account: segments[1]}
	default:
		found, id := a.resource(segments[2:])
		return found, target{account: segments[1], ofAccount: true, id: id}
	}
}

// resource finds what an account has: its streams, its keys and its usage.
func (a *API) resource(segments []string) (methods, string) {
	id := ""
	if len(segments) > 1 {
		id = segments[1]
	}
	switch kind := segments[0]; {
	case kind == "usage" && len(segments) == 1:
		return methods{http.MethodGet: {handle: a.listUsage, parameters: []string{"from", "to", "class", "limit", "cursor"}}}, ""
	case kind == "streams" && len(segments) == 1:
		return methods{
			http.MethodGet:  {handle: a.listStreams, parameters: []string{"limit", "cursor", "prefix"}},
			http.MethodPost: {handle: a.createStream, body: true},
		}, ""
	case kind == "streams" && len(segments) == 2:
		return methods{
			http.MethodGet:    {handle: a.showStream},
			http.MethodPatch:  {handle: a.updateStream, body: true},
			http.MethodDelete: {handle: a.deleteStream},
		}, id
	case kind == "api-keys" && len(segments) == 1:
		return methods{
			http.MethodGet:  {handle: a.listKeys, parameters: []string{"limit", "cursor"}},
			http.MethodPost: {handle: a.createKey, body: true},
		}, ""
	case kind == "api-keys" && len(segments) == 2:
		return methods{
			http.MethodGet:    {handle: a.showKey},
			http.MethodPatch:  {handle: a.narrowKey, body: true},
			http.MethodDelete: {handle: a.revokeKey},
		}, id
	case kind == "api-keys" && len(segments) == 3 && segments[2] == "rotate":
		return methods{http.MethodPost: {handle: a.rotateKey, body: true}}, id
	}
	return nil, ""
}
