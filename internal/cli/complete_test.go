package cli

import (
	"strings"
	"testing"
)

// The key goes with the URL that the API gives for a stream, unless it would go in
// clear to a stranger.
func TestStreamByName(t *testing.T) {
	n := newNode(t)
	n.create(t, "orders", "application/json")
	shape := func(url string) string { return strings.Replace(orders, "https://streams.example.com", url, 1) }
	a := newAPI(t, answer{200, shape(n.URL()), nil}, answer{200, shape("http://streams.example.com"), nil}, answer{200, shape(n.URL() + "/x"), nil}, answer{200, "{}", nil}, answer{404, notThere, nil})
	env := map[string]string{"TONBO_API_KEY": n.env["TONBO_API_KEY"], "SLUICE_URL": a.URL}
	code, out, errOut := commandWith(t, env, "1", "stream", "append", "orders", "-")
	want(t, code, out, errOut, exitDone, "*", "")
	code, out, errOut = command(t, env, "stream", "read", "orders")
	want(t, code, out, errOut, exitUsage, "", "--plain-http")
	code, out, errOut = command(t, env, "stream", "read", "orders")
	want(t, code, out, errOut, exitUsage, "", "no stream's URL")
	code, out, errOut = command(t, env, "stream", "read", "orders")
	want(t, code, out, errOut, exitFailed, "", "tells no URL")
	code, out, errOut = command(t, env, "stream", "tail", "orders")
	want(t, code, out, errOut, exitFailed, "", "STREAM_NOT_FOUND")
	if a.asked[0] != "GET /v1/streams/orders" {
		t.Errorf("asked %q", a.asked)
	}
	got := n.cluster.Requests()
	if last := got[len(got)-1]; last.Header.Get("Authorization") != "Bearer "+n.env["TONBO_API_KEY"] {
		t.Error("the append went without the key")
	}
}

// Completion offers the names of streams where a key is set, and nothing where none is.
func TestCompleteStreams(t *testing.T) {
	key := newTestKey(t)
	for _, name := range []string{"show", "update", "delete", "append", "read", "tail", "close"} {
		a := newAPI(t, answer{200, `{"streams":[` + orders + `],"next_cursor":null}`, nil})
		code, out, _ := command(t, a.env(key), "__complete", "stream", name, "o")
		want(t, code, out, "", exitDone, "orders\tapplication/json\n:4\n", "")
		if len(a.asked) != 1 || a.asked[0] != "GET /v1/streams?limit=200&prefix=o" {
			t.Errorf("asked %q", a.asked)
		}
		code, out, _ = command(t, nil, "__complete", "stream", name, "o")
		want(t, code, out, "", exitDone, ":4\n", "")
		a = newAPI(t, answer{403, "", nil})
		code, out, _ = command(t, a.env(key), "__complete", "stream", name, "o")
		want(t, code, out, "", exitDone, ":4\n", "")
	}
	code, out, _ := command(t, nil, "__complete", "stream", "append", "orders", "")
	want(t, code, out, "", exitDone, ":0\n", "")
	code, out, _ = command(t, nil, "completion", "bash")
	if code != exitDone || !strings.Contains(out, "__start_sluice") {
		t.Errorf("exit %d, %.100q", code, out)
	}
}

// Every command says what it is for, and shows how.
func TestHelpTeaches(t *testing.T) {
	for _, g := range Commands(environment(nil, nil, nil, nil)) {
		for _, c := range g.Commands() {
			code, out, errOut := command(t, nil, g.Name(), c.Name(), "--help")
			want(t, code, out, errOut, exitDone, "*", "")
			if c.Short == "" || !strings.Contains(c.Example, "sluice "+g.Name()+" "+c.Name()) || !strings.Contains(out, "Examples:") {
				t.Errorf("%s %s: %q", g.Name(), c.Name(), out)
			}
			for line := range strings.Lines(c.Long) {
				if len([]rune(line)) > 90 {
					t.Errorf("%s %s: a long line: %q", g.Name(), c.Name(), line)
				}
			}
		}
	}
}
