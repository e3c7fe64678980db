package realclients

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// What is found is what the lock files name, and it runs.
func TestFind(t *testing.T) {
	clients := Find(t)
	dir := clients.Dir(t)
	script := filepath.Join(dir, "version.mjs")
	const source = `
import { DurableStream } from "@durable-streams/client";
import { readFileSync } from "node:fs";
const version = (name) => JSON.parse(readFileSync("node_modules/@durable-streams/" + name + "/package.json")).version;
console.log(typeof DurableStream.connect, version("client"), version("server-conformance-tests"));
`
	if err := os.WriteFile(script, []byte(source), 0o600); err != nil {
		t.Fatal(err)
	}
	const python = `import durable_streams, importlib.metadata as m; print(durable_streams.stream.__name__, m.version("durable-streams"))`
	for want, cmd := range map[string]*exec.Cmd{
		"function 0.2.7 0.3.6": exec.CommandContext(t.Context(), clients.Node, script),
		"stream 0.1.0":         exec.CommandContext(t.Context(), clients.Python, "-c", python),
	} {
		cmd.Dir = dir
		out, err := cmd.CombinedOutput()
		if got := strings.TrimSpace(string(out)); err != nil || got != want {
			t.Errorf("%v: %v, %q, want %q", cmd.Args, err, got, want)
		}
	}
}

// Clients of other versions than those that are locked are no part: a test that they pass
// says nothing of these.
func TestCheckTellsVersionsApart(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	l := locks{npm: []byte("npm 1"), pip: []byte("pip 1")}
	if problem := l.check(root); !strings.Contains(problem, "no such file") {
		t.Errorf("nothing installed: %q", problem)
	}
	for name, content := range map[string]string{npmLock: "npm 1", pipLock: "pip 1"} {
		if err := os.WriteFile(filepath.Join(root, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if problem := l.check(root); problem != "" {
		t.Errorf("the very versions: %q", problem)
	}
	l.pip = []byte("pip 2")
	if problem := l.check(root); !strings.Contains(problem, "other versions than tools/clients/requirements.txt") {
		t.Errorf("another requirements.txt: %q", problem)
	}
}
