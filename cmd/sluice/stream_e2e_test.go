package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"sluice/internal/syncbuf"
	"sluice/internal/ursulatest"
)

// clientEdge is an edge whose origin is where it listens, with limits that a command
// meets.
func clientEdge(t *testing.T, node string) (e *edge, file string) {
	t.Helper()
	e = &edge{Account: testAccount(t), Key: newTestKey(t), Reads: newTestKey(t)}
	address := freePort(t)
	file = strings.Replace(edgeFile(e, []string{node}, ""),
		"listen: 127.0.0.1:0\norigin: https://streams.example.com\n", "listen: "+address+"\norigin: http://"+address+"\n", 1)
	file = strings.Replace(file, "{requests_per_second: 100000, burst: 100000, open_tails: 100}",
		"{requests_per_second: 20, burst: 20, open_tails: 2, request_bytes: 200000}", 1)
	return e.start(t, file, nil), file
}

// sluice runs a client's command against the edge, with its key.
func (e *edge) sluice(t *testing.T, args ...string) (code int, out, errOut string) {
	t.Helper()
	return command(t, map[string]string{"TONBO_API_KEY": e.Key, "SLUICE_URL": e.URL}, args...)
}

// A large file goes up and comes back as it was, through a gateway that limits what a
// request may hold and how many there may be.
func TestAppendAndReadEndToEnd(t *testing.T) {
	forEachUpstream(t, func(t *testing.T, node string) {
		e, _ := clientEdge(t, node)
		random := rand.New(rand.NewPCG(7, 7)) //nolint:gosec // the same text each time
		var lines, blob bytes.Buffer
		for i := range 20_000 {
			fmt.Fprintf(&lines, "{\"n\":%d,\"text\":%q}\n", i, strings.Repeat("é", random.IntN(200)))
		}
		for blob.Len() < 5_000_000 {
			blob.WriteByte(byte(random.IntN(256))) //nolint:gosec // below 256
		}
		for name, content := range map[string][]byte{"json": lines.Bytes(), "text": lines.Bytes(), "bytes": blob.Bytes()} {
			in, out := filepath.Join(t.TempDir(), "in"), filepath.Join(t.TempDir(), "out")
			if err := os.WriteFile(in, content, 0o600); err != nil {
				t.Fatal(err)
			}
			stream := e.Account + "/" + name
			for range 2 { // repeated under one id it is stored once
				if code, text, errOut := e.sluice(t, "stream", "append", stream, in, "--producer-id", "one"); code != exitDone {
					t.Fatalf("%s: exit %d, %s%s", name, code, text, errOut)
				}
			}
			if code, text, errOut := e.sluice(t, "stream", "read", stream, "--output", out); code != exitDone || text != "" {
				t.Fatalf("%s: exit %d, %s%s", name, code, text, errOut)
			}
			got, err := os.ReadFile(out)
			if err != nil || !bytes.Equal(got, content) {
				t.Errorf("%s: %d bytes came back of %d, %v", name, len(got), len(content), err)
			}
		}
	})
}

// A tail outlives its gateway: each message is told once, whatever is restarted, and the
// stream's end is the tail's.
func TestTailEndToEnd(t *testing.T) {
	forEachUpstream(t, func(t *testing.T, node string) {
		e, file := clientEdge(t, node)
		for name, more := range map[string][]string{"json": {"--json"}, "text": nil, "bytes": {"--long-poll"}} {
			tellThroughARestart(t, e, file, name, more...)
		}
	})
}

func tellThroughARestart(t *testing.T, e *edge, file, name string, more ...string) {
	t.Helper()
	var out, errOut syncbuf.Buffer
	done := make(chan int, 1)
	env := map[string]string{"TONBO_API_KEY": e.Key, "SLUICE_URL": e.URL}
	go func() {
		done <- run(t.Context(), append([]string{"stream", "tail", e.Account + "/" + name, "--offset=-1"}, more...), environment{
			lookup: func(name string) (string, bool) { v, ok := env[name]; return v, ok }, out: &out, err: &errOut,
		})
	}()
	var want strings.Builder
	for i := range 9 {
		if i == 3 || i == 6 {
			e.Stop()
			e.Cut()
			if err := <-e.Stopped; err != nil {
				t.Errorf("stopped with %v", err)
			}
			e.app.Close()
			next := *e
			next.startOn(t, file, nil, []net.Listener{listenAgain(t, strings.TrimPrefix(e.URL, "http://"))})
			*e = next
		}
		message := fmt.Sprintf("{\"n\":%d}\n", i)
		if res := e.do(t, http.MethodPost, e.path(name), []byte(message), "Content-Type", edgeStreams[name]); res.StatusCode != http.StatusNoContent {
			t.Fatalf("append: %d %s", res.StatusCode, res.Text)
		}
		want.WriteString(message)
		eventually(t, "the message is told", func() bool { return told(out.String()) == want.String() })
	}
	if code, _, text := e.sluice(t, "stream", "close", e.Account+"/"+name); code != exitDone {
		t.Fatalf("close: %s", text)
	}
	select {
	case code := <-done:
		if code != exitDone || told(out.String()) != want.String() {
			t.Errorf("%s: exit %d, %q\n%s", name, code, out.String(), errOut.String())
		}
	case <-time.After(20 * time.Second):
		t.Fatalf("%s: the tail goes on\n%s", name, errOut.String())
	}
}

// told is the messages of a tail's output, with --json or without.
func told(out string) string {
	var b strings.Builder
	for line := range strings.Lines(out) {
		var event struct{ Messages []json.RawMessage }
		if json.Unmarshal([]byte(line), &event) != nil || !strings.Contains(line, "next_offset") {
			b.WriteString(line)
			continue
		}
		for _, m := range event.Messages {
			b.Write(append(m, '\n'))
		}
	}
	return b.String()
}

func listenAgain(t *testing.T, address string) net.Listener {
	t.Helper()
	var l net.Listener
	eventually(t, "the port is free again", func() bool {
		var lc net.ListenConfig
		var err error
		l, err = lc.Listen(t.Context(), "tcp", address)
		return err == nil
	})
	return l
}

// A key that is not good any more ends a tail with exit code 1; one that only reads
// cannot append; a public stream needs none to be read.
func TestStreamCommandsAreRefused(t *testing.T) {
	cluster := ursulatest.New(ursulatest.Options{})
	if err := cluster.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cluster.Close() })
	e, _ := clientEdge(t, cluster.URLs()[0])
	e.append(t, "open-json", `{"n":1}`)
	for name, tc := range map[string]struct {
		key  string
		args string
		code int
		says string
	}{
		"another's key":            {newTestKey(t), "tail " + e.Account + "/json", exitFailed, "INVALID_CREDENTIAL"},
		"another's key, appending": {newTestKey(t), "append " + e.Account + "/json -", exitFailed, "put a valid one into TONBO_API_KEY"},
		"a key that reads":         {e.Reads, "append " + e.Account + "/json -", exitFailed, "FORBIDDEN"},
		"a key that reads, closes": {e.Reads, "close " + e.Account + "/json", exitFailed, "FORBIDDEN"},
		"another account":          {e.Key, "read acme/json", exitFailed, "FORBIDDEN"},
		"nobody, a public stream":  {"", "read " + e.Account + "/open-json", exitDone, ""},
		"nobody, a private stream": {"", "read " + e.Account + "/json", exitFailed, "INVALID_CREDENTIAL"},
		"no such stream":           {e.Key, "tail " + e.Account + "/none", exitFailed, "_NOT_FOUND"},
	} {
		t.Run(name, func(t *testing.T) {
			env := map[string]string{"SLUICE_URL": e.URL}
			if tc.key != "" {
				env["TONBO_API_KEY"] = tc.key
			}
			var out, errOut syncbuf.Buffer
			code := run(t.Context(), append([]string{"stream"}, strings.Fields(tc.args)...), environment{
				lookup: func(name string) (string, bool) { v, ok := env[name]; return v, ok },
				in:     strings.NewReader(`{"n":2}`), out: &out, err: &errOut,
			})
			if code != tc.code || !strings.Contains(errOut.String(), tc.says) {
				t.Errorf("exit %d, want %d: %s%s", code, tc.code, out.String(), errOut.String())
			}
		})
	}
}
