package gateway

import (
	"bufio"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"sluice/internal/refusal"
	"sluice/internal/tenant"
)

// rawGet is the bytes of a request that closes its connection.
func rawGet(method, target string, headers ...string) string {
	return method + " " + target + " HTTP/1.1\r\nHost: gw\r\nConnection: close\r\n" + strings.Join(headers, "\r\n") + "\r\n\r\n"
}

// H05: of two credentials one part checked the first and another used the
// second. Two Authorization headers are none, and so is a list in one; no cookie
// is read beside the header, or sent on. A17: nor is a query, which would be in logs.
func TestTwoCredentials(t *testing.T) {
	rg, u := newUpRig(t, respond(whole("200 OK", "", "ok")), rigOptions{})
	full, other, token := "Bearer "+rg.Keys[key], "Bearer "+rg.Keys["other.full"], "Bearer "+rg.token(t, key)
	for _, tc := range []struct {
		name    string
		headers []string
	}{
		{"two keys", []string{"Authorization: " + full, "Authorization: " + other}},
		{"the same twice", []string{"Authorization: " + full, "Authorization: " + full}},
		{"key and basic", []string{"Authorization: " + full, "Authorization: Basic YTpi"}},
		{"basic and key, other case", []string{"authorization: Basic YTpi", "AUTHORIZATION: " + full}},
		{"key and token", []string{"Authorization: " + full, "Authorization: " + token}},
		{"token twice", []string{"Authorization: " + token, "Authorization: " + token}},
		{"two tokens in one line", []string{"Authorization: " + token + ", " + token}},
		{"key and empty", []string{"Authorization: " + full, "Authorization:"}},
		{"two in one line", []string{"Authorization: " + full + ", " + other}},
	} {
		for _, stream := range []string{"/acme/s.priv", "/acme/s.pub"} {
			got := answers(t, rg.raw(t, rawGet("GET", stream, tc.headers...)))
			if len(got) != 1 || got[0].StatusCode != 401 || got[0].code() != string(refusal.InvalidCredential) || !strings.HasPrefix(got[0].Header.Get("WWW-Authenticate"), "Bearer ") {
				t.Errorf("%s on %s: %+v, want our 401", tc.name, stream, got)
			}
		}
	}
	for _, line := range rg.awaitLines(t, 19) {
		if line["key_id"] != nil && line["operation"] != "exchange_token" {
			t.Errorf("a key was used: %v", line)
		}
	}
	u.untouched(t)
	query := "?access_token=" + rg.Keys["unknown"]
	if got := answers(t, rg.raw(t, rawGet("GET", "/acme/s.priv"+query, "Authorization: "+full, "Cookie: token="+rg.Keys["other.full"]))); got[0].StatusCode != 200 {
		t.Errorf("a key, with a cookie and a query beside it: %d %s", got[0].StatusCode, got[0].Text)
	}
	if got := u.await(t, 1); got.Header.Get("Cookie") != "" || got.Header.Get("Authorization") != "" {
		t.Errorf("the node got %q", got.Head)
	}
	for _, headers := range [][]string{{"Cookie: token=" + rg.Keys[key]}, {"X-Api-Key: " + rg.Keys[key]}, {"Proxy-Authorization: " + full}} {
		if got := answers(t, rg.raw(t, rawGet("GET", "/acme/s.priv?access_token="+rg.Keys[key], headers...))); got[0].StatusCode != 401 || got[0].Header.Get("WWW-Authenticate") != challenge {
			t.Errorf("%s alone: %d, want the bare 401", headers[0][:8], got[0].StatusCode)
		}
	}
	if n := len(u.requests()); n != 1 {
		t.Errorf("%d requests at the node, want 1", n)
	}
}

// H06: valid spellings were refused and broken ones accepted, or served as a
// stranger's. The scheme's case and the number of spaces are free (RFC 9110); a
// tab is no space; what is broken is a 401 on a public stream too.
func TestSchemeCaseAndSpaces(t *testing.T) {
	rg, u := newUpRig(t, respond(whole("200 OK", "", "ok")), rigOptions{})
	good := 0
	for _, k := range []string{rg.Keys[key], rg.token(t, key), rg.token(t, "read")} {
		good += spell(t, rg, k)
	}
	if n := len(u.requests()); n != good {
		t.Errorf("%d requests at the node, want the %d good ones", n, good)
	}
}

// spell presents a credential in every way, and counts those that were taken.
func spell(t *testing.T, rg *rig, k string) (good int) {
	t.Helper()
	for _, tc := range []struct {
		value string
		ok    bool
	}{
		{"Bearer " + k, true},
		{"bearer " + k, true},
		{"BEARER " + k, true},
		{"Bearer  " + k, true},
		{" Bearer " + k + " ", true},
		{"\tBearer " + k + "\t", true},
		{"Bearer\t" + k, false},
		{"Bearer" + k, false},
		{"Bearer", false},
		{"Bearer ", false},
		{"", false},
		{"Bearer " + k + " " + k, false},
		{`Bearer "` + k + `"`, false},
		{"Bearer: " + k, false},
		{"Bearer =" + k, false},
		{"Token " + k, false},
		{k, false},
		{"Basic " + k, false},
		{"Bearer " + k + ",", false},
	} {
		for _, stream := range []string{"/acme/s.priv", "/acme/s.pub"} {
			got := answers(t, rg.raw(t, rawGet("GET", stream, "Authorization: "+tc.value)))
			switch {
			case tc.ok && got[0].StatusCode == 200:
				good++
			case !tc.ok && got[0].StatusCode == 401 && got[0].code() == string(refusal.InvalidCredential) && strings.Contains(got[0].Header.Get("WWW-Authenticate"), "error="):
			default:
				t.Errorf("%q on %s: %d %s", tc.value, stream, got[0].StatusCode, got[0].Text)
			}
		}
	}
	return good
}

// H07: giant tokens cost CPU, memory and log. Over 32 KiB of head is a
// 431; what fits is a 401 before anything is looked up; neither is repeated in
// the log, and a NUL is a 400.
func TestGiantToken(t *testing.T) {
	rg, u := newUpRig(t, respond(whole("200 OK", "", "ok")), rigOptions{})
	for _, tc := range []struct {
		name, token string
		status      int
	}{
		{"900 KiB", strings.Repeat("a", 900<<10), 431},
		{"500 000 dots", strings.Repeat(".", 500_000), 431},
		{"33 KiB", strings.Repeat("a", 33<<10), 431},
		{"20 KiB of dots", strings.Repeat(".", 20<<10), 401},
		{"9 KiB behind the prefix", "tbo_" + strings.Repeat("a", 9<<10), 401},
		{"NUL", "a\x00b", 400},
		{"not ASCII", "tbo_\xc3\xbc", 401},
		{"%0a", "tbo_%0ax", 401},
		{"quotes", `a"b\"c`, 401},
	} {
		t.Run(tc.name, func(t *testing.T) {
			// The answer may come, and the connection close, before all is written.
			conn := rg.dial(t)
			written := make(chan struct{})
			go func() {
				defer close(written)
				_, _ = io.WriteString(conn, rawGet("GET", "/acme/s.pub", "Authorization: Bearer "+tc.token))
			}()
			res := nextAnswer(t, bufio.NewReader(conn), http.MethodGet)
			_ = conn.Close()
			<-written
			if res.StatusCode != tc.status {
				t.Errorf("status %d, want %d", res.StatusCode, tc.status)
			}
		})
	}
	// Many at one time: nobody waits, nothing grows with the token.
	const many = 100
	var wait sync.WaitGroup
	dots := strings.Repeat(".", 20<<10)
	start := len(rg.Log.String())
	for range many {
		wait.Go(func() {
			req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, rg.URL+"/acme/s.priv", nil)
			if err != nil {
				t.Error(err)
				return
			}
			req.Header.Set("Authorization", "Bearer "+dots)
			res, err := client().Do(req)
			if err != nil {
				t.Error(err)
				return
			}
			_ = res.Body.Close()
			if res.StatusCode != 401 {
				t.Errorf("status %d, want 401", res.StatusCode)
			}
		})
	}
	wait.Wait()
	poll(t, "the access lines", func() bool { return len(rg.requestLines(t)) >= many })
	if grown := len(rg.Log.String()) - start; grown > many*1024 {
		t.Errorf("%d refusals made %d bytes of log", many, grown)
	}
	if log := rg.Log.String(); strings.Contains(log, strings.Repeat(".", 16)) || strings.Contains(log, strings.Repeat("a", 16)) {
		t.Error("a token is in the log")
	}
	u.untouched(t)
}

// withoutChance is an answer without what differs by nature: its id and date.
func withoutChance(raw, reflected string) string {
	lines := strings.Split(raw, "\r\n")
	lines = slices.DeleteFunc(lines, func(l string) bool {
		return strings.HasPrefix(l, "X-Request-Id: ") || strings.HasPrefix(l, "Date: ")
	})
	return strings.ReplaceAll(strings.Join(lines, "\r\n"), reflected, "{path}")
}

// A16: a status, a header, a body or the time told strangers which private
// streams exist. For each kind of credential the answers are byte for byte the
// same, whether stream and account exist or not, and the node is never asked.
func TestExistenceIsNotTold(t *testing.T) {
	rg, u := newUpRig(t, respond(whole("404 Not Found", "", "")), rigOptions{})
	rg.Keys["other token"], rg.Keys["narrow token"], rg.Keys["expired token"] = rg.token(t, "other.full"), rg.token(t, "narrowed"), rg.expiredToken(t)
	for _, credential := range []string{"", "other token", "narrow token", "expired token", "narrowed", "other.full", "other.read", "unknown", "malformed", "expired", "revoked", "agent", "poor.full", "gone.full"} {
		for _, method := range []string{"GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS"} {
			for _, behind := range []string{"", "?offset=-1&live=sse", "/snapshot/7", "/bootstrap"} {
				if behind == "/bootstrap" && method != "GET" {
					continue
				}
				var headers []string
				if credential != "" {
					headers = []string{"Authorization: Bearer " + rg.Keys[credential]}
				}
				first := ""
				for _, stream := range []string{"/acme/s.priv", "/acme/s.missing", "/nobody/s.priv"} {
					raw := withoutChance(rg.raw(t, rawGet(method, stream+behind, headers...)), stream)
					if first == "" {
						first = raw
					}
					if raw != first {
						t.Errorf("%s %s%s with %q: %q, the existing one %q", method, stream, behind, credential, raw, first)
					}
				}
				if !strings.HasPrefix(first, "HTTP/1.1 4") {
					t.Errorf("%s %s with %q: %q", method, behind, credential, first)
				}
			}
		}
	}
	u.untouched(t)
}

// A16, the time: medians of 500 tries each, in turns on one connection. A look-up
// that only one of the two makes would show as a multiple, so the bound is coarse.
func TestExistenceIsNotTimed(t *testing.T) {
	rg, _ := newUpRig(t, respond(whole("404 Not Found", "", "")), rigOptions{})
	conn := rg.dial(t)
	br := bufio.NewReader(conn)
	took := map[string][]time.Duration{}
	streams := []string{"/acme/s.priv", "/acme/s.missing"}
	for i := range 1000 {
		stream := streams[i%2]
		request := "GET " + stream + " HTTP/1.1\r\nHost: gw\r\nAuthorization: Bearer " + rg.Keys["other.full"] + "\r\n\r\n"
		start := time.Now()
		if _, err := io.WriteString(conn, request); err != nil {
			t.Fatal(err)
		}
		res := nextAnswer(t, br, http.MethodGet)
		_, _ = io.Copy(io.Discard, res.Body)
		took[stream] = append(took[stream], time.Since(start))
		if res.StatusCode != http.StatusForbidden {
			t.Fatalf("status %d", res.StatusCode)
		}
	}
	for _, all := range took {
		slices.Sort(all)
	}
	a, b := took[streams[0]][250], took[streams[1]][250]
	if a > 3*b || b > 3*a {
		t.Errorf("medians: existing %v, missing %v", a, b)
	}
}

// A18: a broken credential on a public stream was served as none, and answers
// to credentials were stored for all. Broken is 401; good or not reaching, the
// answer to any credential is no-store.
func TestBrokenCredentialOnAPublicStream(t *testing.T) {
	rg, u := newUpRig(t, respond(whole("200 OK", "Stream-Immutable: true\r\nCache-Control: public\r\n", "x")), rigOptions{})
	rg.Keys["token"], rg.Keys["reading token"], rg.Keys["elsewhere"] = rg.token(t, key), rg.token(t, "read"), rg.token(t, "narrowed")
	rg.Keys["expired token"] = rg.expiredToken(t)
	rg.Keys["forged token"] = rg.Keys["token"][:len(rg.Keys["token"])-6] + "AAAAAA"
	rg.Keys["token for others"] = rg.mint(t, "aud", "https://elsewhere.example.com")
	for credential, want := range map[string]int{
		"token": 200, "reading token": 200, "elsewhere": 200, "expired token": 401, "forged token": 401, "token for others": 401,
		"": 200, key: 200, "read": 200, "narrowed": 200, "other.full": 200,
		"expired": 401, "revoked": 401, "unknown": 401, "malformed": 401, "agent": 401,
	} {
		before := len(u.requests())
		for _, path := range []string{chunkURL, "/acme/s.pub?offset=-1"} {
			res := rg.Do(t, http.MethodGet, path, credential, "")
			cached := "no-store"
			if credential == "" && path == chunkURL {
				cached = storable
			}
			if res.StatusCode != want || res.Header.Get("Cache-Control") != cached {
				t.Errorf("%q, %s: %d %q, want %d %q", credential, path, res.StatusCode, res.Header.Get("Cache-Control"), want, cached)
			}
			code := refusal.InvalidCredential
			if strings.HasPrefix(credential, "expired") {
				code = refusal.CredentialExpired
			}
			if want == 401 && (res.code() != string(code) || !strings.Contains(res.Header.Get("WWW-Authenticate"), `error="invalid_token"`)) {
				t.Errorf("%q: %s %q, want %s", credential, res.Text, res.Header.Get("WWW-Authenticate"), code)
			}
		}
		if reached := len(u.requests()) > before; reached != (want == 200) {
			t.Errorf("%q: reached the node: %v", credential, reached)
		}
	}
}

// A20: what lies in the store, or nearly a key, opened the door.
func TestOnlyTheKeyIsAKey(t *testing.T) {
	rg, u := newUpRig(t, respond(whole("200 OK", "", "x")), rigOptions{})
	k := rg.Keys[key]
	last := "x"
	if strings.HasSuffix(k, last) {
		last = "y"
	}
	swapped := strings.Map(func(r rune) rune {
		switch {
		case 'a' <= r && r <= 'z':
			return r - 'a' + 'A'
		case 'A' <= r && r <= 'Z':
			return r - 'A' + 'a'
		}
		return r
	}, k[4:])
	digest := tenant.DigestOf(k).String()
	for name, text := range map[string]string{
		"the stored digest": digest, "its hex": strings.TrimPrefix(digest, "sha256:"), "its hex as a key": "tbo_" + digest[7:47],
		"the key's id": "acme/full", "its hint": k[len(k)-4:], "its name": "full", "a changed last character": k[:len(k)-1] + last,
		"case swapped": "tbo_" + swapped, "a zero-width byte behind": k + "\u200b", "a zero-width byte inside": k[:20] + "\u200b" + k[20:],
		"an older form": "tbo_0123456789abcdef0123456789abcdef", "without its prefix": k[4:], "twice": k + k, "padded": k + "=",
	} {
		res := rg.Do(t, http.MethodGet, "/acme/s.priv", "", "", "Authorization", "Bearer "+text)
		if res.StatusCode != 401 || res.code() != string(refusal.InvalidCredential) {
			t.Errorf("%s: %d %s", name, res.StatusCode, res.Text)
		}
	}
	u.untouched(t)
	if res := rg.Do(t, http.MethodGet, "/acme/s.priv", key, ""); res.StatusCode != 200 {
		t.Errorf("the key itself: %d %s", res.StatusCode, res.Text)
	}
}
