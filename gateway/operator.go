package gateway

import (
	"context"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"

	"sluice/auth"
	"sluice/internal/refusal"
	"sluice/internal/secret"
	"sluice/internal/tracing"
)

// OperatorOptions are the parts of the operator's listener (design §11).
type OperatorOptions struct {
	// Token is asked for where it is set; without it only a loopback Host is
	// answered, and no page of another origin.
	Token secret.Secret
	// Parts are what the gateway is ready by, in the order in which they are shown.
	Parts func() []Part
	// Profiles says whether /debug/pprof/ is there, at this moment; nil = it is not.
	Profiles func() bool
	// Reload loads the configuration again and puts it in force. It returns the
	// changed fields that need a restart.
	Reload func(ctx context.Context) (restart []string, err error)
	// Explain says what would become of a request; its error is ErrQuestion, or a fault.
	Explain func(ctx context.Context, q Question) (Explanation, error)
	// Metrics serves /metrics.
	Metrics http.Handler
	// Management serves the operator's part of the Management API, under /v1; nil: there
	// is none.
	Management http.Handler
	// Tracer records calls of the Management API; nil: nothing is.
	Tracer *tracing.Tracer
}

// Part is what a part of the gateway says of itself.
type Part struct {
	Name  string
	Ready bool // else it keeps the gateway from being ready
	// State is how it is, in words that hold no address and no name of a customer; ""
	// where there is nothing to say.
	State string
}

// Missing are the parts that keep the gateway from being ready, each with its reason.
func Missing(parts []Part) map[string]string {
	missing := map[string]string{}
	for _, p := range parts {
		if !p.Ready {
			missing[p.Name] = p.State
		}
	}
	return missing
}

// NewOperator makes the handler of the operator's listener. It is never served
// on the public one.
func NewOperator(o OperatorOptions) http.Handler {
	op := operator{o}
	// Paths are taken as they are: a mux would answer what it can clean with a
	// redirect of its own, before anything is guarded.
	routes := map[string]http.Handler{
		"/livez":   only(http.MethodGet, op.live),
		"/readyz":  only(http.MethodGet, op.ready),
		"/metrics": op.guarded(only(http.MethodGet, o.Metrics.ServeHTTP)),
		"/reload":  op.guarded(only(http.MethodPost, op.reload)),
		"/explain": op.guarded(only(http.MethodPost, op.explain)),
	}
	unknown := op.guarded(func(w http.ResponseWriter, r *http.Request) {
		say(w, r, refusal.Because(refusal.NotFound, "The operator's listener has /livez, /readyz, /metrics, POST /reload, POST /explain, /v1 where there is a store, and /debug/pprof/ where admin.pprof is true.", nil))
	})
	profiles := op.guarded(only(http.MethodGet, profile))
	management := unknown
	if o.Management != nil {
		management = op.guarded(op.traced(o.Management))
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch h, ok := routes[r.URL.Path]; {
		case ok:
			h.ServeHTTP(w, r)
		case strings.HasPrefix(r.URL.Path, managementPrefix):
			management.ServeHTTP(w, r)
		case strings.HasPrefix(r.URL.Path, profilesPrefix) && o.Profiles != nil && o.Profiles():
			profiles.ServeHTTP(w, r)
		default:
			unknown.ServeHTTP(w, r)
		}
	})
}

type operator struct{ OperatorOptions }

func say(w http.ResponseWriter, r *http.Request, err *refusal.Refusal) {
	_ = refusal.Write(w, r.Method, err)
}

// only lets one method pass, and HEAD where that is GET.
func only(method string, next http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if r.Method != method && (method != http.MethodGet || r.Method != http.MethodHead) {
			say(w, r, refusal.New(refusal.MethodNotAllowed, nil).With("Allow", method))
			return
		}
		next(w, r)
	}
}

func (o operator) live(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(http.StatusNoContent)
}

// ready says which part is missing, in JSON; with ?verbose all parts, a line each, as
// Kubernetes' own servers do.
func (o operator) ready(w http.ResponseWriter, r *http.Request) {
	parts := o.Parts()
	missing := Missing(parts)
	status := http.StatusOK
	if len(missing) > 0 {
		status = http.StatusServiceUnavailable
	}
	if _, verbose := r.URL.Query()["verbose"]; verbose {
		writeParts(w, status, parts)
		return
	}
	writeJSON(w, status, struct {
		Ready   bool              `json:"ready"`
		Missing map[string]string `json:"missing,omitempty"`
	}{len(missing) == 0, missing})
}

func writeParts(w http.ResponseWriter, status int, parts []Part) {
	var b strings.Builder
	for _, p := range parts {
		mark, state := "[+]", p.State
		if !p.Ready {
			mark = "[-]"
		}
		if state == "" {
			state = "ok"
		}
		_, _ = fmt.Fprintf(&b, "%s%s: %s\n", mark, p.Name, state)
	}
	if status == http.StatusOK {
		b.WriteString("ready\n")
	} else {
		b.WriteString("not ready\n")
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(status)
	_, _ = io.WriteString(w, b.String())
}

func (o operator) reload(w http.ResponseWriter, r *http.Request) {
	restart, err := o.Reload(r.Context())
	if err != nil {
		writeJSON(w, http.StatusUnprocessableEntity, map[string]any{"error": map[string]any{
			"code": "INVALID_CONFIGURATION", "message": "The old configuration stays in force: " + err.Error(),
		}})
		return
	}
	if restart == nil {
		restart = []string{}
	}
	writeJSON(w, http.StatusOK, map[string]any{"reloaded": true, "restart_needed": restart})
}

// maxQuestion bounds a question, in bytes of JSON: a head of 32 KiB and some more, so that
// one that is too large can be asked about.
const maxQuestion = 128 << 10

func (o operator) explain(w http.ResponseWriter, r *http.Request) {
	var q Question
	in := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxQuestion))
	in.DisallowUnknownFields()
	if err := in.Decode(&q); err != nil || in.More() {
		say(w, r, refusal.Because(refusal.InvalidRequest, `A question is one JSON object: {"method":"GET","url":"/acme/s.events","headers":["Accept: */*"],"client":"203.0.113.7"}, of 128 KiB at most.`, err))
		return
	}
	e, err := o.Explain(r.Context(), q)
	switch {
	case errors.Is(err, ErrQuestion):
		say(w, r, refusal.Because(refusal.InvalidRequest, err.Error()+".", err))
	case err != nil:
		say(w, r, refusal.From(err))
	default:
		writeJSON(w, http.StatusOK, e)
	}
}

func writeJSON(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v)
}

// guarded asks for the token; without one it keeps pages of other sites out:
// they reach a loopback listener through the operator's own browser (M05).
func (o operator) guarded(next http.HandlerFunc) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := o.admit(r); err != nil {
			say(w, r, err)
			return
		}
		next(w, r)
	})
}

func (o operator) admit(r *http.Request) *refusal.Refusal {
	if o.Token.IsZero() {
		if !isLoopback(r.Host) || !ownOrigin(r) || simple(r) {
			return refusal.Because(refusal.Forbidden, "Without admin.token the operator's listener answers to a loopback Host only, to no other site's page, and to no text/plain body.", nil)
		}
		return nil
	}
	got, present, err := auth.Bearer(r.Header["Authorization"])
	if err == nil && !present {
		err = auth.ErrNoCredential
	}
	if err == nil && subtle.ConstantTimeCompare([]byte(got), []byte(o.Token.Reveal())) != 1 {
		err = auth.ErrInvalidCredential
	}
	if err == nil {
		return nil
	}
	challenge := `Bearer realm="operator"`
	if !errors.Is(err, auth.ErrNoCredential) {
		challenge += `, error="invalid_token"`
	}
	return refusal.Because(refusal.InvalidCredential, "The operator's token is needed: send it as 'Authorization: Bearer <admin.token>'.", err).
		With("WWW-Authenticate", challenge)
}

// isLoopback reports whether a Host header names this machine.
func isLoopback(hostport string) bool {
	host := hostport
	if h, _, err := net.SplitHostPort(hostport); err == nil {
		host = h
	}
	host = strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")
	if strings.EqualFold(host, "localhost") {
		return true
	}
	a, err := netip.ParseAddr(host)
	return err == nil && a.Unmap().IsLoopback()
}

// ownOrigin reports whether a request comes from a page of this listener, or
// from no page at all. Browsers that send no Origin say Sec-Fetch-Site.
func ownOrigin(r *http.Request) bool {
	for _, origin := range r.Header.Values("Origin") {
		u, err := url.Parse(origin)
		if err != nil || u.Host != r.Host {
			return false
		}
	}
	for _, site := range r.Header.Values("Sec-Fetch-Site") {
		if site != "same-origin" && site != "none" {
			return false
		}
	}
	return true
}

// simple reports a body of the type that a page of any site may send unasked and
// that no tool sends by itself (M05).
func simple(r *http.Request) bool {
	kind, _, _ := strings.Cut(r.Header.Get("Content-Type"), ";")
	return strings.EqualFold(strings.TrimSpace(kind), "text/plain")
}
