package cli

import (
	"strings"
	"testing"
)

const usedHour = `{"hour":"2027-01-01T10:00:00Z","class":"live_read","requests":2,"request_bytes":0,"response_bytes":1234567890123,"heartbeat_bytes":9,"tail_seconds":59.25,"refused":3,"chunks":0}`

// Hours come page by page; with --json they are one list.
func TestUsage(t *testing.T) {
	key := newTestKey(t)
	first := answer{200, `{"from":"x","to":"y","usage":[` + usedHour + `],"next_cursor":"abc"}`, nil}
	second := answer{200, `{"from":"x","to":"y","usage":[` + usedHour + `],"next_cursor":null}`, nil}
	a := newAPI(t, first, second)
	code, out, errOut := command(t, a.env(key), "usage", "--since", "2027-01-01T00:59:59Z", "--class", "live_read")
	const row = "2027-01-01T10:00:00Z  live_read  2         0         0       1234567890123  59.25         3\n"
	want(t, code, out, errOut, exitDone, "HOUR                  CLASS      REQUESTS  BYTES IN  CHUNKS  BYTES OUT      TAIL SECONDS  REFUSED\n"+row+row, "")
	if len(a.asked) != 2 || a.asked[1] != "GET /v1/usage?class=live_read&cursor=abc&from=2027-01-01T00%3A00%3A00Z&limit=200" {
		t.Errorf("asked %q", a.asked)
	}
	a = newAPI(t, first, second)
	code, out, errOut = command(t, a.env(key), "usage", "--json")
	want(t, code, out, errOut, exitDone, `{"from":"x","next_cursor":null,"to":"y","usage":[`+usedHour+`,`+usedHour+"]}\n", "")
	a = newAPI(t, answer{200, `{"usage":[{}],"next_cursor":null}`, nil})
	code, out, errOut = command(t, a.env(key), "usage")
	want(t, code, out, errOut, exitFailed, "", "is another program there?")
	for args, says := range map[string]string{
		"usage yesterday":                             "unexpected argument",
		"usage --class tails":                         `--class "tails": it is one of append, read, live_read, management`,
		"usage --class=":                              `--class ""`,
		"usage --since yesterday":                     "--since: write how long ago",
		"usage --until 2026-11-31":                    "--until: write how long ago",
		"usage --since 2027-01-02 --until 2027-01-01": "--until: it lies in no later hour",
		"usage --since 2027-01-01T10:00:00Z --until 2027-01-01T10:30:00Z": "--until: it lies in no later hour",
		"usage export --after -1": `--after "-1": it is the position of a batch`,
		"usage export --after x":  `--after "x"`,
	} {
		code, out, errOut = command(t, a.env(key), strings.Fields(args)...)
		want(t, code, out, errOut, exitUsage, "", says)
	}
	a = newAPI(t, answer{400, `{"error":{"code":"INVALID_QUERY","message":"from is at most 31 days before to.","field":"from"}}`, nil})
	code, out, errOut = command(t, a.env(key), "usage", "--since", "2020-01-01", "--until", "2021-01-01")
	want(t, code, out, errOut, exitFailed, "", "before to. (field from); correct --since")
	if len(a.asked) != 1 || a.asked[0] != "GET /v1/usage?from=2020-01-01T00%3A00%3A00Z&limit=200&to=2021-01-01T00%3A00%3A00Z" {
		t.Errorf("asked %q", a.asked)
	}
}

// Batches are printed as they came, one a line, to the last page, which is empty; those of
// the pages before one that fails are printed.
func TestUsageExport(t *testing.T) {
	const one, two = `{"position":7,"replica":"r","sequence":1}`, `{"position":9,"replica":"r","sequence":2}`
	first := answer{200, `{"batches":[` + one + `,` + two + `],"next_after":9}`, nil}
	a := newAPI(t, first, answer{200, `{"batches":[],"next_after":9}`, nil})
	env := map[string]string{"SLUICE_ADMIN_URL": a.URL}
	code, out, errOut := command(t, env, "usage", "export", "--after", "5")
	want(t, code, out, errOut, exitDone, one+"\n"+two+"\n", "")
	if len(a.asked) != 2 || a.asked[0] != "GET /v1/usage/batches?after=5&limit=200" || a.asked[1] != "GET /v1/usage/batches?after=9&limit=200" {
		t.Errorf("asked %q", a.asked)
	}
	a = newAPI(t, answer{200, `{"batches":[],"next_after":0}`, nil})
	env["SLUICE_ADMIN_URL"] = a.URL
	code, out, errOut = command(t, env, "usage", "export", "--after", "") // of a file that is still to come
	want(t, code, out, errOut, exitDone, "", "")
	for _, bad := range []answer{{200, `{"batches":[{}],"next_after":9}`, nil}, {200, `{"batches":[]}`, nil}, {200, `{}`, nil}} {
		a = newAPI(t, first, bad)
		env["SLUICE_ADMIN_URL"] = a.URL
		code, out, errOut = command(t, env, "usage", "export")
		want(t, code, out, errOut, exitFailed, one+"\n"+two+"\n", "is another program there?")
	}
}
