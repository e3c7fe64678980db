package cli

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"sluice/auth"
	"sluice/internal/bubble"
	"sluice/internal/secret"
)

// tokenServer answers exchanges, and keeps what it was asked.
type tokenServer struct {
	*httptest.Server
	forms []url.Values
}

const aToken = "eyJhbGciOiJFUzI1NiJ9.eyJpc3MiOiJ4In0.c2lnbmF0dXJl"

func newTokenServer(t *testing.T, answer http.HandlerFunc) *tokenServer {
	t.Helper()
	s := &tokenServer{}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		text, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		form, err := url.ParseQuery(string(text))
		if err != nil || r.Method != http.MethodPost || r.RequestURI != tokenPath || r.Header.Get("Content-Type") != "application/x-www-form-urlencoded" {
			t.Errorf("%s %s, %v: %v", r.Method, r.RequestURI, r.Header, err)
		}
		if _, ok := r.Header["Authorization"]; ok {
			t.Error("an exchange with an Authorization header")
		}
		s.forms = append(s.forms, form)
		answer(w, r)
	}))
	t.Cleanup(s.Close)
	return s
}

func granted(w http.ResponseWriter, _ *http.Request) {
	_, _ = io.WriteString(w, `{"access_token":"`+aToken+`","token_type":"Bearer","expires_in":600}`)
}

// The token stands alone on standard output, so that $(…) takes it as it is.
func TestTokenCreate(t *testing.T) {
	key := newTestKey(t)
	for name, tc := range map[string]struct {
		args []string
		want url.Values // beside what every exchange has; ORIGIN is the server's
	}{
		"plain":     {nil, nil},
		"read only": {[]string{"--read-only"}, url.Values{"scope": {"streams:read"}}},
		"narrowed": {
			[]string{"--stream", "acme/events", "--stream", "acme/logs.*", "--stream", "https://streams.example.com/acme/s.x"},
			url.Values{"resource": {"ORIGIN/acme/s.events", "ORIGIN/acme/s.logs.*", "https://streams.example.com/acme/s.x"}},
		},
		"short": {[]string{"--expires-in", "15_minutes"}, url.Values{"expires_in": {"900"}}},
		"all": {
			[]string{"--read-only", "--stream=acme/events", "--expires-in=1_hour"},
			url.Values{"scope": {"streams:read"}, "resource": {"ORIGIN/acme/s.events"}, "expires_in": {"3600"}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newTokenServer(t, granted)
			code, out, errOut := command(t, map[string]string{"TONBO_API_KEY": " " + key + "\n", "SLUICE_URL": s.URL + "/"}, append([]string{"token", "create"}, tc.args...)...)
			if code != exitDone || out != aToken+"\n" || errOut != "" {
				t.Fatalf("exit %d, out %q, err %q", code, out, errOut)
			}
			want := url.Values{
				"grant_type": {auth.GrantTokenExchange}, "subject_token": {key}, "subject_token_type": {auth.TypeAccessToken},
			}
			for name, values := range tc.want {
				for _, v := range values {
					want.Add(name, strings.Replace(v, "ORIGIN", s.URL, 1))
				}
			}
			if diff := cmp.Diff([]url.Values{want}, s.forms); diff != "" {
				t.Errorf("asked (-want +got):\n%s", diff)
			}
		})
	}
}

func TestTokenCreateTakesURLFromTheFlag(t *testing.T) {
	s := newTokenServer(t, granted)
	code, out, errOut := command(t, map[string]string{"TONBO_API_KEY": newTestKey(t), "SLUICE_URL": "https://elsewhere.example"}, "token", "create", "--json", "--url", s.URL)
	if code != exitDone || errOut != "" || !strings.HasSuffix(out, "}\n") || strings.Count(out, "\n") != 1 {
		t.Fatalf("exit %d, out %q, err %q", code, out, errOut)
	}
	var answer struct {
		Token   string `json:"access_token"`
		Expires int    `json:"expires_in"`
	}
	if err := json.Unmarshal([]byte(out), &answer); err != nil || answer.Token != aToken || answer.Expires != 600 {
		t.Errorf("%v: %s", err, out)
	}
}

// A token may be narrowed further: it is what is exchanged then.
func TestTokenOfAToken(t *testing.T) {
	s := newTokenServer(t, granted)
	code, _, errOut := command(t, map[string]string{"TONBO_API_KEY": aToken, "SLUICE_URL": s.URL}, "token", "create")
	if code != exitDone || s.forms[0].Get("subject_token") != aToken {
		t.Errorf("exit %d, err %q", code, errOut)
	}
}

// What a refusal looks like: nothing on standard output, one printable line on
// the other, and never the key.
func TestTokenCreateRefused(t *testing.T) {
	key := newTestKey(t)
	answer := func(status int, text string, headers ...string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			for i := 0; i+1 < len(headers); i += 2 {
				w.Header().Set(headers[i], headers[i+1])
			}
			w.WriteHeader(status)
			_, _ = io.WriteString(w, text)
		}
	}
	for name, tc := range map[string]struct {
		answer http.HandlerFunc
		says   string
	}{
		"OAuth":             {answer(400, `{"error":"invalid_grant","error_description":"the subject token has expired"}`, "X-Request-Id", "abc"), "sluice: invalid_grant: the subject token has expired (request id abc)\n"},
		"too often":         {answer(429, `{"error":"temporarily_unavailable","error_description":"too often"}`, "Retry-After", "3"), "sluice: temporarily_unavailable: too often; try again in 3 s\n"},
		"a refusal":         {answer(404, `{"error":{"code":"NOT_FOUND","message":"There is no such route."}}`), "sluice: NOT_FOUND: There is no such route.; is SLUICE_URL the gateway's origin?\n"},
		"no description":    {answer(400, `{"error":"invalid_scope"}`), "sluice: invalid_scope\n"},
		"a page":            {answer(502, "<html>Bad Gateway</html>"), "status 502; is SLUICE_URL the gateway's origin?\n"},
		"JSON of no token":  {answer(200, `{"token":"x"}`), "there is no token in it"},
		"another type":      {answer(200, `{"access_token":"`+aToken+`","token_type":"DPoP"}`), "there is no token in it"},
		"no token at all":   {answer(200, `{"access_token":"","token_type":"Bearer"}`), "there is no token in it"},
		"a token of two":    {answer(200, `{"access_token":"a\nb","token_type":"Bearer"}`), "there is no token in it"},
		"a huge answer":     {answer(200, strings.Repeat(" ", maxAnswer)+`{}`), "too large"},
		"a redirect":        {answer(307, "", "Location", "http://127.0.0.1:1/"), "redirects (status 307)"},
		"terminal controls": {answer(400, `{"error":"x\u001b[2J","error_description":"a\nb\r\u202e`+strings.Repeat("w", 1000)+`"}`), "sluice: x[2J: abwwww"},
		"the key repeated":  {answer(400, `{"error":"x","error_description":"not `+key+`"}`), "sluice: x: not <key>\n"},
		"an answer cut off": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "100")
			_, _ = io.WriteString(w, "{")
		}, "cannot be asked: unexpected EOF"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newTokenServer(t, tc.answer)
			for _, flag := range []string{"--json=false", "--json"} {
				code, out, errOut := command(t, map[string]string{"TONBO_API_KEY": key, "SLUICE_URL": s.URL}, "token", "create", flag)
				if code != exitFailed || out != "" {
					t.Errorf("exit %d, out %q", code, out)
				}
				if !strings.Contains(errOut, tc.says) || strings.Count(errOut, "\n") != 1 || strings.ContainsAny(errOut, "\x1b\r\u202e") || len(errOut) > 500 {
					t.Errorf("err %q, want one line with %q", errOut, tc.says)
				}
				if strings.Contains(errOut, key) {
					t.Error("the key is printed")
				}
			}
			if len(s.forms) != 2 {
				t.Errorf("asked %d times, want once each", len(s.forms))
			}
		})
	}
}

func TestTokenCreateWithNobodyThere(t *testing.T) {
	code, out, errOut := command(t, map[string]string{"TONBO_API_KEY": newTestKey(t), "SLUICE_URL": "http://" + freePort(t)}, "token", "create")
	if code != exitFailed || out != "" || !strings.Contains(errOut, "refused") || strings.Count(errOut, "\n") != 1 {
		t.Errorf("exit %d, out %q, err %q", code, out, errOut)
	}
}

// Wrong use is found before anything is sent.
func TestTokenCreateWrongUse(t *testing.T) {
	s := newTokenServer(t, granted)
	key := newTestKey(t)
	for name, tc := range map[string]struct {
		args []string
		env  map[string]string
		says string
	}{
		"no key":               {nil, map[string]string{"TONBO_API_KEY": ""}, "TONBO_API_KEY is not set"},
		"a typo in the key":    {nil, map[string]string{"TONBO_API_KEY": key[:len(key)-1] + "!"}, "TONBO_API_KEY holds no API key"},
		"a wrong checksum":     {nil, map[string]string{"TONBO_API_KEY": key[:43] + string('0'+(key[43]+1)%2)}, "TONBO_API_KEY holds no API key"},
		"a password":           {nil, map[string]string{"TONBO_API_KEY": "hunter2"}, "TONBO_API_KEY holds no API key"},
		"two keys":             {nil, map[string]string{"TONBO_API_KEY": key + " " + key}, "TONBO_API_KEY holds no API key"},
		"no URL":               {nil, map[string]string{"SLUICE_URL": ""}, "SLUICE_URL is not set"},
		"http to a stranger":   {nil, map[string]string{"SLUICE_URL": "http://streams.example.com"}, "--plain-http"},
		"a bad URL":            {[]string{"--url", "streams.example.com"}, nil, "--url is no http or https URL"},
		"no account":           {[]string{"--stream", "events"}, nil, "write ACCOUNT/NAME"},
		"an empty stream":      {[]string{"--stream", ""}, nil, "write ACCOUNT/NAME"},
		"no lifetime":          {[]string{"--expires-in", ""}, nil, "--expires-in"},
		"a lifetime of Go's":   {[]string{"--expires-in", "15m"}, nil, "15_minutes"},
		"too short":            {[]string{"--expires-in", "29_seconds"}, nil, "30_seconds to 1_hours"},
		"too long":             {[]string{"--expires-in", "1_days"}, nil, "30_seconds to 1_hours"},
		"an argument":          {[]string{"events"}, nil, `"events"`},
		"no such flag":         {[]string{"--api-key", "x"}, nil, "--api-key"},
		"no such command":      {[]string{"list"}, nil, ""},
		"a second that is bad": {[]string{"--stream", "acme/events", "--stream", "acme/s.events"}, nil, "write acme/events"},
	} {
		t.Run(name, func(t *testing.T) {
			env := map[string]string{"TONBO_API_KEY": key, "SLUICE_URL": s.URL}
			for name, value := range tc.env {
				env[name] = value
			}
			args := append([]string{"token", "create"}, tc.args...)
			if name == "no such command" {
				args, tc.says = []string{"token", "list"}, "token create"
			}
			code, out, errOut := command(t, env, args...)
			if code != exitUsage || out != "" || !strings.Contains(errOut, tc.says) || !strings.Contains(errOut, "--help") {
				t.Errorf("exit %d, out %q, err %q", code, out, errOut)
			}
			if strings.Contains(errOut, key) || strings.Contains(errOut, "hunter2") {
				t.Error("the key is printed")
			}
		})
	}
	if len(s.forms) > 0 {
		t.Errorf("asked: %v", s.forms)
	}
}

func TestGatewayOrigin(t *testing.T) {
	for in, want := range map[string]string{
		"https://streams.example.com": "https://streams.example.com", "https://streams.example.com/": "https://streams.example.com",
		"HTTPS://Streams.Example.com:443": "https://streams.example.com", "https://streams.example.com:8443": "https://streams.example.com:8443",
		"http://127.0.0.1:8080": "http://127.0.0.1:8080", "http://localhost:80": "http://localhost", "http://[::1]:8080": "http://[::1]:8080",
	} {
		if got, err := gatewayOrigin(in, false); err != nil || got != want {
			t.Errorf("%s: %s, %v", in, got, err)
		}
	}
	if got, err := gatewayOrigin("http://sluice.internal:8080", true); err != nil || got != "http://sluice.internal:8080" {
		t.Errorf("plain http: %s, %v", got, err)
	}
	for _, bad := range []string{
		"", "streams.example.com", "streams.example.com:8080", "//streams.example.com", "ftp://streams.example.com", "https://", "https://:443",
		"https://streams.example.com/v1", "https://streams.example.com//", "https://streams.example.com?x", "https://streams.example.com?", "https://streams.example.com#", "https://u:hunter2@streams.example.com",
		"http://127.0.0.1:99999", "http://127.0.0.1:0", // a port that cannot be was tried for half a minute
		"http://streams.example.com", "http://localhost.example.com", "http://127.0.0.1.example.com", "http://10.0.0.1:8080", "http://0.0.0.0:8080", "%",
	} {
		got, err := gatewayOrigin(bad, false)
		if err == nil || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%q: %s, %v", bad, got, err)
		}
	}
}

func TestStreamResource(t *testing.T) {
	const origin = "https://streams.example.com"
	for in, want := range map[string]string{
		"acme/events": origin + "/acme/s.events", "acme/logs.*": origin + "/acme/s.logs.*", "acme/*": origin + "/acme/s.*",
		"https://other.example/acme/s.events": "https://other.example/acme/s.events",
		origin + "/acme/s.s.events":           origin + "/acme/s.s.events",
	} {
		if got, err := streamResource(origin, in); err != nil || got != want {
			t.Errorf("%s: %s, %v", in, got, err)
		}
	}
	for _, bad := range []string{"", "/", "events", "acme/", "/events", "acme/s.events", "/acme/s.events", "acme/a/b", "acme/a**", "acme/*a", "Acme/events", "acme/..", "acme/e v"} {
		if got, err := streamResource(origin, bad); err == nil {
			t.Errorf("%q: %s", bad, got)
		}
	}
}

func TestParseExpiresIn(t *testing.T) {
	for in, want := range map[string]time.Duration{
		"15_minutes": 15 * time.Minute, "1_hours": time.Hour, "1_hour": time.Hour, "30_days": 720 * time.Hour, "65535_days": 65535 * 24 * time.Hour,
	} {
		if got, err := parseExpiresIn(in); err != nil || got != want {
			t.Errorf("%s: %v, %v", in, got, err)
		}
	}
	for _, bad := range []string{"", "15", "15m", "15_", "_minutes", "15_min", "15_minutess", "15_Minutes", "-1_days", "+1_days", "1.5_hours", "0_days", "65536_days", "15_minutes ", "1_s", "90_seconds"} {
		if got, err := parseExpiresIn(bad); err == nil {
			t.Errorf("%q: %v", bad, got)
		}
	}
	for in, want := range map[string]time.Duration{"90_seconds": 90 * time.Second, "1_second": time.Second, "1_hours": time.Hour} {
		if got, err := parseLifetime(in); err != nil || got != want {
			t.Errorf("%s: %v, %v", in, got, err)
		}
	}
	// A number that is too large got the message on how to write one.
	for _, large := range []string{"106752_days", "65536_days", "99999999999999999999_days", "0_days"} {
		if _, err := parseExpiresIn(large); err == nil || err.Error() != "the number is from 1 to 65535" {
			t.Errorf("%s: %v", large, err)
		}
	}
}

// roundTrip is a way out that is a function.
type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func TestTokenCreateHasADeadline(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		began := time.Now()
		r := tokenRequest{origin: "https://streams.example.com", Subject: secret.New(aToken)}
		_, _, err := r.send(context.Background(), roundTrip(func(r *http.Request) (*http.Response, error) {
			<-r.Context().Done()
			return nil, r.Context().Err()
		}))
		if took := time.Since(began); err == nil || took != exchangeTime || !strings.Contains(err.Error(), "within 30s") {
			t.Errorf("after %v: %v", took, err)
		}
	})
}

// A proxy reads what goes over http: no key goes to it.
func TestTokenCreateUsesNoProxyForHTTP(t *testing.T) {
	way := exchangeTransport(func(*http.Request) (*url.URL, error) {
		return &url.URL{Scheme: "http", Host: "proxy.example.com:3128"}, nil
	})
	for target, want := range map[string]string{"http://gateway.internal/": "", "https://gateway.internal/": "proxy.example.com:3128"} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, target, nil)
		if err != nil {
			t.Fatal(err)
		}
		got := ""
		proxy, err := way.Proxy(req)
		if proxy != nil {
			got = proxy.Host
		}
		if got != want || err != nil {
			t.Errorf("%s goes by %q, %v; want %q", target, got, err, want)
		}
	}
}
