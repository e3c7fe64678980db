package main

import (
	"os"
	"strings"
	"testing"
)

// quickstart is the page, as it is in the repository.
func quickstart(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("../../docs/quickstart.md")
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// The page runs as it is written, from an empty store: an account with its first key, a
// stream, a key, append, read, tail, close, delete with the name typed, and the name is
// free again.
func TestQuickstart(t *testing.T) {
	forEachUpstream(t, func(t *testing.T, node string) {
		public, admin := newManaged(t, node)
		asPasted(t, quickstart(t), nil, map[string]string{"Type orders to go on: ": "orders\n"},
			"127.0.0.1:8080", strings.TrimPrefix(public, "http://"), "127.0.0.1:9090", strings.TrimPrefix(admin, "http://"))
	})
}

// The rig that runs a page holds each block to what the page says: here that it can
// fail, and how a terminal's part is played.
func TestPagesAreRunAsPasted(t *testing.T) {
	text := "Words.\n\n```sh\nx=1\nread -p 'Name? ' name\necho \"$x $name\"\n```\n\n```text\nName? 1 …\n```\n\n```sh\nsluice version\n```\n\n```text\nsluice …\n```\n\n```sh\nsleep 0 &\nwait\nprintf 'a\\nb\\nc\\n'\n```\n\n```text\na\n…\n```\n"
	asPasted(t, text, nil, map[string]string{"Name? ": "orders\n"})
	for name, tc := range map[string]struct {
		text string
		want bool
	}{
		"as it says":   {"a 17 c\n", true},
		"another end":  {"a 17 d\n", false},
		"a line more":  {"a 17 c\nd\n", false},
		"a line less":  {"", false},
		"over an end":  {"a 1\n7 c\n", false},
		"no last line": {"a 17 c", false},
	} {
		if got := (block{prints: "a … c\n"}).pattern().MatchString(tc.text); got != tc.want {
			t.Errorf("%s: %v", name, got)
		}
	}
	for _, bad := range []string{"```text\nx\n```\n", "```sh\nx\n", "```python\nx\n```\n", "```sh\nx\n```\n```text\nx\n```\n```text\ny\n```\n"} {
		if p, err := readPage(bad); err == nil {
			t.Errorf("%q: %v", bad, p)
		}
	}
}

// Every command of the page is one that there is, with flags that it has: also before
// there is anything that it could run against.
func TestQuickstartCommandsExist(t *testing.T) {
	p, err := readPage(quickstart(t))
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, b := range p {
		for line := range strings.Lines(b.script) {
			_, rest, ok := strings.Cut(line, "sluice ")
			if !ok {
				continue
			}
			rest, _, _ = strings.Cut(rest, " >")
			rest, _, _ = strings.Cut(rest, " ||")
			args := strings.Fields(strings.TrimRight(strings.TrimSpace(rest), ")&"))
			code, out, errOut := command(t, nil, append(args, "--help")...)
			if code != exitDone || !strings.Contains(out, "sluice "+args[0]+" "+args[1]) {
				t.Errorf("%q: exit %d, %s%s", line, code, out, errOut)
			}
			n++
		}
	}
	if n < 15 {
		t.Errorf("only %d commands", n)
	}
}
