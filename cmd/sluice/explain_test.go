package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"sluice/gateway"
	"sluice/internal/tenant"
)

// The running gateway is asked with what it knows now: accounts and keys of the store, what was
// revoked a moment ago, how much of the rate is left; and none of it is taken.
func TestExplainOfTheRunningGateway(t *testing.T) {
	public, admin := newManaged(t, standIn(t))
	env := map[string]string{"SLUICE_URL": public, "SLUICE_ADMIN_URL": admin}
	run := func(args string) string {
		t.Helper()
		code, out, errOut := command(t, env, strings.Fields(args)...)
		if refused := strings.Contains(out, "Answer: 4") || strings.Contains(out, `"outcome":"refused"`); code != exitDone && (!refused || code != exitRefuse) {
			t.Fatalf("%s: exit %d: %s%s", args, code, out, errOut)
		}
		return out
	}
	key := regexp.MustCompile(`tbo_[0-9A-Za-z]{40}`).FindString(run("account create beta --limit burst=3 --limit requests_per_second=1"))
	explain := func(want string, args string) {
		t.Helper()
		eventually(t, args+" is "+want, func() bool { // a change is in force within a second
			out := run("explain " + args)
			if strings.Contains(out, key) {
				t.Fatalf("it prints the key: %s", out)
			}
			return strings.Contains(out, want)
		})
	}
	explain("Answer: 401 INVALID_CREDENTIAL", "GET /beta/s.x")
	env["TONBO_API_KEY"] = key
	run("stream create x --content-type text/plain")
	explain("Answer: forwarded as GET /beta/s.x to the node that leads", "GET "+public+"/beta/s.x")
	explain("2 requests are left after this one, of 3 at once and 1 a second", "GET /beta/s.x")
	explain("Answer: 401 INVALID_CREDENTIAL", "--anonymous GET /beta/s.x")
	explain("Answer: 413 REQUEST_TOO_LARGE", "POST /beta/s.x --header Content-Length:99999999")
	explain("Answer: 403 STREAM_LIFECYCLE", "DELETE /beta/s.x")
	explain("Answer: the gateway's own", "GET /v1/streams")
	explain("client 203.0.113.7", "--client 203.0.113.7 GET /beta/s.x")
	run("account update beta --state unpaid")
	explain("Answer: 402 PAYMENT_REQUIRED", "GET /beta/s.x")
	var x gateway.Explanation
	if err := json.Unmarshal([]byte(run("explain --json GET /beta/s.x")), &x); err != nil || x.Status != http.StatusPaymentRequired {
		t.Errorf("%v %+v", err, x)
	}
	run("account update beta --state active")
	id := strings.Fields(strings.Split(run("api-key list --account beta"), "\n")[1])
	run("api-key revoke " + id[0] + " --account beta")
	explain("revoked API key", "GET /beta/s.x")
}

// A file decides without a gateway, a node, or a store.
func TestExplainByFile(t *testing.T) {
	dir := t.TempDir()
	key := newTestKey(t)
	digest := tenant.DigestOf(key).String()
	file := func(more string) string {
		path := filepath.Join(dir, "sluice.yaml")
		writeFile(t, path, "origin: https://streams.example.com\nursula: {nodes: [\"http://127.0.0.1:1\"]}\n"+more+
			"accounts:\n  - id: acme\n    streams: [{name: events, public: true}]\n    keys: [{name: ci, digest: \""+digest+"\"}]\n")
		return path
	}
	stored := "store: {url: \"sqlite:" + filepath.Join(dir, "none", "sluice.db") + "\"}\nstreams: {lifecycle: protocol}\n"
	keyFile := filepath.Join(dir, "key")
	writeFile(t, keyFile, "TONBO_API_KEY="+key+"\n")
	for name, tc := range map[string]struct {
		more string
		env  map[string]string
		args string
		code int
		says []string
	}{
		"a key":              {"", map[string]string{"TONBO_API_KEY": key}, "POST /acme/s.events", exitDone, []string{"key acme/ci", "Answer: forwarded as POST /acme/s.events", "decided by the file alone"}},
		"a key of a file":    {"", nil, "--key-file " + keyFile + " POST /acme/s.events", exitDone, []string{"key acme/ci"}},
		"a stranger":         {"", nil, "GET /acme/s.events", exitDone, []string{"the stream is public"}},
		"another host":       {"", nil, "GET https://other.example.com/acme/s.events", exitDone, []string{"not that of origin"}},
		"no stream's":        {"", nil, "GET /v1/streams", exitRefuse, []string{"404 NOT_FOUND"}},
		"a token":            {"", map[string]string{"TONBO_API_KEY": "a.b.c"}, "GET /acme/s.events", exitRefuse, []string{"401 INVALID_CREDENTIAL", "auth.signing_keys is empty"}},
		"with a store":       {stored, map[string]string{"TONBO_API_KEY": key}, "PUT /acme/s.new", exitDone, []string{"Answer: forwarded as PUT /acme/s.new", "the store was not asked"}},
		"its API":            {stored, map[string]string{"TONBO_API_KEY": key}, "GET /v1/streams", exitDone, []string{"Answer: the gateway's own"}},
		"a bad file":         {"nodes: 1\n", nil, "GET /acme/s.events", exitFailed, []string{"sluice.yaml:3: nodes"}},
		"no URL":             {"", nil, "GET", exitUsage, []string{"URL is missing"}},
		"a key in the flags": {"", nil, "-HAuthorization:x GET /acme/s.events", exitUsage, []string{"flags are seen by others"}},
		"no header":          {"", nil, "-HAccept GET /acme/s.events", exitUsage, []string{"Name: value"}},
		"no address":         {"", nil, "--client here GET /acme/s.events", exitUsage, []string{"203.0.113.7"}},
		"both":               {"", nil, "--anonymous --key-file " + keyFile + " GET /", exitUsage, []string{"leave one out"}},
	} {
		code, out, errOut := command(t, tc.env, append([]string{"explain", "--config", file(tc.more)}, strings.Fields(tc.args)...)...)
		for _, says := range tc.says {
			if code != tc.code || !strings.Contains(out+errOut, says) || strings.Contains(out+errOut, key) {
				t.Errorf("%s: exit %d: %s%s", name, code, out, errOut)
			}
		}
	}
	if _, err := os.Stat(filepath.Join(dir, "none")); err == nil {
		t.Error("a store was made")
	}
	// Nobody to ask.
	if code, _, errOut := command(t, nil, "explain", "GET", "/"); code != exitUsage || !strings.Contains(errOut, "SLUICE_ADMIN_URL") {
		t.Errorf("exit %d: %s", code, errOut)
	}
	if code, _, errOut := command(t, map[string]string{"SLUICE_ADMIN_URL": fmt.Sprintf("http://%s", freePort(t))}, "explain", "GET", "/"); code != exitFailed {
		t.Errorf("exit %d: %s", code, errOut)
	}
}
