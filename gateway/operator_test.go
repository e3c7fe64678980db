package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"sluice/internal/secret"
)

// operatorRig is an operator's listener without a network: Host and Origin are
// what the test says.
type operatorRig struct {
	handler http.Handler
	reloads int
	missing map[string]string
	restart []string
	err     error
	pprof   bool
}

const operatorToken = "an-operators-token"

func newOperatorRig(token string) *operatorRig {
	rig := &operatorRig{}
	o := OperatorOptions{
		Parts: func() []Part {
			parts := append(make([]Part, 0, 1+len(rig.missing)), Part{Name: "server", Ready: true})
			for _, name := range slices.Sorted(maps.Keys(rig.missing)) {
				parts = append(parts, Part{Name: name, State: rig.missing[name]})
			}
			return parts
		},
		Profiles: func() bool { return rig.pprof },
		Reload: func(context.Context) ([]string, error) {
			rig.reloads++
			return rig.restart, rig.err
		},
		Metrics: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "sluice_ready 1\n") }),
	}
	if token != "" {
		o.Token = secret.New(token)
	}
	rig.handler = NewOperator(o)
	return rig
}

func (rig *operatorRig) ask(t testing.TB, method, path, host string, headers ...string) answer {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), method, path, nil)
	r.Host = host
	for i := 0; i+1 < len(headers); i += 2 {
		r.Header.Add(headers[i], headers[i+1])
	}
	rec := httptest.NewRecorder()
	rig.handler.ServeHTTP(rec, r)
	res := rec.Result()
	defer func() { _ = res.Body.Close() }()
	return answer{res, rec.Body.String()}
}

const loopbackHost = "127.0.0.1:9090"

// M05: a page of another site reached the operator's listener through the
// operator's own browser, by a simple POST or by a name that leads to loopback.
func TestOperatorKeepsOthersOut(t *testing.T) {
	bearer := func(s string) []string { return []string{"Authorization", s} }
	tests := []struct {
		name, token, host string
		headers           []string
		want              int
	}{
		{"loopback", "", loopbackHost, nil, 200},
		{"localhost", "", "localhost:9090", nil, 200},
		{"Localhost without port", "", "LOCALHOST", nil, 200},
		{"IPv6 loopback", "", "[::1]:9090", nil, 200},
		{"mapped loopback", "", "[::ffff:127.0.0.1]:9090", nil, 200},
		{"own origin", "", loopbackHost, []string{"Origin", "http://127.0.0.1:9090"}, 200},
		{"JSON", "", loopbackHost, []string{"Content-Type", "application/json"}, 200},
		{"Host evil", "", "evil", nil, 403},
		{"Host that begins like loopback", "", "127.0.0.1.evil.example:9090", nil, 403},
		{"Host localhost.evil", "", "localhost.evil.example", nil, 403},
		{"Host of the machine", "", "192.168.1.5:9090", nil, 403},
		{"Host empty", "", "", nil, 403},
		{"Host any", "", "0.0.0.0:9090", nil, 403},
		{"Origin evil", "", loopbackHost, []string{"Origin", "http://evil"}, 403},
		{"Origin null", "", loopbackHost, []string{"Origin", "null"}, 403},
		{"Origin empty", "", loopbackHost, []string{"Origin", ""}, 403},
		{"Origin of another port", "", loopbackHost, []string{"Origin", "http://127.0.0.1:9091"}, 403},
		{"Origin of another name", "", loopbackHost, []string{"Origin", "http://localhost:9090"}, 403},
		{"Origin with credentials", "", loopbackHost, []string{"Origin", "http://127.0.0.1:9090@evil"}, 403},
		{"two Origins", "", loopbackHost, []string{"Origin", "http://127.0.0.1:9090", "Origin", "http://evil"}, 403},
		{"Host and Origin evil", "", "evil", []string{"Origin", "http://evil", "Content-Type", "text/plain"}, 403},
		{"text/plain", "", loopbackHost, []string{"Content-Type", "text/plain"}, 403},
		{"text/plain with parameters", "", loopbackHost, []string{"Content-Type", "Text/Plain; charset=utf-8"}, 403},
		{"a page's fetch without Origin", "", loopbackHost, []string{"Sec-Fetch-Site", "cross-site"}, 403},
		{"a sibling site's", "", loopbackHost, []string{"Sec-Fetch-Site", "same-site"}, 403},
		{"typed into the browser", "", loopbackHost, []string{"Sec-Fetch-Site", "none"}, 200},
		{"token", operatorToken, "sluice-7:9090", bearer("Bearer " + operatorToken), 200},
		{"token, any case of the scheme", operatorToken, "sluice-7:9090", bearer("bearer " + operatorToken), 200},
		{"token, and a page's origin", operatorToken, "sluice-7:9090", append(bearer("Bearer "+operatorToken), "Origin", "http://evil"), 200},
		{"no token", operatorToken, loopbackHost, nil, 401},
		{"no token, text/plain, evil", operatorToken, "evil", []string{"Origin", "http://evil", "Content-Type", "text/plain"}, 401},
		{"wrong token", operatorToken, loopbackHost, bearer("Bearer x"), 401},
		{"token cut short", operatorToken, loopbackHost, bearer("Bearer " + operatorToken[:5]), 401},
		{"token and more", operatorToken, loopbackHost, bearer("Bearer " + operatorToken + "x"), 401},
		{"empty token", operatorToken, loopbackHost, bearer("Bearer "), 401},
		{"another scheme", operatorToken, loopbackHost, bearer("Basic " + operatorToken), 401},
		{"two headers", operatorToken, loopbackHost, append(bearer("Bearer "+operatorToken), bearer("Bearer "+operatorToken)...), 401},
		{"token as a cookie", operatorToken, loopbackHost, []string{"Cookie", "token=" + operatorToken}, 401},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			rig := newOperatorRig(tt.token)
			rig.pprof = true
			post := rig.ask(t, http.MethodPost, "/reload", tt.host, tt.headers...)
			if post.StatusCode != tt.want {
				t.Errorf("POST /reload: got %d %s, want %d", post.StatusCode, post.Text, tt.want)
			}
			if reloaded := rig.reloads != 0; reloaded != (tt.want == 200) {
				t.Errorf("%d reloads after an answer of %d", rig.reloads, post.StatusCode)
			}
			checkOperatorRefusal(t, post, tt.want)
			if strings.Contains(tt.name, "text/plain") {
				return // says nothing on a GET
			}
			for _, path := range []string{"/metrics", "/nothing", "/", "/debug/pprof/", "/debug/pprof/heap", "/debug/pprof/goroutine", "/v1/accounts"} {
				want := tt.want
				if want == 200 && path != "/metrics" && !strings.HasPrefix(path, "/debug/pprof/") {
					want = 404
				}
				get := rig.ask(t, http.MethodGet, path, tt.host, tt.headers...)
				if get.StatusCode != want {
					t.Errorf("GET %s: got %d, want %d", path, get.StatusCode, want)
				}
				if want != 200 && (strings.Contains(get.Text, "sluice_ready") || strings.Contains(get.Text, "goroutine")) {
					t.Errorf("GET %s told the metrics, or a profile", path)
				}
			}
			// Probes of the machinery around it come without a token, from anywhere.
			if live := rig.ask(t, http.MethodGet, "/livez", tt.host, tt.headers...); live.StatusCode != http.StatusNoContent {
				t.Errorf("/livez: %d", live.StatusCode)
			}
			if ready := rig.ask(t, http.MethodGet, "/readyz", tt.host, tt.headers...); ready.StatusCode != http.StatusOK {
				t.Errorf("/readyz: %d", ready.StatusCode)
			}
		})
	}
}

func checkOperatorRefusal(t testing.TB, res answer, status int) {
	t.Helper()
	want := map[int]string{200: "", 401: "INVALID_CREDENTIAL", 403: "FORBIDDEN"}[status]
	if res.code() != want || res.Header.Get("Cache-Control") != "no-store" || res.Header.Get("Content-Type") != "application/json" {
		t.Errorf("code %q, want %q; headers %v", res.code(), want, res.Header)
	}
	challenge := res.Header.Get("WWW-Authenticate")
	if (status == 401) != strings.HasPrefix(challenge, "Bearer ") {
		t.Errorf("status %d has WWW-Authenticate %q", status, challenge)
	}
	if strings.Contains(res.Text+challenge, operatorToken) {
		t.Error("the answer tells the token")
	}
}

// GET /reload, and every method but the one, changes nothing.
func TestOperatorMethods(t *testing.T) {
	rig := newOperatorRig("")
	tests := []struct{ path, allow string }{{"/livez", "GET"}, {"/readyz", "GET"}, {"/metrics", "GET"}, {"/reload", "POST"}}
	for _, tt := range tests {
		for _, method := range []string{"GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "FOO", "post"} {
			allowed := method == tt.allow || tt.allow == "GET" && method == "HEAD"
			before := rig.reloads
			res := rig.ask(t, method, tt.path, loopbackHost)
			if refused := res.StatusCode == http.StatusMethodNotAllowed; refused == allowed {
				t.Errorf("%s %s: %d", method, tt.path, res.StatusCode)
			} else if refused && res.Header.Get("Allow") != tt.allow {
				t.Errorf("%s %s: Allow %q, want %q", method, tt.path, res.Header.Get("Allow"), tt.allow)
			}
			if !allowed && rig.reloads != before {
				t.Errorf("%s %s reloaded", method, tt.path)
			}
			if method == "HEAD" && res.Text != "" && !allowed {
				t.Errorf("HEAD %s has a body: %q", tt.path, res.Text)
			}
		}
	}
	if rig.reloads != 1 {
		t.Errorf("%d reloads, want 1", rig.reloads)
	}
}

func TestOperatorReadiness(t *testing.T) {
	rig := newOperatorRig(operatorToken)
	type ready struct {
		Ready   bool              `json:"ready"`
		Missing map[string]string `json:"missing"`
	}
	for _, missing := range []map[string]string{nil, {}, {"ursula": "no node has answered yet", "streams": "2 declared streams are not created yet"}} {
		rig.missing = missing
		res := rig.ask(t, http.MethodGet, "/readyz", "probe")
		want := ready{Ready: len(missing) == 0}
		status := http.StatusOK
		if len(missing) > 0 {
			want.Missing, status = missing, http.StatusServiceUnavailable
		}
		var got ready
		if err := json.Unmarshal([]byte(res.Text), &got); err != nil {
			t.Fatalf("%q: %v", res.Text, err)
		}
		if diff := cmp.Diff(want, got); diff != "" || res.StatusCode != status || res.Header.Get("Cache-Control") != "no-store" {
			t.Errorf("status %d, want %d; (-want +got):\n%s", res.StatusCode, status, diff)
		}
		if res := rig.ask(t, http.MethodGet, "/livez", "probe"); res.StatusCode != http.StatusNoContent || res.Text != "" {
			t.Errorf("/livez depends on readiness: %d %q", res.StatusCode, res.Text)
		}
	}
}

func TestOperatorReload(t *testing.T) {
	rig := newOperatorRig("")
	if res := rig.ask(t, http.MethodPost, "/reload", loopbackHost); res.StatusCode != 200 || !strings.Contains(res.Text, `"restart_needed":[]`) {
		t.Errorf("nothing needs a restart: %d %s", res.StatusCode, res.Text)
	}
	rig.restart = []string{"listen"}
	if res := rig.ask(t, http.MethodPost, "/reload", loopbackHost); res.StatusCode != 200 || !strings.Contains(res.Text, `"restart_needed":["listen"]`) {
		t.Errorf("listen needs a restart: %d %s", res.StatusCode, res.Text)
	}
	rig.err = errors.New("sluice.yaml:3: limits.burts: unknown key, write burst")
	res := rig.ask(t, http.MethodPost, "/reload", loopbackHost)
	if res.StatusCode != http.StatusUnprocessableEntity || res.code() != "INVALID_CONFIGURATION" || !strings.Contains(res.Text, "limits.burts") {
		t.Errorf("a bad file: %d %s", res.StatusCode, res.Text)
	}
}

// POST /explain asks for the token as the others do, takes one question of bounded size, and
// says what is wrong with what is none.
func TestOperatorExplains(t *testing.T) {
	rg := newRig(t, rigOptions{})
	handler := NewOperator(OperatorOptions{Token: secret.New(operatorToken), Metrics: http.NotFoundHandler(), Explain: rg.Gateway.Explain})
	ask := func(method, token, body string) answer {
		r := httptest.NewRequestWithContext(t.Context(), method, "/explain", strings.NewReader(body))
		r.Header.Set("Authorization", "Bearer "+token)
		rec := httptest.NewRecorder()
		handler.ServeHTTP(rec, r)
		res := rec.Result()
		defer func() { _ = res.Body.Close() }()
		return answer{res, rec.Body.String()}
	}
	good := `{"method":"GET","url":"/acme/s.priv","headers":["Authorization: Bearer ` + rg.Keys[key] + `"],"client":"203.0.113.7"}`
	for name, tc := range map[string]struct {
		method, token, body string
		want                int
		says                string
	}{
		"a question":       {"POST", operatorToken, good, 200, `"outcome":"forwarded"`},
		"its client":       {"POST", operatorToken, good, 200, "client 203.0.113.7"},
		"a refusal":        {"POST", operatorToken, `{"url":"/acme/s.priv"}`, 200, `"code":"INVALID_CREDENTIAL"`},
		"no token":         {"POST", "x", good, 401, "operator's token"},
		"another method":   {"GET", operatorToken, "", 405, "METHOD_NOT_ALLOWED"},
		"no JSON":          {"POST", operatorToken, "x", 400, "one JSON object"},
		"an unknown word":  {"POST", operatorToken, `{"uri":"/"}`, 400, "one JSON object"},
		"two questions":    {"POST", operatorToken, good + good, 400, "one JSON object"},
		"too large":        {"POST", operatorToken, `{"url":"` + strings.Repeat("a", maxQuestion) + `"}`, 400, "128 KiB"},
		"no address":       {"POST", operatorToken, `{"url":"/","client":"here"}`, 400, "client is no address"},
		"a line of a head": {"POST", operatorToken, `{"url":"/","headers":["a: b\nc: d"]}`, 400, "a line break"},
		"no header":        {"POST", operatorToken, `{"url":"/","headers":["Accept"]}`, 400, "Name: value"},
	} {
		if res := ask(tc.method, tc.token, tc.body); res.StatusCode != tc.want || !strings.Contains(res.Text, tc.says) || strings.Contains(res.Text, rg.Keys[key]) {
			t.Errorf("%s: %d %s", name, res.StatusCode, res.Text)
		}
	}
}

// Where admin.pprof is false there are no profiles, whoever asks; where it is true, only
// those that say nothing of what the process was given.
func TestOperatorProfiles(t *testing.T) {
	rig := newOperatorRig(operatorToken)
	bearer := []string{"Authorization", "Bearer " + operatorToken}
	paths := map[string]int{
		"": 200, "heap": 200, "allocs": 200, "goroutine": 200, "goroutine?debug=2": 200, "block": 200, "mutex": 200, "threadcreate": 200,
		"profile?seconds=1": 200, "trace?seconds=0.01": 200,
		"cmdline": 404, "symbol": 404, "nothing": 404, "../../metrics": 404, "heap/x": 404,
	}
	for _, on := range []bool{false, true} {
		rig.pprof = on
		for path, status := range paths {
			if !on {
				status = http.StatusNotFound
			}
			res := rig.ask(t, http.MethodGet, "/debug/pprof/"+path, "sluice-7:9090", bearer...)
			if res.StatusCode != status || res.Header.Get("Cache-Control") != "no-store" {
				t.Errorf("on %v, %q: %d, want %d; %v", on, path, res.StatusCode, status, res.Header)
			}
			if strings.Contains(res.Text, operatorToken) {
				t.Errorf("%q tells the token", path)
			}
		}
		for _, method := range []string{http.MethodPost, http.MethodPut, http.MethodDelete} {
			if res := rig.ask(t, method, "/debug/pprof/heap", "sluice-7:9090", bearer...); res.StatusCode == http.StatusOK {
				t.Errorf("%s of a profile: %d", method, res.StatusCode)
			}
		}
	}
	if res := rig.ask(t, http.MethodGet, "/debug/pprof", "sluice-7:9090", bearer...); res.StatusCode != http.StatusNotFound {
		t.Errorf("without its slash: %d", res.StatusCode)
	}
}

// An operator at night sees each part and how it is, without a token.
func TestOperatorReadinessVerbose(t *testing.T) {
	rig := newOperatorRig(operatorToken)
	res := rig.ask(t, http.MethodGet, "/readyz?verbose", "probe")
	if want := "[+]server: ok\nready\n"; res.StatusCode != http.StatusOK || res.Text != want {
		t.Errorf("%d %q, want %q", res.StatusCode, res.Text, want)
	}
	rig.missing = map[string]string{"nodes": "no node answers", "store": "not read yet"}
	res = rig.ask(t, http.MethodGet, "/readyz?verbose=1", "probe")
	if want := "[+]server: ok\n[-]nodes: no node answers\n[-]store: not read yet\nnot ready\n"; res.StatusCode != http.StatusServiceUnavailable || res.Text != want {
		t.Errorf("%d %q, want %q", res.StatusCode, res.Text, want)
	}
}
