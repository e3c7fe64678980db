package main

import (
	"bufio"
	"cmp"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"sluice/internal/ursulatest"
)

// asProgram set to 1 makes this test binary the program itself, so that tests
// can run it as a process of its own, with its signals and its pipes.
const asProgram = "SLUICE_TEST_AS_PROGRAM"

// asNode set to 1 makes this test binary a node, up until its standard input ends.
const asNode = "SLUICE_TEST_AS_NODE"

func serveNode() int {
	cluster := ursulatest.New(ursulatest.Options{})
	if err := cluster.Start(); err != nil {
		return 1
	}
	_, _ = fmt.Println(cluster.URLs()[0]) //nolint:forbidigo // to the test
	_, _ = io.Copy(io.Discard, os.Stdin)
	_ = cluster.Close()
	return 0
}

// nodeApart is standIn in a process of its own. In that of a test with a thousand clients
// it has to wait for its turn, so long that it is taken for one that is gone.
func nodeApart(t *testing.T) string {
	t.Helper()
	cmd := exec.CommandContext(context.WithoutCancel(t.Context()), os.Args[0])
	cmd.Env, cmd.Stderr = append(os.Environ(), asNode+"=1"), os.Stderr
	in, err := cmd.StdinPipe()
	must(t, err)
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	t.Cleanup(func() {
		_ = in.Close()
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	url, err := bufio.NewReader(out).ReadString('\n')
	must(t, err)
	return strings.TrimSpace(url)
}

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) == "1" {
		if os.Getenv(tellsVitals) == "1" {
			go tellVitals(os.Stdin, os.Stdout)
		}
		main()
	}
	if load := os.Getenv(asSlowLoad); load != "" {
		if err := runSlowLoad(load); err != nil {
			panic(err)
		}
		os.Exit(0)
	}
	if os.Getenv(asNode) == "1" {
		os.Exit(serveNode())
	}
	os.Exit(m.Run())
}

// process is the program serving in a process of its own.
type process struct {
	*edge
	cmd    *exec.Cmd
	stderr *os.File // our end of its log
	exited chan error
}

// startProcess serves a file in a process of its own. Its log goes into a pipe
// whose reading end is ours.
func startProcess(t *testing.T) (p *process, path string) {
	t.Helper()
	e := &edge{Account: testAccount(t), Key: newTestKey(t), Reads: newTestKey(t)}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	p, path = runProcess(t, e, edgeFile(e, []string{standIn(t)}, ""), w)
	p.stderr = r
	t.Cleanup(func() { _ = r.Close() })
	eventually(t, "the process answers", func() bool { return p.reads(t) })
	return p, path
}

// runProcess serves a file in a process of its own, on ports that it puts into it,
// and takes the process' end of its log. It does not wait for the process.
func runProcess(t *testing.T, e *edge, file string, log *os.File) (p *process, path string) {
	t.Helper()
	return runProcessBy(t, e, file, log)
}

// runProcessBy is runProcess by way of another program, to which the command is given
// behind its own arguments.
func runProcessBy(t *testing.T, e *edge, file string, log *os.File, by ...string) (p *process, path string) {
	t.Helper()
	cmd, path := newProgram(t, e, file, by...)
	cmd.Stderr = log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	_ = log.Close()
	return await(t, e, cmd), path
}

// await makes a process of what was started, and ends it with the test.
func await(t *testing.T, e *edge, cmd *exec.Cmd) *process {
	t.Helper()
	p := &process{edge: e, cmd: cmd, exited: make(chan error, 1)}
	go func() { p.exited <- cmd.Wait() }()
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	return p
}

// schemeOf is what URLs of a file's public listener begin with.
func schemeOf(file string) string {
	if strings.Contains(file, "\ntls: {") && !strings.Contains(file, `mode: "off"`) {
		return "https://"
	}
	return "http://"
}

// newProgram is the program, not started yet, that serves a file on ports that it puts into
// it.
func newProgram(t *testing.T, e *edge, file string, by ...string) (cmd *exec.Cmd, path string) {
	t.Helper()
	address, admin := freePort(t), freePort(t)
	e.URL, e.Admin = schemeOf(file)+address, "http://"+admin
	file = strings.Replace(file, "listen: 127.0.0.1:0\n", "listen: "+address+"\n", 1)
	file = strings.Replace(file, `admin: {listen: "127.0.0.1:0"}`, `admin: {listen: "`+admin+`"}`, 1)
	path = filepath.Join(t.TempDir(), "sluice.yaml")
	writeFile(t, path, file)
	words := append(slices.Clone(by), cmp.Or(e.program, os.Args[0]), "serve", "--config", path)
	cmd = exec.CommandContext(context.WithoutCancel(t.Context()), words[0], words[1:]...)
	cmd.Env = append(os.Environ(), asProgram+"=1")
	return cmd, path
}

// reads reports whether a read of a declared stream is answered.
func (p *process) reads(t *testing.T) bool {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, p.URL+p.path("json"), nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+p.Key)
	c := http1()
	defer c.CloseIdleConnections()
	res, err := c.Do(req)
	if err != nil {
		return false
	}
	_, _ = io.Copy(io.Discard, res.Body)
	_ = res.Body.Close()
	return res.StatusCode == http.StatusOK
}

// ends waits for the exit after a signal.
func (p *process) ends(t *testing.T, s syscall.Signal) error {
	t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-p.exited:
		return err
	case <-time.After(10 * time.Second):
		t.Fatalf("still there 10 s after %v", s)
		return nil
	}
}

// The reader of the log went away, and the first line after it ended the
// process by SIGPIPE.
func TestLogReaderGone(t *testing.T) {
	p, _ := startProcess(t)
	if err := p.stderr.Close(); err != nil {
		t.Fatal(err)
	}
	for range 20 {
		if !p.reads(t) {
			t.Fatal("a read failed after the log's reader had gone")
		}
	}
	if m := p.admin(t, http.MethodGet, "/metrics").Text; !strings.Contains(m, "\nsluice_log_lines_dropped_total ") || strings.Contains(m, "\nsluice_log_lines_dropped_total 0\n") {
		t.Error("lost lines are not counted")
	}
	if err := p.ends(t, syscall.SIGTERM); err != nil {
		t.Errorf("exit: %v", err)
	}
}

// The reader of the log stopped reading, and once the pipe was full every request
// waited for its line; not even SIGTERM ended the process.
func TestLogReaderStuck(t *testing.T) {
	p, _ := startProcess(t)
	// Far more lines than a pipe of 64 KiB holds.
	for range 400 {
		if !p.reads(t) {
			t.Fatal("a read failed while the log's reader was stuck")
		}
	}
	if err := p.ends(t, syscall.SIGTERM); err != nil {
		t.Errorf("exit: %v", err)
	}
}

// The file became a pipe that nobody writes, a reload of it never ended, and the
// process could not be stopped any more.
func TestReloadOfAPipe(t *testing.T) {
	p, path := startProcess(t)
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Process.Signal(syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	log := bufio.NewScanner(p.stderr)
	for log.Scan() && !strings.Contains(log.Text(), "reload refused") {
		continue
	}
	if !strings.Contains(log.Text(), "no regular file") {
		t.Errorf("log: %s", log.Text())
	}
	if !p.reads(t) {
		t.Error("the old configuration is not in force")
	}
	if err := p.ends(t, syscall.SIGTERM); err != nil {
		t.Errorf("exit: %v", err)
	}
}
