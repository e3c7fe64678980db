package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"sluice/internal/tenant"
)

// newOwnOriginEdge is an edge whose origin is where it listens, as SLUICE_URL
// says it. It has a third key, an agent's, of some streams.
func newOwnOriginEdge(t *testing.T) (e *edge, agent string) {
	t.Helper()
	e = &edge{Account: testAccount(t), Key: newTestKey(t), Reads: newTestKey(t)}
	agent = newTestKey(t)
	address := freePort(t)
	file := strings.Replace(edgeFile(e, []string{standIn(t)}, ""),
		"listen: 127.0.0.1:0\norigin: https://streams.example.com\n", "listen: "+address+"\norigin: http://"+address+"\n", 1)
	file += fmt.Sprintf("      - {name: agent, digest: %q, acts_as: agent, streams: [json, \"open-*\"]}\n", tenant.DigestOf(agent))
	return e.start(t, file, nil), agent
}

// The whole way: a key, the command, a token, and what it reaches.
func TestTokenCreateEndToEnd(t *testing.T) {
	e, agent := newOwnOriginEdge(t)
	e.append(t, "json", `{"n":1}`)
	create := func(key string, args ...string) string {
		t.Helper()
		code, out, errOut := command(t, map[string]string{"TONBO_API_KEY": key, "SLUICE_URL": e.URL}, append([]string{"token", "create"}, args...)...)
		if code != exitDone || errOut != "" {
			t.Fatalf("exit %d, err %q", code, errOut)
		}
		return strings.TrimSuffix(out, "\n")
	}
	status := func(token, method, name string) int {
		t.Helper()
		var body []byte
		query := "?offset=-1"
		if method == http.MethodPost {
			body, query = []byte(`{"n":2}`), ""
		}
		return e.doAs(t, http1(), token, method, e.path(name)+query, body, "Content-Type", "application/json").StatusCode
	}
	whole := create(e.Key)
	narrow := create(e.Key, "--stream", e.Account+"/json", "--read-only", "--expires-in", "1_minute")
	for name, tc := range map[string]struct {
		token                  string
		read, write, readOther int
	}{
		"all that the key reaches":     {whole, 200, 204, 200},
		"one stream, read":             {narrow, 200, 403, 403},
		"of a key that reads":          {create(e.Reads), 200, 403, 200},
		"of an agent's key":            {create(agent), 200, 204, 403},
		"of a token, narrowed further": {create(whole, "--stream", e.URL+e.path("json")), 200, 204, 403},
		"the agent's key itself":       {agent, 401, 401, 401},
	} {
		if got := status(tc.token, http.MethodGet, "json"); got != tc.read {
			t.Errorf("%s: read %d, want %d", name, got, tc.read)
		}
		if got := status(tc.token, http.MethodPost, "json"); got != tc.write {
			t.Errorf("%s: write %d, want %d", name, got, tc.write)
		}
		if got := status(tc.token, http.MethodGet, "text"); got != tc.readOther {
			t.Errorf("%s: read another %d, want %d", name, got, tc.readOther)
		}
	}
	var answer struct {
		Expires int    `json:"expires_in"`
		Scope   string `json:"scope"`
	}
	if err := json.Unmarshal([]byte(create(e.Reads, "--json", "--expires-in", "90_seconds")), &answer); err != nil || answer.Scope != "streams:read" || answer.Expires > 90 || answer.Expires < 80 {
		t.Errorf("%v: %+v", err, answer)
	}
	for name, tc := range map[string]struct {
		key  string
		args []string
		says string
	}{
		"beyond its streams":   {agent, []string{"--stream", e.Account + "/text"}, "invalid_target: "},
		"another's stream":     {e.Key, []string{"--stream", "other/json"}, "invalid_target: "},
		"an unknown key":       {newTestKey(t), nil, "invalid_grant: the subject token is not valid, or was revoked"},
		"wider than the token": {narrow, []string{"--stream", e.Account + "/text"}, "invalid_target: "},
	} {
		code, out, errOut := command(t, map[string]string{"TONBO_API_KEY": tc.key, "SLUICE_URL": e.URL}, append([]string{"token", "create"}, tc.args...)...)
		if code != exitFailed || out != "" || !strings.HasPrefix(errOut, "sluice: "+tc.says) || strings.Count(errOut, "\n") != 1 {
			t.Errorf("%s: exit %d, out %q, err %q", name, code, out, errOut)
		}
	}
	for _, credential := range []string{e.Key, e.Reads, agent, whole, narrow} {
		if strings.Contains(e.Log.String(), credential) {
			t.Error("a credential is in the log")
		}
	}
}
