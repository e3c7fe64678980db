package main

import (
	"bufio"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/pprof"
	"strconv"
	"strings"
	"testing"
)

// tellsVitals set to 1 makes the program of this test binary tell, for each line of its
// standard input, how it is. No metric tells of the heap as it is behind a collection.
const tellsVitals = "SLUICE_TEST_TELLS_VITALS"

// What is asked for, a line each.
const (
	askCounts = "counts" // of goroutines alone
	askHeap   = "heap"   // with the heap that lives, behind a collection
	askStacks = "stacks" // with what the goroutines do
)

// vitals are how a process is.
type vitals struct {
	Goroutines  int
	Heap        uint64 `json:",omitempty"` // bytes that live
	Stacks      string `json:",omitempty"`
	Descriptors int    `json:"-"` // as the kernel counts them
}

// tellVitals answers until nobody asks any more.
func tellVitals(in io.Reader, out io.Writer) {
	answers := json.NewEncoder(out)
	for lines := bufio.NewScanner(in); lines.Scan(); {
		v := vitals{Goroutines: runtime.NumGoroutine()}
		switch lines.Text() {
		case askHeap:
			for range 3 { // what pools keep goes with the second, what has finalizers then
				runtime.GC()
			}
			var m runtime.MemStats
			runtime.ReadMemStats(&m)
			v.Heap = m.HeapAlloc
		case askStacks:
			var text strings.Builder
			_ = pprof.Lookup("goroutine").WriteTo(&text, 1)
			v.Stacks = text.String()
		}
		if err := answers.Encode(v); err != nil {
			return
		}
	}
}

// patient is a process whose vitals can be asked for.
type patient struct {
	*replica

	in  io.Writer
	out *json.Decoder
}

// startPatient runs a file. It does not wait for it.
func startPatient(t *testing.T, e *edge, file string) *patient {
	t.Helper()
	cmd, path := newProgram(t, e, file)
	p := &patient{replica: &replica{path: path, log: filepath.Join(t.TempDir(), "log")}}
	log, err := os.Create(p.log)
	must(t, err)
	in, err := cmd.StdinPipe()
	must(t, err)
	out, told, err := os.Pipe() // the process' end closes it, and not our waiting for it
	must(t, err)
	t.Cleanup(func() { _ = out.Close() })
	p.in, p.out = in, json.NewDecoder(out)
	cmd.Stdout, cmd.Stderr = told, log
	cmd.Env = append(cmd.Env, tellsVitals+"=1")
	startAndClose(t, cmd, told, log)
	p.process = await(t, e, cmd)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("its log, but for what went well:\n%s", troubles(p.logged(t)))
		}
	})
	return p
}

// startAndClose starts a command and closes our ends of what it was given.
func startAndClose(t *testing.T, cmd *exec.Cmd, given ...*os.File) {
	t.Helper()
	must(t, cmd.Start())
	for _, f := range given {
		must(t, f.Close())
	}
}

// is tells how the process is.
func (p *patient) is(t *testing.T, ask string) (v vitals) {
	t.Helper()
	_, err := io.WriteString(p.in, ask+"\n")
	must(t, err, p.out.Decode(&v))
	open, err := os.ReadDir(filepath.Join("/proc", strconv.Itoa(p.cmd.Process.Pid), "fd"))
	must(t, err)
	v.Descriptors = len(open)
	return v
}
