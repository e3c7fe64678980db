package config

import (
	"net/http"
	"net/netip"
	"net/url"
	"strings"

	"sluice/internal/secret"
)

// Trace says where traces go. Without an endpoint there are none, and nothing is
// spent on them.
type Trace struct {
	// Where spans are sent: the URL of an OpenTelemetry collector, or of anything else
	// that speaks OTLP over HTTP (`http/protobuf`). `http` or `https`; `/v1/traces` where
	// it has no path. Absent: no traces.
	Endpoint string `yaml:"endpoint" eg:"http://10.0.0.9:4318" format:"otlp"`

	// The share of new traces that is recorded, 0 to 1. A client that says of its own
	// trace whether it records it (`traceparent`) is followed, up to `parents_per_second`.
	Sample float64 `yaml:"sample" default:"0.01" eg:"0.01" min:"0" max:"1"`

	// How many requests a second are recorded since their client's `traceparent` says so,
	// and twice as many at once; of those over it `sample` is recorded. Clients are
	// strangers, and recording is paid for here. 0: what clients say records nothing.
	ParentsPerSecond int `yaml:"parents_per_second" default:"10" eg:"10" min:"0" max:"100000"`

	// Header lines that the endpoint asks for, `Name: value`, each a secret.
	Headers []secret.Secret `yaml:"headers" eg:"[\"Authorization: Bearer ${TRACE_TOKEN}\"]"`
}

// On reports whether traces are sent.
func (t Trace) On() bool { return t.Endpoint != "" }

// Header is the headers as a request's; trace has checked their form.
func (t Trace) Header() http.Header {
	h := http.Header{}
	for _, line := range t.Headers {
		name, value, _ := strings.Cut(line.Reveal(), ":")
		h.Set(strings.TrimSpace(name), strings.TrimSpace(value))
	}
	return h
}

func checkOTLP(s string) error {
	const want = "want the URL of an OTLP/HTTP endpoint: scheme (http or https), host, port, and its path where that is not /v1/traces"
	u, err := url.Parse(s)
	if err != nil || u.Host == "" || u.Opaque != "" || u.Scheme != "http" && u.Scheme != "https" || u.RawQuery != "" || u.Fragment != "" {
		return &formatError{want: want}
	}
	if u.User != nil {
		return &formatError{want: want + "; no user and no password: they go into trace.headers"}
	}
	if _, err := netip.ParseAddr(u.Hostname()); err != nil && !hostName(u.Hostname()) {
		return &formatError{want: want}
	}
	return nil
}

// trace checks what goes with an endpoint.
func (f *findings) trace(t Trace) {
	if len(t.Headers) > 0 && !t.On() {
		f.add("trace.headers", "are for nobody without an endpoint; remove them, or write endpoint: http://127.0.0.1:4318")
	}
	for _, line := range t.Headers {
		name, value, ok := strings.Cut(line.Reveal(), ":")
		if !ok || !headerName(strings.TrimSpace(name)) || !headerValue(strings.TrimSpace(value)) {
			f.add("trace.headers", `has a line that is no header; write "Name: value"`)
			return
		}
	}
}

func headerName(s string) bool {
	for i := range len(s) {
		c := s[i]
		if c != '-' && c != '_' && (c < '0' || c > '9') && (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') {
			return false
		}
	}
	return s != ""
}

func headerValue(s string) bool {
	for i := range len(s) {
		if s[i] < ' ' || s[i] > '~' {
			return false
		}
	}
	return s != ""
}
