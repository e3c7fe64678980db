package gateway

import (
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"sluice/auth"
	"sluice/internal/refusal"
)

const pageOrigin = "https://app.example.com"

func pages() []string { return []string{pageOrigin, "http://localhost:5173"} }

// fromPage has every request come from a page, whatever the test sends.
func fromPage(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r.Header["Origin"] = []string{pageOrigin}
		next.ServeHTTP(w, r)
	})
}

// corsHeaders are those of CORS on an answer, and what it varies by.
func corsHeaders(a answer) map[string][]string {
	got := map[string][]string{}
	for name, values := range a.Header {
		if strings.HasPrefix(name, "Access-Control-") || name == "Vary" {
			got[name] = values
		}
	}
	return got
}

// readable are the headers with which a page of that origin may read an answer.
func readable(origin string, vary ...string) map[string][]string {
	h := map[string][]string{"Access-Control-Allow-Origin": {origin}, "Access-Control-Expose-Headers": {"*"}}
	if origin != "*" {
		vary = append([]string{"Origin"}, vary...)
	}
	if len(vary) > 0 {
		h["Vary"] = vary
	}
	return h
}

// M06: refusals had no headers of CORS, so that a page saw "network error" in place
// of 401, 402, 403, 413, 429, 502 or 504, and could tell none from the others. Every
// code of the table is provoked from a page; facts A18: with it stand its own code,
// no-store, and nothing of a node's.
func TestPagesReadEveryRefusal(t *testing.T) {
	noPage := []string{"H22 connect", "H18 preface", "H17 trace"} // methods that browsers let no page use
	for _, e := range refusal.Table() {
		for _, tc := range refusalCases()[e.Code] {
			if slices.Contains(noPage, tc.name) {
				continue
			}
			t.Run(string(e.Code)+"/"+tc.name, func(t *testing.T) {
				t.Parallel()
				o := tc.rig
				o.origins, o.wrap = pages(), fromPage
				res := tc.provoke(t, newRig(t, o))
				checkEntry(t, e, res)
				if diff := cmp.Diff(readable(pageOrigin), corsHeaders(res)); diff != "" {
					t.Errorf("headers of CORS (-want +got):\n%s", diff)
				}
			})
		}
	}
}

// Facts C2, C3, C5, and M06: an origin is compared whole and as it is; a listed one
// may read every header, none ever with its browser's own credentials; any other
// gets the answer without a word of CORS. K07: what varies says so, whoever asks.
func TestOrigins(t *testing.T) {
	rg, _ := newUpRig(t, respond(whole("200 OK", "Vary: Accept-Encoding\r\nStream-Immutable: true\r\n"+
		"Access-Control-Allow-Origin: https://evil.example\r\nAccess-Control-Allow-Credentials: true\r\n", "x")), rigOptions{origins: pages()})
	unlisted := map[string][]string{"Vary": {"Origin", "Accept-Encoding"}}
	for _, tc := range []struct {
		name   string
		header []string
		want   map[string][]string
	}{
		{"listed", []string{pageOrigin}, readable(pageOrigin, "Accept-Encoding")},
		{"the other listed", []string{"http://localhost:5173"}, readable("http://localhost:5173", "Accept-Encoding")},
		{"none", nil, unlisted},
		{"null", []string{"null"}, unlisted},
		{"empty", []string{""}, unlisted},
		{"another", []string{"https://evil.example"}, unlisted},
		{"a name that begins like one", []string{"https://app.example.com.evil"}, unlisted},
		{"the case of it", []string{"https://good.example.evil"}, unlisted},
		{"below one", []string{"https://x.app.example.com"}, unlisted},
		{"another scheme", []string{"http://app.example.com"}, unlisted},
		{"another port", []string{"https://app.example.com:8443"}, unlisted},
		{"the default port", []string{"https://app.example.com:443"}, unlisted},
		{"a slash", []string{"https://app.example.com/"}, unlisted},
		{"a path", []string{"https://app.example.com/x"}, unlisted},
		{"a user", []string{"https://app.example.com@evil.example"}, unlisted},
		{"another case", []string{"https://APP.example.com"}, unlisted},
		{"two in one", []string{pageOrigin + ", https://evil.example"}, unlisted},
		{"two in one, by a space", []string{pageOrigin + " https://evil.example"}, unlisted},
		{"a star", []string{"*"}, unlisted},
		{"not ASCII", []string{pageOrigin + "\xc3\xbc"}, unlisted},
	} {
		t.Run(tc.name, func(t *testing.T) {
			for _, path := range []string{"/acme/s.pub?offset=-1", chunkURL} {
				var headers []string
				for _, o := range tc.header {
					headers = append(headers, "Origin: "+o)
				}
				got := answers(t, rg.raw(t, rawGet("GET", path, headers...)))[0]
				if diff := cmp.Diff(tc.want, corsHeaders(got)); diff != "" || got.StatusCode != 200 || got.Text != "x" {
					t.Errorf("%s: %d, headers (-want +got):\n%s", path, got.StatusCode, diff)
				}
				if path == chunkURL && got.Header.Get("Cache-Control") != storable {
					t.Errorf("Cache-Control %q", got.Header.Get("Cache-Control"))
				}
			}
		})
	}
	for _, headers := range [][]string{
		{"Origin: " + pageOrigin, "Origin: " + pageOrigin}, {"Origin: " + pageOrigin, "Origin: https://evil.example"}, {"Origin: https://evil.example", "origin: " + pageOrigin},
	} {
		got := answers(t, rg.raw(t, rawGet("GET", "/acme/s.pub", headers...)))[0]
		if got.StatusCode != 400 || got.code() != string(refusal.InvalidRequest) || len(corsHeaders(got)) != 0 {
			t.Errorf("%q: %d %v", headers, got.StatusCode, corsHeaders(got))
		}
	}
}

// Facts C5: with "*" every origin may read, the header is the same for all and
// nothing varies by it; a node's own Vary stays. Still no credentials (C3).
func TestEveryOrigin(t *testing.T) {
	vary := ""
	rg, _ := newUpRig(t, func(c *upConn, _ *upRequest) { c.say(whole("200 OK", vary, "x")) }, rigOptions{origins: []string{"*"}})
	for _, origin := range []string{pageOrigin, "null", "https://evil.example"} {
		for path, want := range map[string]int{"/acme/s.pub": 200, "/acme/s.priv": 401, "/nowhere": 404} {
			if res := rg.Do(t, http.MethodGet, path, "", "", "Origin", origin); res.StatusCode != want || cmp.Diff(readable("*"), corsHeaders(res)) != "" {
				t.Errorf("%s from %s: %d %v", path, origin, res.StatusCode, corsHeaders(res))
			}
		}
	}
	if res := rg.Do(t, http.MethodGet, "/acme/s.pub", "", ""); len(corsHeaders(res)) != 0 {
		t.Errorf("without an origin: %v", corsHeaders(res))
	}
	vary = "Vary: Accept-Encoding\r\n"
	if res := rg.Do(t, http.MethodGet, "/acme/s.pub", "", "", "Origin", pageOrigin); cmp.Diff(readable("*", "Accept-Encoding"), corsHeaders(res)) != "" {
		t.Errorf("with a node's Vary: %v", corsHeaders(res))
	}
}

// Facts C4: where no origin is listed nothing is added, and a preflight is a method
// that no path takes.
func TestNoOrigins(t *testing.T) {
	rg, u := newUpRig(t, respond(whole("200 OK", "", "x")), rigOptions{})
	for _, method := range []string{"GET", "OPTIONS"} {
		res := rg.Do(t, method, "/acme/s.pub", "", "", "Origin", pageOrigin, "Access-Control-Request-Method", "GET")
		if len(corsHeaders(res)) != 0 {
			t.Errorf("%s: %v", method, corsHeaders(res))
		}
		if method == "OPTIONS" && (res.StatusCode != 405 || res.Header.Get("Allow") == "") {
			t.Errorf("preflight: %d, Allow %q", res.StatusCode, res.Header.Get("Allow"))
		}
	}
	if n := len(u.requests()); n != 1 {
		t.Errorf("%d requests at the node, want 1", n)
	}
}

// Answers of all other kinds carry the headers too: long-polls, conditional ones,
// ranges, HEAD, streams of events over both protocols with their own Vary, tokens and
// keys. K07.
func TestPagesReadEveryAnswer(t *testing.T) {
	rg, _ := newUpRig(t, func(c *upConn, r *upRequest) {
		switch {
		case strings.Contains(r.Target, "live=sse"):
			c.say(strings.Replace(sseHead, "\r\n\r\n", "\r\nVary: X-Node\r\n\r\n", 1) + chunk("data: 1\n\n") + "0\r\n\r\n")
		case strings.Contains(r.Target, "live=long-poll"):
			c.say("HTTP/1.1 204 No Content\r\nVary: X-Node\r\n\r\n")
		case r.Header.Get("If-None-Match") != "":
			c.say("HTTP/1.1 304 Not Modified\r\nVary: X-Node\r\n\r\n")
		case r.Header.Get("Range") != "":
			c.say(whole("206 Partial Content", "Vary: X-Node\r\n", "x"))
		case r.Method == "HEAD":
			c.say("HTTP/1.1 200 OK\r\nVary: X-Node\r\nContent-Length: 1\r\n\r\n")
		default:
			c.say(whole("409 Conflict", "Vary: X-Node\r\n", "{}"))
		}
	}, rigOptions{origins: pages()})
	for _, tc := range []struct {
		method, path string
		headers      []string
		status       int
		vary         []string
	}{
		{"GET", "/acme/s.pub?live=sse", nil, 200, []string{"X-Node"}},
		{"GET", "/acme/s.pub?live=long-poll", nil, 204, []string{"X-Node"}},
		{"GET", "/acme/s.pub", []string{"If-None-Match", `"1"`}, 304, []string{"X-Node"}},
		{"GET", "/acme/s.pub", []string{"Range", "bytes=0-0"}, 206, []string{"X-Node"}},
		{"HEAD", "/acme/s.pub", nil, 200, []string{"X-Node"}},
		{"GET", "/acme/s.pub", nil, 409, []string{"X-Node"}},
		{"GET", auth.JWKSPath, nil, 200, nil},
		{"GET", auth.MetadataPath, nil, 200, nil},
		{"POST", TokenPath, []string{"Content-Type", formType}, 400, nil},
		{"OPTIONS", "/acme/s.pub", nil, 405, nil}, // no preflight: nothing says for which method
		{"OPTIONS", "/acme/s.pub", []string{"Access-Control-Request-Headers", "authorization"}, 405, nil},
		{"GET", "/acme/s.pub", []string{"Access-Control-Request-Method", "GET"}, 409, []string{"X-Node"}},
	} {
		for proto, c := range protocols(t) {
			req, err := http.NewRequestWithContext(t.Context(), tc.method, rg.URL+tc.path, nil)
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("Origin", pageOrigin)
			for i := 0; i+1 < len(tc.headers); i += 2 {
				req.Header.Set(tc.headers[i], tc.headers[i+1])
			}
			res, err := c.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			_, _ = io.Copy(io.Discard, res.Body)
			_ = res.Body.Close()
			if diff := cmp.Diff(readable(pageOrigin, tc.vary...), corsHeaders(answer{Response: res})); diff != "" || res.StatusCode != tc.status {
				t.Errorf("%s %s %v over %s: %d, want %d; headers (-want +got):\n%s", tc.method, tc.path, tc.headers, proto, res.StatusCode, tc.status, diff)
			}
		}
	}
	res := rg.exchange(t, exchangeForm(rg.Keys[key]), "Origin", pageOrigin)
	if res.exchanged(t); cmp.Diff(readable(pageOrigin), corsHeaders(res)) != "" {
		t.Errorf("an exchange: %v", corsHeaders(res))
	}
}

// streamHeaders are all that a client of streams may send.
const streamHeaders = "authorization, content-type, stream-closed, stream-seq, stream-ttl, stream-expires-at, producer-id, producer-epoch, producer-seq, " +
	"stream-snapshot-parts, if-none-match, range, x-request-id"

// Facts A19, C1, C3, and M06: a preflight, which browsers send without any
// credential, is answered before anything is asked of what is behind the path: the
// same, byte for byte, for what exists, what does not, what is private and what is
// no path at all, and where everything else would be refused.
func TestPreflight(t *testing.T) {
	rg, u := newUpRig(t, respond(whole("200 OK", "", "x")), rigOptions{origins: pages(), change: func(o *Options) { o.Directory = brokenDirectory{o.Directory} }})
	paths := []string{
		"/acme/s.priv", "/acme/s.pub", "/acme/s.missing", "/nobody/s.priv", "/gone/s.priv", "/poor/s.priv?offset=-1&live=sse", "/acme/s.priv/snapshot/7",
		"/nowhere", "/__ursula/metrics", "/acme/../x", "/acme/s.%70riv", "/acme/s.pub?live=x;y", TokenPath, auth.JWKSPath, "/", "*",
	}
	for _, method := range []string{"GET", "HEAD", "POST", "PUT", "DELETE"} {
		want := "HTTP/1.1 204 No Content\r\nAccess-Control-Allow-Headers: " + streamHeaders + "\r\nAccess-Control-Allow-Methods: " + method +
			"\r\nAccess-Control-Allow-Origin: " + pageOrigin + "\r\nAccess-Control-Max-Age: 600\r\nCache-Control: no-store\r\n" +
			"Vary: Origin, Access-Control-Request-Method, Access-Control-Request-Headers\r\nConnection: close\r\n\r\n"
		for _, path := range paths {
			raw := rg.raw(t, rawGet("OPTIONS", path, "Origin: "+pageOrigin, "Access-Control-Request-Method: "+method, "Access-Control-Request-Headers: "+streamHeaders))
			if got := withoutChance(raw, "no path"); got != want {
				t.Errorf("%s for %s:\n got %q\nwant %q", path, method, got, want)
			}
			if !strings.Contains(raw, "X-Request-Id: ") {
				t.Errorf("%s: no request id", path)
			}
		}
	}
	const get = "Access-Control-Request-Method: GET"
	for _, tc := range []struct {
		name    string
		headers []string
		status  string
	}{
		{"unlisted", []string{"Origin: https://evil.example", get}, "403"},
		{"null", []string{"Origin: null", get}, "403"},
		{"no origin", []string{get}, "403"},
		{"a method that no stream takes", []string{"Origin: " + pageOrigin, "Access-Control-Request-Method: PATCH"}, "204"},
	} {
		first := ""
		for _, path := range paths {
			raw := withoutChance(rg.raw(t, rawGet("OPTIONS", path, tc.headers...)), "no path")
			if first == "" {
				first = raw
			}
			if raw != first || !strings.HasPrefix(raw, "HTTP/1.1 "+tc.status) || strings.Contains(raw, "Access-Control-Allow") {
				t.Errorf("%s, %s: %q", tc.name, path, raw)
			}
		}
	}
	u.untouched(t)
}

// A credential in a preflight, or none, a bad one or one that spins, changes nothing
// of it; nor does it cost any rate.
func TestPreflightAsksForNoCredential(t *testing.T) {
	rg, u := newUpRig(t, respond(whole("200 OK", "", "x")), rigOptions{origins: pages(), limits: oneRequest, change: oneFailure})
	for range 5 {
		for _, credential := range []string{"", "full", "unknown", "malformed", "expired"} {
			res := rg.Do(t, "OPTIONS", "/acme/s.priv", credential, "", "Origin", pageOrigin, "Access-Control-Request-Method", "POST")
			if res.StatusCode != http.StatusNoContent || res.Header.Get("Access-Control-Allow-Origin") != pageOrigin || res.Text != "" {
				t.Errorf("%q: %d %v", credential, res.StatusCode, res.Header)
			}
		}
	}
	u.untouched(t)
	if res := rg.Do(t, http.MethodGet, "/acme/s.priv", key, "", "Origin", pageOrigin); res.StatusCode != http.StatusOK {
		t.Errorf("the account's one request: %d", res.StatusCode)
	}
	if res := rg.Do(t, http.MethodGet, "/acme/s.priv", "unknown", "", "Origin", pageOrigin); res.StatusCode != http.StatusUnauthorized {
		t.Errorf("the address' one failure: %d", res.StatusCode)
	}
}
