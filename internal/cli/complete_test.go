package cli

import (
	"slices"
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

// Keys, accounts, states and streams of a flag were completed with the names of files,
// and so was all that nothing is known of.
func TestCompleteTheRest(t *testing.T) {
	key := newTestKey(t)
	keys := answer{200, `{"api_keys":[` + goneKey + `,` + ciKey + `,` + fileKey + `],"next_cursor":null}`, nil}
	accounts := answer{200, `{"accounts":[` + acme + `],"next_cursor":null}`, nil}
	streams := answer{200, `{"streams":[` + orders + `],"next_cursor":null}`, nil}
	account := answer{200, acme, nil}
	const noFiles, files = ":4\n", ":0\n"
	for args, tc := range map[string]struct {
		answers []answer
		out     string
	}{
		"api-key show ~":                      {[]answer{keys}, "ci\tread orders,logs.*\nfile\twrite all\n" + noFiles},
		"api-key rotate c":                    {[]answer{keys}, "ci\tread orders,logs.*\n" + noFiles},
		"api-key narrow f":                    {[]answer{keys}, "file\twrite all\n" + noFiles},
		"api-key revoke x":                    {[]answer{keys}, noFiles},
		"api-key revoke --account acme c":     {[]answer{keys}, "ci\tread orders,logs.*\n" + noFiles},
		"api-key revoke ci ~":                 {nil, noFiles},
		"api-key create ~":                    {nil, noFiles},
		"api-key create --stream o":           {[]answer{streams}, "orders\tapplication/json\n" + noFiles},
		"api-key narrow --stream o":           {[]answer{streams}, "orders\tapplication/json\n" + noFiles},
		"api-key create --account a":          {[]answer{accounts}, "acme\tactive\n" + noFiles},
		"account show a":                      {[]answer{accounts}, "acme\tactive\n" + noFiles},
		"account update ~":                    {[]answer{accounts}, "acme\tactive\n" + noFiles},
		"account delete a":                    {[]answer{accounts}, "acme\tactive\n" + noFiles},
		"account create ~":                    {nil, noFiles},
		"account update acme --state ~":       {nil, "active\nunpaid\nrevoked\n" + noFiles},
		"account list --prefix ~":             {nil, noFiles},
		"account list --admin-token-file ~":   {nil, files},
		"stream create ~":                     {nil, noFiles},
		"stream create x --expires-in ~":      {nil, noFiles},
		"stream create x --content-type text": {nil, "text/plain\n" + noFiles},
		"stream update x --public=~":          {nil, "true\nfalse\n" + noFiles},
		"stream list ~":                       {nil, noFiles},
		"stream read orders --output ~":       {nil, files},
		"stream tail orders --offset ~":       {nil, "-1\nnow\n" + noFiles},
		"stream read orders --key-file ~":     {nil, files},
		"token create --stream a":             {[]answer{account, streams}, "acme/orders\tapplication/json\n" + noFiles},
		"token create --stream acme/o":        {[]answer{account, streams}, "acme/orders\tapplication/json\n" + noFiles},
		"token create --stream beta/":         {[]answer{account}, noFiles},
		"token create ~":                      {nil, noFiles},
		"audit ~":                             {nil, noFiles},
		"audit --account a":                   {[]answer{accounts}, "acme\tactive\n" + noFiles},
		"audit --action stream.u":             {nil, "stream.update\nstream.undo\nstream.undeclare\n" + noFiles},
		"audit --target o":                    {[]answer{streams}, "orders\tapplication/json\n" + noFiles},
		"audit --since ~":                     {nil, noFiles},
	} {
		a := newAPI(t, tc.answers...)
		words := append([]string{"__complete"}, strings.Fields(args)...)
		for i, w := range words {
			words[i] = strings.Replace(w, "~", "", 1)
		}
		code, out, errOut := command(t, a.env(key), words...)
		if code != exitDone || out != tc.out || len(a.calls()) != len(tc.answers) {
			t.Errorf("%s: exit %d, %q, want %q; asked %q, %s", args, code, out, tc.out, a.calls(), errOut)
		}
	}
}

// Every command says what it is for, and shows how.
func TestHelpTeaches(t *testing.T) {
	for _, g := range Commands(environment(nil, nil, nil, nil)) {
		if len(g.Commands()) == 0 {
			code, out, errOut := command(t, nil, g.Name(), "--help")
			want(t, code, out, errOut, exitDone, "*", "")
			if g.Short == "" || !strings.Contains(out, "Examples:\n  sluice "+g.Name()) || g.Flags().Lookup("json") == nil {
				t.Errorf("%s: %q", g.Name(), out)
			}
		}
		for _, c := range g.Commands() {
			code, out, errOut := command(t, nil, g.Name(), c.Name(), "--help")
			want(t, code, out, errOut, exitDone, "*", "")
			if c.Short == "" || !strings.Contains(c.Example, "sluice "+g.Name()+" "+c.Name()) || !strings.Contains(out, "Examples:") {
				t.Errorf("%s %s: %q", g.Name(), c.Name(), out)
			}
			// The quickstart said that every command has it. These two print what there is, as it is.
			plain := []string{"stream read", "usage export"}
			if got := c.Flags().Lookup("json") != nil; got == slices.Contains(plain, g.Name()+" "+c.Name()) {
				t.Errorf("%s %s: --json is %v", g.Name(), c.Name(), got)
			}
			for line := range strings.Lines(c.Long) {
				if len([]rune(line)) > 90 {
					t.Errorf("%s %s: a long line: %q", g.Name(), c.Name(), line)
				}
			}
		}
	}
}
