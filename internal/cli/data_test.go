package cli

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"sluice/internal/ursulatest"
)

// node is the stand-in for Ursula in a gateway's place: its data path is the same.
type node struct {
	*ursulatest.Node
	cluster *ursulatest.Cluster
	env     map[string]string
}

func newNode(t *testing.T) *node {
	t.Helper()
	cluster := ursulatest.New(ursulatest.Options{})
	if err := cluster.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cluster.Close() })
	return &node{cluster.Node(0), cluster, map[string]string{"TONBO_API_KEY": newTestKey(t), "SLUICE_URL": cluster.URLs()[0]}}
}

// ask sends a request to acme's stream.
func (n *node) ask(t *testing.T, method, name, media, body string) int {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, n.URL()+"/acme/s."+name, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", media)
	req.Close = true // the node may be restarted in between
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	_ = res.Body.Close()
	return res.StatusCode
}

func (n *node) create(t *testing.T, name, media string) {
	t.Helper()
	if code := n.ask(t, http.MethodPut, name, media, ""); code != http.StatusCreated {
		t.Fatalf("create %s: %d", name, code)
	}
}

// want checks an exit code and outputs; "*" is anything.
func want(t *testing.T, code int, out, errOut string, wantCode int, wantOut, wantErr string) {
	t.Helper()
	if code != wantCode || wantOut != "*" && out != wantOut || wantErr != "*" && !strings.Contains(errOut, wantErr) || wantErr == "" && errOut != "" {
		t.Errorf("exit %d, want %d\nout %q, want %q\nerr %q, want %q", code, wantCode, out, wantOut, errOut, wantErr)
	}
}

// The way of a stream from the first append to its end.
func TestAppendReadTailClose(t *testing.T) {
	n := newNode(t)
	n.create(t, "orders", "application/json")
	code, out, errOut := commandWith(t, n.env, `{"n":1}`, "stream", "append", "acme/orders")
	want(t, code, out, errOut, exitDone, "Appended: 1 message, 7 bytes\nNext offset: 00000000000000000008\n", "")
	file := filepath.Join(t.TempDir(), "in.json")
	write(t, file, `[{"n":2},{"n":3}]`)
	code, out, errOut = command(t, n.env, "stream", "append", "acme/orders", file, "--json", "--producer-id", "me")
	want(t, code, out, errOut, exitDone, `{"messages":2,"bytes":17,"next_offset":"00000000000000000024","producer_id":"me","piece_size":1048576}`+"\n", "")
	const all = `{"n":1}` + "\n" + `{"n":2}` + "\n" + `{"n":3}` + "\n"
	code, out, errOut = command(t, n.env, "stream", "read", "acme/orders")
	want(t, code, out, errOut, exitDone, all, "")
	code, out, errOut = command(t, n.env, "stream", "read", n.URL()+"/acme/s.orders", "--offset", "00000000000000000008", "--show-offset")
	want(t, code, out, errOut, exitDone, all[8:], "Next offset: 00000000000000000024\n")
	code, out, errOut = command(t, n.env, "stream", "close", "acme/orders")
	want(t, code, out, errOut, exitDone, "Closed: acme/orders\nEnd offset: 00000000000000000024\n", "")
	code, out, errOut = command(t, n.env, "stream", "close", "acme/orders", "--json")
	want(t, code, out, errOut, exitDone, `{"closed":true,"next_offset":"00000000000000000024"}`+"\n", "")
	code, out, errOut = command(t, n.env, "stream", "tail", "acme/orders", "--offset", "-1")
	want(t, code, out, errOut, exitDone, all, "")
	code, out, errOut = command(t, n.env, "stream", "tail", "acme/orders")
	want(t, code, out, errOut, exitDone, "", "")
	code, out, errOut = command(t, n.env, "stream", "tail", "acme/orders", "--offset=-1", "--json")
	want(t, code, out, errOut, exitDone, `{"next_offset":"00000000000000000024","messages":[{"n":1},{"n":2},{"n":3}],"closed":true}`+"\n", "")
	code, out, errOut = commandWith(t, n.env, `{"n":4}`, "stream", "append", "acme/orders", "-")
	want(t, code, out, errOut, exitFailed, "", "' is closed; nothing is stored\n")
}

// A public stream is read without a key; one that needs a key says so.
func TestReadWithoutAKey(t *testing.T) {
	n := newNode(t)
	n.create(t, "news", "text/plain")
	n.ask(t, http.MethodPost, "news", "text/plain", "hello\n")
	delete(n.env, "TONBO_API_KEY")
	code, out, errOut := command(t, n.env, "stream", "read", "acme/news")
	want(t, code, out, errOut, exitDone, "hello\n", "")
	code, out, errOut = command(t, n.env, "stream", "read", "news")
	want(t, code, out, errOut, exitUsage, "", "a public stream is read without one, named ACCOUNT/NAME")
	code, out, errOut = command(t, n.env, "stream", "append", "acme/news")
	want(t, code, out, errOut, exitUsage, "", "TONBO_API_KEY is not set")
	n.env["TONBO_API_KEY"] = "hunter2"
	code, out, errOut = command(t, n.env, "stream", "read", "acme/news")
	want(t, code, out, errOut, exitUsage, "", "TONBO_API_KEY holds no API key")
}

// The key may be in a file, with what files have around it.
func TestKeyFile(t *testing.T) {
	n := newNode(t)
	n.create(t, "news", "text/plain")
	file := filepath.Join(t.TempDir(), "key")
	write(t, file, "  "+n.env["TONBO_API_KEY"]+"\r\n")
	delete(n.env, "TONBO_API_KEY")
	code, out, errOut := commandWith(t, n.env, "x\n", "stream", "append", "acme/news", "--key-file", file)
	want(t, code, out, errOut, exitDone, "*", "")
	write(t, file, strings.Repeat("x", maxKeyFile+1))
	code, out, errOut = command(t, n.env, "stream", "read", "acme/news", "--key-file", file)
	want(t, code, out, errOut, exitUsage, "", "too large for a key")
}

// The file that `account create acme > acme.env` makes was no key file, though the
// quickstart says that keys are read from one.
func TestKeyFileOfAnEnvironment(t *testing.T) {
	key, other := newTestKey(t), newTestKey(t)
	for text, want := range map[string]string{
		"TONBO_API_KEY=" + key + "\n":                                        key,
		"# mine\r\nexport TONBO_API_KEY=\"" + key + "\"\r\nSLUICE_URL=x\r\n": key,
		"A=b\nTONBO_API_KEY='" + key + "'":                                   key,
		"TONBO_API_KEY=" + other + "\nTONBO_API_KEY=" + key + "\n":           key,
		"\n" + key + "\n\n":                                                  key,
		"TONBO_API_KEY=\n":                                                   "",
		"A=b\n":                                                              "",
		"TONBO_API_KEY=" + key + " " + other + "\n":                          "",
	} {
		file := filepath.Join(t.TempDir(), "key")
		write(t, file, text)
		got, err := readKey(func(string) (string, bool) { return "", false }, file)
		if got.Reveal() != want || (err == nil) != (want != "") || err != nil && strings.Contains(err.Error(), "tbo_") {
			t.Errorf("%q: %v", text, err)
		}
	}
}

// Text that an event cannot carry, and bytes, are followed as they are.
func TestTailOfOtherTypes(t *testing.T) {
	n := newNode(t)
	n.create(t, "text", "text/plain")
	n.create(t, "bytes", "application/octet-stream")
	for name, media := range map[string]string{"text": "text/plain", "bytes": "application/octet-stream"} {
		n.ask(t, http.MethodPost, name, media, "a\r\n\x00\xff")
		command(t, n.env, "stream", "close", "acme/"+name)
		code, out, errOut := command(t, n.env, "stream", "tail", "acme/"+name, "--offset", "-1")
		want(t, code, out, errOut, exitDone, "a\r\n\x00\xff", "")
		code, out, errOut = command(t, n.env, "stream", "tail", "acme/"+name, "--offset", "-1", "--json")
		want(t, code, out, errOut, exitDone, `{"next_offset":"00000000000000000005","base64":"YQ0KAP8=","closed":true}`+"\n", "")
	}
}

// What was not whole is not there under its name; what came stays, and how to go on is
// said, and is right.
func TestReadToAFile(t *testing.T) {
	n := newNode(t)
	n.create(t, "bytes", "application/octet-stream")
	text := ""
	for i := range 5 {
		part := strings.Repeat(string(rune('a'+i)), 600_000)
		text += part
		n.ask(t, http.MethodPost, "bytes", "application/octet-stream", part)
	}
	file := filepath.Join(t.TempDir(), "out")
	write(t, file, "older")
	n.SetFault(ursulatest.Times(2, ursulatest.CutAfter(1000)))
	code, out, errOut := command(t, n.env, "stream", "read", "acme/bytes", "--output", file)
	want(t, code, out, errOut, exitDone, "", "trying again in")
	if got := read(t, file); got != text {
		t.Errorf("%d bytes, want %d", len(got), len(text))
	}
	if got := parts(t, file); len(got) > 0 {
		t.Errorf("left: %q", got)
	}
	// Refused in the middle.
	var reads int
	n.SetFault(ursulatest.Match(func(r *http.Request) bool {
		if r.Method == http.MethodGet {
			reads++
		}
		return reads > 1
	}, ursulatest.Status(http.StatusUnauthorized, nil, []byte(`{"error":{"code":"CREDENTIAL_EXPIRED","message":"It has expired."}}`))))
	write(t, file, "older")
	code, out, errOut = command(t, n.env, "stream", "read", "acme/bytes", "-o", file)
	part := parts(t, file)[0]
	want(t, code, out, errOut, exitFailed, "", file+" is not whole: "+part+" has the first 1 MiB. To go on: sluice stream read acme/bytes --offset ")
	if !strings.HasSuffix(errOut, " >> "+part+" && mv "+part+" "+file+"\n") {
		t.Errorf("err %q", errOut)
	}
	if read(t, file) != "older" {
		t.Error("the file is not the older one")
	}
	n.SetFault(nil)
	_, offset, _ := strings.Cut(errOut, "--offset ")
	offset, _, _ = strings.Cut(offset, " ")
	code, out, errOut = command(t, n.env, "stream", "read", "acme/bytes", "--offset", offset)
	want(t, code, out, errOut, exitDone, "*", "")
	if read(t, part)+out != text {
		t.Error("the parts are not the whole")
	}
	// Refused at once.
	n.SetFault(ursulatest.Status(http.StatusNotFound, nil, []byte(notThere)))
	code, out, errOut = command(t, n.env, "stream", "read", "acme/bytes", "-o", file+"2")
	want(t, code, out, errOut, exitFailed, "", "sluice: STREAM_NOT_FOUND: There is no such stream; 'sluice stream list' shows what there is\n")
	if got := parts(t, file+"2"); len(got) > 0 {
		t.Errorf("left: %q", got)
	}
}

// What an append says when it has to give up is right: as it is said, it goes on.
func TestAppendGoesOnAsItSays(t *testing.T) {
	n := newNode(t)
	n.create(t, "lines", "text/plain")
	text := strings.Repeat("a line of text\n", 100)
	file := filepath.Join(t.TempDir(), "in.txt")
	write(t, file, text)
	posts := 0
	n.SetFault(ursulatest.Match(func(r *http.Request) bool {
		if r.Method == http.MethodPost {
			posts++
		}
		return posts > 3
	}, ursulatest.Status(http.StatusForbidden, http.Header{"X-Request-Id": {"req-1"}}, []byte(`{"error":{"code":"FORBIDDEN","message":"No."}}`))))
	code, out, errOut := command(t, n.env, "stream", "append", "acme/lines", file, "--piece-size", "150")
	want(t, code, out, errOut, exitFailed, "", "FORBIDDEN: No. (request id req-1); use another key")
	_, again, ok := strings.Cut(errOut, "Stored for sure: 450 bytes. To go on, without storing anything twice:\n  sluice ")
	if !ok {
		t.Fatalf("err %q", errOut)
	}
	n.SetFault(nil)
	code, out, errOut = command(t, n.env, strings.Fields(again)...)
	want(t, code, out, errOut, exitDone, "Appended: 1.5 KiB\nNext offset: 00000000000000001500\n", "")
	code, out, errOut = command(t, n.env, "stream", "read", "acme/lines")
	want(t, code, out, errOut, exitDone, text, "")
}

// What cannot be gone on with is told apart: another text under a producer id that was
// used, a stream that was closed in the middle.
func TestAppendThatCannotGoOn(t *testing.T) {
	n := newNode(t)
	n.create(t, "lines", "text/plain")
	commandWith(t, n.env, "a\nb\n", "stream", "append", "acme/lines", "--producer-id", "me")
	code, out, errOut := commandWith(t, n.env, "a\nc\n", "stream", "append", "acme/lines", "--producer-id", "me")
	want(t, code, out, errOut, exitFailed, "", "append what is missing, alone, under another --producer-id\n")
	posts := 0
	n.SetFault(ursulatest.Match(func(r *http.Request) bool {
		if r.Method == http.MethodPost {
			posts++
		}
		return posts > 1
	}, ursulatest.Status(http.StatusConflict, nil, []byte(`{"error":{"code":"STREAM_CLOSED","message":"It is closed."}}`))))
	code, out, errOut = commandWith(t, n.env, "1\n2\n3\n", "stream", "append", "acme/lines", "--piece-size", "2")
	want(t, code, out, errOut, exitFailed, "", "sluice: STREAM_CLOSED: It is closed.\nStored before that: 2 bytes\n")
}

func TestAppendFailures(t *testing.T) {
	n := newNode(t)
	n.create(t, "json", "application/json")
	for name, tc := range map[string]struct {
		args, in string
		says     string
	}{
		"no file":      {"acme/json /no/such/file", "", "open /no/such/file"},
		"nothing":      {"acme/json", "", "sluice: there is nothing to append in standard input\n"},
		"no JSON":      {"acme/json", "{\"n\":1}\nhello", "message 2, near byte"},
		"no stream":    {"acme/none", "1", "_NOT_FOUND"},
		"a directory":  {"acme/json " + t.TempDir(), "", "is a directory"},
		"a large line": {"acme/json --piece-size 99999999", "1", "pieces of 99999999 bytes are more than one append may be"},
	} {
		t.Run(name, func(t *testing.T) {
			code, out, errOut := commandWith(t, n.env, tc.in, append([]string{"stream", "append"}, strings.Fields(tc.args)...)...)
			want(t, code, out, errOut, exitFailed, "", tc.says)
		})
	}
	code, out, errOut := command(t, n.env, "stream", "read", "acme/json") // nothing, not half of it
	want(t, code, out, errOut, exitDone, "", "")
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// eventually polls a condition that has nothing to wait on.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatalf("%s: not within 20 s", what)
		}
		<-tick.C
	}
}

// parts are those beside a file.
func parts(t *testing.T, file string) []string {
	t.Helper()
	found, err := filepath.Glob(file + ".*part")
	if err != nil {
		t.Fatal(err)
	}
	return found
}
