package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sluice/internal/realclients"
)

// clientsPage is docs/clients.md in parts: what stands before the first heading of the
// second level, and each of these with what is below it.
type clientsPage struct {
	setup    string
	sections map[string]string
}

func readClientsPage(t *testing.T) clientsPage {
	t.Helper()
	raw, err := os.ReadFile("../../docs/clients.md")
	if err != nil {
		t.Fatal(err)
	}
	parts := strings.Split(string(raw), "\n## ")
	p := clientsPage{parts[0], make(map[string]string)}
	for _, part := range parts[1:] {
		name, text, _ := strings.Cut(part, "\n")
		p.sections[name] = text
	}
	return p
}

// savedProgram is a block that its reader saves under a name, which stands before it.
type savedProgram struct{ name, text string }

// programBlock finds programs: the name at the end of a line, and the block below.
var programBlock = regexp.MustCompile("(?m)`([a-z]+\\.[a-z]+)`:\n\n```[a-z]+\n((?s:.*?)\n)```\n")

// programs are those of a part of the page.
func programs(text string) []savedProgram {
	found := programBlock.FindAllStringSubmatch(text, -1)
	all := make([]savedProgram, 0, len(found))
	for _, f := range found {
		all = append(all, savedProgram{f[1], f[2]})
	}
	return all
}

// saved is the part with each program as the command that saves it, so that it is
// pasted as everything else is.
func saved(text string) string {
	return programBlock.ReplaceAllString(text, "\n\n```sh\ncat >$1 <<'END OF FILE'\n${2}END OF FILE\n```\n")
}

// asRead runs a part of the page in front of e, as asPasted does. The installers are
// those of offline: they give what is locked, if that is what is asked for.
func (p clientsPage) asRead(t *testing.T, e *edge, way *cutter, part string) {
	t.Helper()
	text := p.setup + "\n" + saved(part)
	path := offline(t)
	goEnv := func(name string) string {
		out, err := exec.CommandContext(t.Context(), "go", "env", name).Output()
		if err != nil {
			t.Fatal(err)
		}
		return strings.TrimSpace(string(out))
	}
	asPasted(t, "```sh\nPATH="+path+":$PATH\n```\n"+text, []string{"GOCACHE=" + goEnv("GOCACHE"), "GOPROXY=off", "GOFLAGS=-mod=mod"}, nil,
		"127.0.0.1:8080/demo/s.scratch", way.address+e.path("json"), "127.0.0.1:8080", way.address, "demo/scratch", e.Account+"/json", "tbo_…", e.Key)
}

// offline is a folder of commands that stand for npm and python3 -m venv. They install
// nothing: what the page asks for has to be what is there, in the same version.
func offline(t *testing.T) string {
	t.Helper()
	clients := realclients.Find(t)
	dir := t.TempDir()
	for name, script := range map[string]string{
		"npm": `package=${3%@*} version=${3##*@}
[[ $1 == install && $(node -p "require('` + clients.Modules + `/$package/package.json').version") == "$version" ]] || { echo "npm: $*"; exit 1; }
ln -sfn ` + clients.Modules + ` node_modules`,
		"python3": `[[ $1 == -m && $2 == venv ]] || { echo "python3: $*"; exit 1; }
mkdir -p "$3/bin"
printf '#!/bin/bash\nexec ` + clients.Python + ` "$@"\n' >"$3/bin/python"
printf '#!/bin/bash\n[[ $(` + clients.Python + ` -m pip list --disable-pip-version-check --format=freeze) == *"$3"* ]] || { echo "pip: $*"; exit 1; }\n' >"$3/bin/pip"
chmod +x "$3/bin/"*`,
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/bash\n"+script+"\n"), 0o700); err != nil { //nolint:gosec // it is to be run
			t.Fatal(err)
		}
	}
	return dir
}

// newAccount is an edge that is not started yet.
func newAccount(t *testing.T) *edge {
	t.Helper()
	return &edge{Account: testAccount(t), Key: newTestKey(t), Reads: newTestKey(t)}
}

// startBehind starts the edge, to be reached through the cutter, whose address is its
// origin. extra is more of its file.
func (e *edge) startBehind(t *testing.T, way *cutter, node, extra string) *edge {
	t.Helper()
	file := strings.Replace(edgeFile(e, []string{node}, extra), "https://streams.example.com", "http://"+way.address, 1)
	e.start(t, file, nil)
	way.to(strings.TrimPrefix(e.URL, "http://"))
	return e
}

// whole is the rule that cuts nothing.
func whole() func(int, string) int { return func(int, string) int { return -1 } }

// cutTails is the rule that cuts the tails of `follow`, each a little later; the first
// tail is the plain one above it.
func cutTails() func(int, string) int {
	tails := 0
	return func(_ int, request string) int {
		if strings.Contains(request, "live=sse") {
			if tails++; tails > 1 && tails < 5 {
				return 350 + 50*tails
			}
		}
		return -1
	}
}

// Everything that the page has its reader run does what the page says: as it is written,
// in front of the stand-in and of Ursula. The programs are run through connections that
// are cut, with the key and with a token, and print the same as without.
func TestClientsPage(t *testing.T) {
	t.Parallel()
	page := readClientsPage(t)
	rules := map[string]struct {
		rule func() func(int, string) int
		cuts int
	}{
		"Tokens": {whole, 0}, "Close": {whole, 0}, "With curl": {cutTails, 2},
		"JavaScript": {func() func(int, string) int { return cutSome(10, 1) }, 5},
		"Python":     {func() func(int, string) int { return cutSome(10, 2) }, 5},
		"Go":         {func() func(int, string) int { return cutSome(10, 3) }, 5},
	}
	for name, text := range page.sections {
		if _, ok := rules[name]; !ok && strings.Contains(text, "```sh\n") {
			t.Errorf("nothing runs what %q says", name)
		}
	}
	forEachUpstream(t, func(t *testing.T, node string) {
		for name, r := range rules {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				way := newCutter(t, r.rule())
				page.asRead(t, newAccount(t).startBehind(t, way, node, ""), way, page.sections[name])
				if got := way.cuts(); got < r.cuts {
					t.Errorf("%d connections were cut, want %d at least", got, r.cuts)
				}
			})
		}
	})
}

// The rig saves the programs of the page as they are.
func TestClientsPageHasItsPrograms(t *testing.T) {
	page := readClientsPage(t)
	for section, want := range map[string][]string{
		"JavaScript": {"client.mjs"}, "Python": {"client.py"}, "Go": {"client.go"}, "In a browser": {"server.mjs", "page.html"},
	} {
		all := programs(page.sections[section])
		got := make([]string, 0, len(all))
		for _, p := range all {
			got = append(got, p.name)
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: %v, want %v", section, got, want)
		}
	}
	if got, want := saved("Save `a.x`:\n\n```js\n$1\n```\n"), "Save \n\n```sh\ncat >a.x <<'END OF FILE'\n$1\nEND OF FILE\n```\n"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}
