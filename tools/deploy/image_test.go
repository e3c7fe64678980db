package deploy

import (
	"debug/elf"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/moby/buildkit/frontend/dockerfile/instructions"
	"github.com/moby/buildkit/frontend/dockerfile/linter"
	"github.com/moby/buildkit/frontend/dockerfile/parser"
)

// image is what a Dockerfile says, by BuildKit's own parser.
type image struct {
	args   map[string]string // those before the first stage
	stages []instructions.Stage
	builds []string // what its stages run
}

func imageOf(t *testing.T) image { t.Helper(); return parseImage(t, "deploy/Dockerfile") }

func parseImage(t *testing.T, path string) image {
	t.Helper()
	ast, err := parser.Parse(strings.NewReader(file(t, path)))
	if err != nil {
		t.Fatal(err)
	}
	for _, w := range ast.Warnings {
		t.Errorf("%s: %s", path, w.Short)
	}
	lint := linter.New(&linter.Config{Warn: func(rule, _, _, message string, _ []parser.Range) {
		t.Errorf("%s: %s: %s", path, rule, message)
	}})
	stages, args, err := instructions.Parse(ast.AST, lint)
	if err != nil {
		t.Fatal(err)
	}
	got := image{args: map[string]string{}, stages: stages}
	for _, a := range args {
		for _, pair := range a.Args {
			if pair.Value != nil {
				got.args[pair.Key] = *pair.Value
			}
		}
	}
	for _, s := range stages {
		for _, c := range s.Commands {
			if r, ok := c.(*instructions.RunCommand); ok {
				got.builds = append(got.builds, strings.Join(r.CmdLine, " "))
			}
		}
	}
	return got
}

// commands are those of one kind in the last stage, which is what is shipped.
func commands[T instructions.Command](i image) (found []T) {
	for _, c := range i.stages[len(i.stages)-1].Commands {
		if one, ok := c.(T); ok {
			found = append(found, one)
		}
	}
	return found
}

// What is shipped is from nothing, runs as a number that is not root's, and starts what
// is in it.
func TestImageSaysWhatItShould(t *testing.T) {
	t.Parallel()
	i := imageOf(t)
	last := i.stages[len(i.stages)-1]
	if last.BaseName != "scratch" {
		t.Errorf("it is made from %s", last.BaseName)
	}
	users := commands[*instructions.UserCommand](i)
	if len(users) != 1 || !regexp.MustCompile(`^[1-9]\d{3,}:[1-9]\d{3,}$`).MatchString(users[0].User) {
		t.Errorf("users: %v", users)
	}
	if len(commands[*instructions.RunCommand](i)) != 0 || len(commands[*instructions.HealthCheckCommand](i)) != 0 {
		t.Error("there is nothing in it that could run or ask")
	}
	if stop := commands[*instructions.StopSignalCommand](i); len(stop) != 1 || stop[0].Signal != "SIGTERM" {
		t.Errorf("stop: %v", stop)
	}
	entry, args := commands[*instructions.EntrypointCommand](i), commands[*instructions.CmdCommand](i)
	if len(entry) != 1 || entry[0].PrependShell || len(args) != 1 || args[0].PrependShell {
		t.Fatalf("%v %v: signals have to reach the program, with no shell between", entry, args)
	}
	copies := commands[*instructions.CopyCommand](i)
	shipped := make([]string, 0, len(copies))
	for _, c := range copies {
		shipped = append(shipped, c.DestPath)
	}
	if !slices.Contains(shipped, entry[0].CmdLine[0]) {
		t.Errorf("it starts %v and has %v", entry[0].CmdLine, shipped)
	}
	found := regexp.MustCompile(`(?m)^go (\d+\.\d+)`).FindStringSubmatch(file(t, "go.mod"))
	if found == nil || i.args["GO_VERSION"] != found[1] {
		t.Errorf("it builds with Go %s; go.mod says %v", i.args["GO_VERSION"], found)
	}
	parseImage(t, "deploy/compose/ursula.Dockerfile")
	if version := regexp.MustCompile(`ARG URSULA_VERSION=(\S+)`).FindStringSubmatch(file(t, "deploy/compose/ursula.Dockerfile")); !strings.Contains(file(t, "Makefile"), "URSULA_VERSION := "+version[1]+"\n") {
		t.Errorf("compose builds Ursula %v, the tests another", version[1])
	}
}

// What the Dockerfile builds needs nothing of the machine: no loader, no library.
func TestProgramIsStatic(t *testing.T) {
	t.Parallel()
	f, err := elf.Open(program(t))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP || p.Type == elf.PT_DYNAMIC {
			t.Errorf("it has a %v", p.Type)
		}
	}
	if libraries, err := f.ImportedLibraries(); len(libraries) != 0 {
		t.Errorf("libraries: %v %v", libraries, err)
	}
}

// There is no Docker here. What its container is to the program is made by hand: a root
// with the files of the last stage and nothing else, in which the user may write to one
// folder; the program starts there, trusts by the certificates that are in it, and makes
// a SQLite store.
func TestImageRuns(t *testing.T) {
	t.Parallel()
	if os.Getuid() != 0 || runtime.GOOS != "linux" {
		missing(t, "root on Linux", "another root folder and user are its to give")
	}
	i := imageOf(t)
	top, err := os.MkdirTemp("", "sluice-image-") // t.TempDir's parents are root's alone
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(top) })
	if err := os.Chmod(top, 0o755); err != nil { //nolint:gosec // another user's root
		t.Fatal(err)
	}
	const uid = 65532
	from := map[string]string{"/out/sluice": program(t), "/etc/ssl/certs/ca-certificates.crt": "/etc/ssl/certs/ca-certificates.crt"}
	for _, c := range commands[*instructions.CopyCommand](i) {
		to := filepath.Join(top, c.DestPath)
		switch source := c.SourcePaths[0]; {
		case c.Chown == "65532:65532" && source == "/out/state":
			if err := os.MkdirAll(to, 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.Chown(to, uid, uid); err != nil {
				t.Fatal(err)
			}
		case from[source] != "":
			if out, err := run(t, ".", nil, "install", "-D", "-m", "755", from[source], to); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
		default:
			t.Fatalf("%v: what is it?", c)
		}
	}
	write(t, filepath.Join(top, "etc/sluice/sluice.yaml"), `listen: "127.0.0.1:0"
origin: http://streams.example.com
admin: {listen: "127.0.0.1:0"}
tls: {mode: "off"}
ursula: {nodes: ["http://127.0.0.1:9"]}
store: {url: "sqlite:/var/lib/sluice/sluice.db"}
drain_delay: 0s
`)
	// Whatever root's umask is, an image's folders can be read.
	if out, err := run(t, top, nil, "chmod", "-R", "go+rX", "."); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	in := func(args ...string) *exec.Cmd {
		cmd := exec.CommandContext(t.Context(), commands[*instructions.EntrypointCommand](i)[0].CmdLine[0], args...)
		cmd.Dir, cmd.Env = commands[*instructions.WorkdirCommand](i)[0].Path, []string{}
		cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: top, Credential: &syscall.Credential{Uid: uid, Gid: uid}}
		return cmd
	}
	if out, err := in("version").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	serve := in(commands[*instructions.CmdCommand](i)[0].CmdLine...)
	log, err := serve.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := serve.Start(); err != nil {
		t.Fatal(err)
	}
	var said strings.Builder
	buffer, stopped := make([]byte, 4096), false
	for {
		n, err := log.Read(buffer)
		said.Write(buffer[:n])
		if !stopped && strings.Contains(said.String(), `"message":"serving"`) {
			stopped = true
			_ = serve.Process.Signal(syscall.SIGTERM)
		}
		if err != nil {
			break
		}
	}
	if err := serve.Wait(); err != nil || !stopped {
		t.Errorf("it ended with %v and said %s", err, said.String())
	}
	if _, err := os.Stat(filepath.Join(top, "var/lib/sluice/sluice.db")); err != nil {
		t.Error(err)
	}
}
