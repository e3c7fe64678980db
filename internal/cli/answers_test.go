package cli

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"sluice/internal/realpart"
	"sluice/internal/ursulatest"
)

// Any success with any JSON passed for done, with exit code 0: "Deleted: acme" of a web
// page, a stream without a name of `null`.
func TestAnswersThatAreNone(t *testing.T) {
	key, fresh := newTestKey(t), newTestKey(t)
	secretOf := func(shape string) string { return strings.TrimSuffix(shape, "}") + `,"key":"` + fresh + `"}` }
	keys := answer{200, `{"api_keys":[` + ciKey + `],"next_cursor":null}`, nil}
	deleting := strings.Replace(orders, "active", "deleting", 1)
	for args, tc := range map[string]struct {
		first  []answer // before the one that is tried
		status int      // the right one
		bodies []string // wrong ones at the right status
	}{
		"stream create orders --content-type text/plain": {nil, 201, []string{news}},
		"stream show orders":                             {nil, 200, []string{news, acme}},
		"stream update orders --public":                  {nil, 200, []string{news}},
		"stream delete orders --yes":                     {nil, 202, []string{news, ""}},
		"stream list":                                    {nil, 200, []string{`{"streams":[null]}`, `{"streams":[` + acme + `]}`}},
		"stream read orders":                             {nil, 200, []string{news}},
		"account create acme":                            {nil, 201, []string{acme, strings.Replace(acme, "acme", "beta", 1)}},
		"account show acme":                              {nil, 200, []string{strings.Replace(acme, "acme", "beta", 1)}},
		"account show":                                   {nil, 200, nil},
		"account update acme --state active":             {nil, 200, []string{strings.Replace(acme, "acme", "beta", 1)}},
		"account delete acme --yes":                      {nil, 204, nil},
		"account list":                                   {nil, 200, []string{`{"accounts":[{}]}`}},
		"api-key create ci":                              {nil, 201, []string{ciKey, secretOf(fileKey)}},
		"api-key list":                                   {nil, 200, []string{`{"api_keys":[{}]}`}},
		"audit":                                          {nil, 200, []string{`{"records":[{}],"next_cursor":null}`, `{"records":[` + acme + `]}`}},
		"api-key show ci":                                {nil, 200, []string{`{"api_keys":[{"name":"ci"}]}`}},
		"api-key narrow ci --read-only":                  {[]answer{keys}, 200, []string{fileKey}},
		"api-key rotate ci":                              {[]answer{keys}, 200, []string{ciKey, secretOf(fileKey)}},
		"api-key revoke ci":                              {[]answer{keys}, 204, nil},
	} {
		wrong := []answer{{200, "null", nil}, {200, "{}", nil}, {200, `"ok"`, nil}, {206, "null", nil}}
		for _, body := range tc.bodies {
			wrong = append(wrong, answer{tc.status, body, nil})
		}
		for _, a := range wrong {
			for _, flag := range []string{"", " --json"} {
				if strings.HasPrefix(args, "stream read") && flag != "" {
					continue
				}
				s := newAPI(t, append(append([]answer(nil), tc.first...), a)...)
				code, out, errOut := command(t, s.env(key), strings.Fields(args+flag)...)
				if code != exitFailed || out != "" || !strings.Contains(errOut, "right?") && !strings.Contains(errOut, "another program there?") {
					t.Errorf("%s%s, answered %d %q: exit %d, out %q, err %q", args, flag, a.status, a.body, code, out, errOut)
				}
			}
		}
	}
	// A stream is gone when the API says so, not when a stranger says 404.
	a := newAPI(t, answer{202, deleting, nil}, answer{404, "<html>", nil})
	code, out, errOut := command(t, a.env(key), "stream", "delete", "orders", "--yes")
	want(t, code, out, errOut, exitFailed, "", "is SLUICE_URL (--url) right?")
}

// Against a proxy's 500 a create said no more than the status: whether it was made, and
// that the key's secret is lost, was for the user to find out.
func TestUnknownOutcomes(t *testing.T) {
	key := newTestKey(t)
	for args, says := range map[string]string{
		"stream create x --content-type text/plain":                "it may have been done all the same: see 'sluice stream show x'",
		"stream create x --content-type text/plain --account acme": "'sluice stream show x --account acme'",
		"api-key create x":                "its secret is lost then",
		"api-key create x --account acme": "'sluice api-key list --account acme'",
		"account create acme":             "its key is lost then",
	} {
		for _, status := range []int{500, 502, 503, 504} {
			a := newAPI(t, answer{status, "<html>", nil})
			code, out, errOut := command(t, a.env(key), strings.Fields(args)...)
			want(t, code, out, errOut, exitFailed, "", says)
			if len(a.calls()) != 1 {
				t.Errorf("%s, %d: asked %q", args, status, a.calls())
			}
		}
	}
	a := newAPI(t, answer{200, `{"api_keys":[` + ciKey + `],"next_cursor":null}`, nil}, answer{500, "", nil})
	code, out, errOut := command(t, a.env(key), "api-key", "rotate", "ci")
	want(t, code, out, errOut, exitFailed, "", "its new secret is lost then")
}

// A create that nobody took said that it may have been done all the same.
func TestRefusedConnectionDidNothing(t *testing.T) {
	env := map[string]string{"TONBO_API_KEY": newTestKey(t), "SLUICE_URL": "http://" + freePort(t)}
	code, out, errOut := command(t, env, "stream", "create", "x", "--content-type", "text/plain")
	want(t, code, out, errOut, exitFailed, "", "is SLUICE_URL (--url) right, and does the gateway run?\n")
	if strings.Contains(errOut, "may have been done") || strings.Count(errOut, "trying again") != 1 {
		t.Errorf("err %q", errOut)
	}
}

// SLUICE_URL at a storage node gave the node's own refusal, INVALID_BUCKET_ID, of which
// no user of the commands has heard.
func TestURLOfANode(t *testing.T) {
	n := newNode(t)
	n.env["SLUICE_ADMIN_URL"] = n.URL()
	for args, says := range map[string]string{
		"stream list":     "is SLUICE_URL (--url) right?",
		"account list":    "is SLUICE_ADMIN_URL (--admin-url) right?",
		"stream append x": "is SLUICE_URL (--url) right?",
		"token create":    "is SLUICE_URL the gateway's origin?",
		"stream create x --content-type text/plain --json": "is SLUICE_URL (--url) right?",
	} {
		code, out, errOut := command(t, n.env, strings.Fields(args)...)
		want(t, code, out, errOut, exitFailed, "", says)
	}
}

// With an agent's key a read said to put a valid one in its place: it is valid, and good
// for making tokens.
func TestAgentsKeyIsToldOfTokens(t *testing.T) {
	n := newNode(t)
	n.create(t, "orders", "application/json")
	n.SetFault(ursulatest.Status(401, nil, []byte(`{"error":{"code":"INVALID_CREDENTIAL","message":"The credential is malformed, unknown, revoked or not for direct use: send one."}}`)))
	for _, args := range []string{"read", "tail", "append", "close"} {
		code, out, errOut := commandWith(t, n.env, "1", "stream", args, "acme/orders")
		want(t, code, out, errOut, exitFailed, "", "an agent's key is good for 'sluice token create' only")
	}
	// A stream that is named alone is looked for with it first.
	a := newAPI(t, answer{403, `{"error":{"code":"FORBIDDEN","message":"An agent's key does not manage."}}`, nil})
	code, out, errOut := command(t, a.env(newTestKey(t)), "stream", "read", "orders")
	want(t, code, out, errOut, exitFailed, "", "it is good for 'sluice token create' only")
}

// `sluice` with what a user pastes has to run: the command that goes on had
// --piece-size 0, words that a shell divides, words in brackets, and had forgotten the
// flags that say where the gateway is.
func TestGoingOnCanBePasted(t *testing.T) {
	n := newNode(t)
	n.create(t, "lines", "text/plain")
	delete(n.env, "SLUICE_URL")
	file := filepath.Join(t.TempDir(), "it's a file.txt")
	write(t, file, "a\nb\n")
	for name, tc := range map[string]struct {
		line func() string
		want []string
	}{
		"append, size not known": {
			func() string {
				o := appendCommand{producer: "p"}
				return o.goesOn("acme/x", file, 0)
			},
			[]string{"stream", "append", "acme/x", file, "--producer-id", "p"},
		},
		"append, size not known but said": {
			func() string {
				o := appendCommand{producer: "p", pieceSize: 7, asJSON: true}
				return o.goesOn("acme/x", "-file", 0)
			},
			[]string{"stream", "append", "acme/x", "./-file", "--producer-id", "p", "--piece-size", "7", "--json"},
		},
		"append of standard input": {
			func() string {
				o := appendCommand{producer: "$(p)"}
				return o.goesOn("acme/x", "-", 9)
			},
			[]string{"stream", "append", "acme/x", "-", "--producer-id", "$(p)", "--piece-size", "9"},
		},
		"tail from a strange offset": {
			func() string {
				code, out, errOut := command(t, n.env, "stream", "tail", "acme/none", "--offset", "a b", "--json", "--url", n.URL())
				want(t, code, out, errOut, exitFailed, "", "To go on: ")
				_, line, _ := strings.Cut(errOut, "To go on: ")
				return line
			},
			[]string{"stream", "tail", "acme/none", "--offset", "a b", "--json", "--url", n.URL()},
		},
	} {
		t.Run(name, func(t *testing.T) {
			bash, err := exec.LookPath("bash")
			if err != nil {
				realpart.Missing(t, "bash", err.Error())
			}
			got, err := exec.CommandContext(t.Context(), bash, "-c", `sluice() { printf '%s\n' "$@"; }; `+tc.line()).CombinedOutput()
			if err != nil || string(got) != strings.Join(tc.want, "\n")+"\n" {
				t.Errorf("%v: %q", err, got)
			}
		})
	}
}

// A tail from an offset that is none was told to go on from it.
func TestBadOffsetIsNotGoneOnFrom(t *testing.T) {
	n := newNode(t)
	n.create(t, "lines", "text/plain")
	code, out, errOut := command(t, n.env, "stream", "tail", "acme/lines", "--offset", "a b")
	want(t, code, out, errOut, exitFailed, "", "; correct --offset\n")
	if strings.Contains(errOut, "To go on") {
		t.Errorf("err %q", errOut)
	}
}

// A file that has grown since it was appended under a producer id was told to be gone on
// with by the same command, which can never succeed.
func TestGrownFileIsNotGoneOnWith(t *testing.T) {
	n := newNode(t)
	n.create(t, "lines", "text/plain")
	text := strings.Repeat("a line of text\n", 25)
	args := []string{"stream", "append", "acme/lines", "--producer-id", "me", "--piece-size", "150"}
	code, out, errOut := commandWith(t, n.env, text, args...)
	want(t, code, out, errOut, exitDone, "*", "")
	code, out, errOut = commandWith(t, n.env, text+"more\n", args...)
	want(t, code, out, errOut, exitFailed, "", "Stored of this text for sure: 300 bytes. The same command cannot go on: see with 'sluice stream read acme/lines' what the stream holds")
	if strings.Contains(errOut, "To go on") {
		t.Errorf("err %q", errOut)
	}
}
