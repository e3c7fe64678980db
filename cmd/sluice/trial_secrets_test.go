package main

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// M02: keys and tokens came into logs, traces, metrics, profiles and the operator's pages
// by every way that a request has, at debug level, and into what a command printed of a bad
// file. Each kind of credential goes by each way; then everything that the program says
// is searched for it, for its parts and for its digest.
func TestTrialSecrets(t *testing.T) {
	const adminToken, traceToken = "an-operators-token-0123456789", "a-collectors-token-0123456789"
	dir := t.TempDir()
	r, section := receiver(t)
	section = strings.Replace(section, "X-Team: seven", "Authorization: Bearer "+traceToken, 1)
	section = strings.Replace(section, "sample: 0", "sample: 1", 1)
	e := &edge{Account: testAccount(t), Key: newTestKey(t), Reads: newTestKey(t)}
	file := edgeFile(e, []string{standIn(t)}, section+fmt.Sprintf("log: {level: debug}\nstore: {url: %q}\n", "sqlite:"+filepath.Join(dir, "sluice.db")))
	file = strings.Replace(file, `admin: {listen: "127.0.0.1:0"}`, fmt.Sprintf(`admin: {listen: "127.0.0.1:0", token: %q, pprof: true}`, adminToken), 1)
	e.start(t, file, nil)
	unknown, token := newTestKey(t), e.token(t, e.Key)
	child := e.token(t, token, "scope", "streams:read")
	credentials := append(make([]string, 0, 8), e.Key, e.Reads, unknown, token, child, adminToken)
	var said strings.Builder
	for _, c := range credentials {
		ways := everyWay(e, c)
		if c == adminToken {
			ways = ways[:headerWays] // it has no form by which it could be known in a path
		}
		for _, request := range ways {
			said.WriteString(exchangeRaw(t, e.URL, request))
			said.WriteString(exchangeRaw(t, e.Admin, request))
		}
		_ = e.exchange(t, c)
		_ = e.exchange(t, c, "resource", "https://streams.example.com/"+c)
	}
	// Made by the Management API, which tells it once.
	made := e.do(t, http.MethodPost, "/v1/api-keys", []byte(`{"name":"second"}`), "Content-Type", "application/json")
	want(t, made, http.StatusCreated)
	created := made.member(t, "key")
	want(t, e.doAs(t, http1(), created, http.MethodGet, e.path("json")+"?offset=-1", nil), http.StatusOK)
	credentials = append(credentials, created, traceToken)

	e.app.tracer.Close()
	places := map[string]string{"log": e.Log.String(), "traces": r.Raw(), "answers": said.String()}
	asOperator := []string{"Authorization", "Bearer " + adminToken}
	for _, path := range []string{
		"/metrics", "/readyz", "/readyz?verbose", "/v1/accounts", "/v1/accounts/" + e.Account, "/v1/accounts/" + e.Account + "/api-keys", "/v1/audit",
		"/debug/pprof/", "/debug/pprof/goroutine?debug=1", "/debug/pprof/goroutine?debug=2", "/debug/pprof/heap?debug=1", "/debug/pprof/allocs",
		"/debug/pprof/heap", "/debug/pprof/profile?seconds=1", "/debug/pprof/trace?seconds=0.1",
	} {
		res := ask(t, http.MethodGet, e.Admin+path, nil, asOperator...)
		want(t, res, http.StatusOK)
		places[path] = res.Text
	}
	bad := filepath.Join(dir, "bad.yaml")
	writeFile(t, bad, strings.ReplaceAll(file, "level: debug", "level: "+e.Key)+"  - id: "+e.Reads+"\n    keys: [{name: x, digest: "+unknown+"}]\n"+created+": 1\n")
	_, out, errOut := command(t, nil, "check", "--config", bad)
	places["check of a bad file"] = out + errOut
	_, out, errOut = command(t, nil, "serve", "--config", bad)
	places["start with a bad file"] = out + errOut
	if spans, faults := r.Spans(); len(spans) < 50 || faults != nil || !strings.Contains(places["check of a bad file"], "log.level") {
		t.Fatalf("%d spans; %v; check said %s", len(spans), faults, places["check of a bad file"])
	}
	for where, text := range places {
		for _, c := range credentials {
			for _, part := range partsOf(c) {
				if i := strings.Index(text, part); i >= 0 {
					t.Errorf("%s: holds a part of %s…: …%s…", where, c[:6], text[max(0, i-100):i])
				}
			}
		}
	}
}

// partsOf are what nobody may find of a credential: the whole, a half, and its digest in
// every way of writing it. A token's first part says no more than the algorithm.
func partsOf(credential string) []string {
	digest := sha256.Sum256([]byte(credential))
	parts := []string{
		credential, hex.EncodeToString(digest[:]), strings.ToUpper(hex.EncodeToString(digest[:])), string(digest[:]),
		base64.StdEncoding.EncodeToString(digest[:]), base64.RawURLEncoding.EncodeToString(digest[:]),
		base64.StdEncoding.EncodeToString([]byte("user:" + credential))[:20],
	}
	if pieces := strings.Split(credential, "."); len(pieces) == 3 {
		return append(parts, pieces[1][:20], pieces[1][len(pieces[1])-20:], pieces[2], pieces[2][:20])
	}
	return append(parts, credential[4:24])
}

// headerWays is how many of everyWay have the credential in a header alone.
const headerWays = 5

// everyWay are the requests in which a credential may come, raw.
func everyWay(e *edge, c string) []string {
	get := func(method, target string, headers ...string) string {
		return method + " " + target + " HTTP/1.1\r\nHost: gw\r\nConnection: close\r\n" + strings.Join(append(headers, ""), "\r\n") + "\r\n"
	}
	post := func(target, media, body string, headers ...string) string {
		return get(http.MethodPost, target, append(headers, "Content-Type: "+media, fmt.Sprintf("Content-Length: %d", len(body)))...) + body
	}
	basic := base64.StdEncoding.EncodeToString([]byte("user:" + c))
	path := e.path("json")
	return []string{
		get("GET", path+"?offset=-1", "Authorization: Bearer "+c),
		get("GET", path, "Authorization: "+c),
		get("GET", path, "Authorization: Basic "+basic),
		get("GET", path, "Proxy-Authorization: Basic "+basic),
		get("GET", path, "Authorization: Bearer "+c, "Authorization: Bearer "+c),
		get("GET", path+"?access_token="+c+"&offset="+c),
		get("GET", path+"?live="+c),
		get("GET", path+"/"+c),
		get("GET", path+"/snapshot/"+c, "Authorization: Bearer "+e.Key),
		get("GET", "/"+c+"/s.x"),
		get("GET", "/"+e.Account+"/s."+c),
		get("GET", "/"+e.Account+"/%74"+c),
		get("GET", "http://user:"+c+"@gw"+path),
		get("GET", path, "Cookie: token="+c),
		get("GET", path, "Referer: http://x/?key="+c, "User-Agent: "+c, "Origin: http://"+c, "X-Forwarded-For: "+c, "Forwarded: for="+c),
		get("GET", path, "Traceparent: "+c),
		get("GET", path, "Traceparent: "+parentOf(traceOne), "Tracestate: k="+c, "Baggage: k="+c),
		get("GET", e.path("open-json")+"?offset=-1", "Traceparent: "+parentOf(traceOne), "Tracestate: k="+c, "Baggage: k="+c, "If-None-Match: \""+c+"\""),
		get("GET", "/v1/streams/"+c, "Authorization: Bearer "+e.Key),
		get("GET", "/v1/accounts/"+c+"/api-keys"),
		get("DELETE", "/v1/api-keys/"+c, "Authorization: Bearer "+e.Key),
		get("GET", "/debug/pprof/"+c), get("GET", "/readyz?verbose="+c), get("GET", "/"+c),
		get("X"+c, path),
		post(e.path("text"), "text/plain", c, "Authorization: Bearer "+c), // a stream's data is its owner's, and not read here
		post(e.path("text"), "text/plain", c, "Authorization: Bearer "+e.Key),
		post("/v1/token", "application/x-www-form-urlencoded", "subject_token="+c),
		post("/v1/token?subject_token="+c, "application/x-www-form-urlencoded", "x="+c),
		post("/v1/streams", "application/json", `{"name":"`+c+`","content_type":"`+c+`"}`, "Authorization: Bearer "+e.Key),
		post("/v1/api-keys", "application/json", `{"name":{"`+c+`":1}}`, "Authorization: Bearer "+e.Key),
		post("/reload", "text/plain", c),
	}
}

// exchangeRaw sends a request as it is, and returns all that comes but what echoes a request:
// the id that a client chose for itself.
func exchangeRaw(t *testing.T, url, request string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", strings.TrimPrefix(url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
	_, _ = io.WriteString(conn, request)
	text, _ := io.ReadAll(conn)
	return string(text)
}

// M04: with profiles on, none of the operator's pages is on the public listener, whoever
// asks and however it is written.
func TestOperatorsPagesAreNotPublic(t *testing.T) {
	e := &edge{Account: testAccount(t), Key: newTestKey(t), Reads: newTestKey(t)}
	file := edgeFile(e, []string{standIn(t)}, "")
	e.start(t, strings.Replace(file, `"127.0.0.1:0"}`, `"127.0.0.1:0", pprof: true}`, 1), nil)
	if res := e.admin(t, http.MethodGet, "/debug/pprof/goroutine?debug=1"); res.StatusCode != http.StatusOK || !strings.Contains(res.Text, "goroutine profile") {
		t.Fatalf("profiles are not on: %d", res.StatusCode)
	}
	for _, path := range []string{
		"/metrics", "/metrics/", "/%6detrics", "/debug/pprof", "/debug/pprof/", "/debug/pprof/heap", "/debug/pprof/goroutine?debug=2", "/debug/pprof/cmdline",
		"/debug/pprof/profile?seconds=1", "/debug%2fpprof/", "/debug/./pprof/", "/debug/%70prof/heap", "/healthz", "/livez", "/readyz", "/readyz?verbose", "/reload",
		"/v1/accounts", "/v1/accounts/" + e.Account, "/__ursula/metrics", "/__ursula/live", "/%5f%5fursula/metrics", "/__ursula/placement",
	} {
		for _, key := range []string{"", e.Key} {
			for _, c := range []*http.Client{http1(), http2()} {
				res := e.doAs(t, c, key, http.MethodGet, path, nil)
				if res.StatusCode != http.StatusNotFound && res.StatusCode != http.StatusBadRequest || strings.Contains(res.Text, "goroutine") || strings.Contains(res.Text, "sluice_") {
					t.Errorf("%s: %d %s", path, res.StatusCode, res.Text)
				}
			}
		}
	}
}
