package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"sluice/internal/realclients"
	"sluice/internal/syncbuf"
	"sluice/internal/tenant"
)

// trialCount is how many messages a trial of a client appends.
const trialCount = 40

// dyingFor is how long the key lasts that the first token is made of: longer than a
// client takes to begin.
const dyingFor = 7 * time.Second

// seen is what a client prints: on its way, and at its end what came to it.
type seen struct {
	At              string
	SSE, Poll, Read []int
	Opened          int // live reads
	Exchanged       int // tokens
}

// clientRun is one client at work.
type clientRun struct {
	program, stream string
	token, restart  bool
	rule            func(int, string) int
}

// trialPrograms are the programs of tools/clients by client.
func trialPrograms(t *testing.T) map[string]func(*testing.T) *exec.Cmd {
	t.Helper()
	clients := realclients.Find(t)
	command := func(t *testing.T, program, name string) *exec.Cmd {
		t.Helper()
		text, err := os.ReadFile(filepath.Join("../../tools/clients", name))
		if err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command(program, name) //nolint:noctx // the caller bounds it
		cmd.Dir = clients.Dir(t)
		writeFile(t, filepath.Join(cmd.Dir, name), string(text))
		return cmd
	}
	return map[string]func(*testing.T) *exec.Cmd{
		"JavaScript": func(t *testing.T) *exec.Cmd { t.Helper(); return command(t, clients.Node, "trial.mjs") },
		"Python":     func(t *testing.T) *exec.Cmd { t.Helper(); return command(t, clients.Python, "trial.py") },
	}
}

// run has the client work in front of a node, and returns what it saw and the edge. With
// restart the gateway is another one in the middle.
func (r clientRun) run(t *testing.T, node string) (seen, *edge, *cutter) {
	t.Helper()
	cmd := trialPrograms(t)[r.program](t)
	way := newCutter(t, r.rule)
	e := &edge{Account: testAccount(t), Key: newTestKey(t), Reads: newTestKey(t)}
	dying := newTestKey(t)
	file := strings.Replace(edgeFile(e, []string{node}, ""), "https://streams.example.com", "http://"+way.address, 1)
	file += fmt.Sprintf("      - {name: dying, digest: %q, expires_at: %s}\n", tenant.DigestOf(dying), time.Now().Add(dyingFor).UTC().Format(time.RFC3339))
	e.start(t, file, nil)
	way.to(strings.TrimPrefix(e.URL, "http://"))
	cmd.Env = append(os.Environ(), "STREAM=http://"+way.address+e.path(r.stream), "TONBO_API_KEY="+e.Key, fmt.Sprintf("COUNT=%d", trialCount))
	if r.token {
		cmd.Env = append(cmd.Env, "DYING_KEY="+dying)
	}
	half := func() {
		if !r.restart {
			return
		}
		next := *e
		e.Stop()
		e.Cut()
		if err := <-e.Stopped; err != nil {
			t.Errorf("stopped with %v", err)
		}
		next.start(t, file, nil)
		way.to(strings.TrimPrefix(next.URL, "http://"))
		*e = next
	}
	return runClient(t, cmd, half), e, way
}

// runClient runs a client to its end.
func runClient(t *testing.T, cmd *exec.Cmd, half func()) seen {
	t.Helper()
	var errOut syncbuf.Buffer
	cmd.Stderr = &errOut
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	defer context.AfterFunc(ctx, func() { _ = cmd.Process.Kill() })()
	var last seen
	for lines := bufio.NewReader(out); ; {
		line, err := lines.ReadString('\n')
		if err != nil {
			break
		}
		last = seen{}
		if err := json.Unmarshal([]byte(line), &last); err != nil {
			t.Errorf("it printed %q", line)
		}
		if last.At == "half" {
			half()
		}
	}
	if err := cmd.Wait(); err != nil || last.At != "done" {
		t.Fatalf("%v, at %q\n%s", err, last.At, errOut.String())
	}
	return last
}

// answered is how many requests of a kind the gateway has answered so, by its log.
func (e *edge) answered(method string, status int) int {
	n := 0
	for line := range strings.Lines(e.Log.String()) {
		var l struct {
			Method string
			Status int
		}
		if json.Unmarshal([]byte(line), &l) == nil && l.Method == method && l.Status == status {
			n++
		}
	}
	return n
}

// The published clients, unmodified, with a key, and with a token that ends while their
// tails are open: a producer whose answers are lost, a tail by SSE, one by long-poll, and
// a read, all cut at any byte and through a gateway that is exchanged in the middle. Each
// message is stored once and comes to each reader once, in order.
func TestPublishedClients(t *testing.T) {
	t.Parallel()
	programs := trialPrograms(t)
	want := make([]int, trialCount)
	for i := range want {
		want[i] = i + 1
	}
	// Where only its credential ends, the JavaScript client opens its tail again by itself.
	t.Run("JavaScript by itself", func(t *testing.T) {
		t.Parallel()
		got, _, _ := clientRun{"JavaScript", "json", true, false, whole()}.run(t, standIn(t))
		if !slices.Equal(got.SSE, want) || !slices.Equal(got.Poll, want) || got.Opened > 3 || got.Exchanged < 2 {
			t.Errorf("%+v", got)
		}
	})
	forEachUpstream(t, func(t *testing.T, node string) {
		for program := range programs {
			for i, r := range []clientRun{
				{program, "json", false, true, nil}, {program, "json", true, false, nil}, {program, "bytes", false, true, nil},
			} {
				t.Run(fmt.Sprintf("%s/%s token %v", program, r.stream, r.token), func(t *testing.T) {
					t.Parallel()
					r.rule = cutSome(24, uint64(10+i)) //nolint:gosec // it is small
					got, e, way := r.run(t, node)
					for what, numbers := range map[string][]int{"by SSE": got.SSE, "by long-poll": got.Poll, "read": got.Read} {
						if !slices.Equal(numbers, want) {
							t.Errorf("%s: %v", what, numbers)
						}
					}
					if stored := e.do(t, http.MethodGet, e.path(r.stream)+"?offset=-1", nil); strings.Count(stored.Text, "\n") != trialCount {
						t.Errorf("stored: %q", stored.Text)
					}
					if way.cuts() < 12 {
						t.Errorf("%d connections were cut, want 12 at least", way.cuts())
					}
					if r.token && got.Exchanged < 2 {
						t.Errorf("%d tokens", got.Exchanged)
					}
				})
			}
		}
	})
}

// What docs/clients.md says that the clients do by themselves.
func TestPublishedClientsByThemselves(t *testing.T) {
	t.Parallel()
	clients := realclients.Find(t)
	// An append whose answer is lost, without producer headers.
	lost := func() func(int, string) int {
		posts := 0
		return func(_ int, request string) int {
			if strings.HasPrefix(request, "POST") {
				if posts++; posts == 1 {
					return 0
				}
			}
			return -1
		}
	}
	// Where there is a lull of a second after each request.
	const slow = "requests_per_second: 1, burst: 1"
	const connect = `import { DurableStream, IdempotentProducer, stream } from "@durable-streams/client";
const url = process.env.STREAM, headers = { Authorization: "Bearer " + process.env.TONBO_API_KEY };
const handle = new DurableStream({ url, headers, contentType: "application/json" });
`
	const pythonConnect = `import os
from durable_streams import DurableStream, DurableStreamError, stream
url, headers = os.environ["STREAM"], {"Authorization": "Bearer " + os.environ["TONBO_API_KEY"]}
handle = DurableStream(url, headers=headers, content_type="application/json")
`
	for name, tc := range map[string]struct {
		rule   func() func(int, string) int
		limits string
		script string // Python's begins with "import os"
		prints string
		stored string
		check  func(*testing.T, *edge)
	}{
		"JavaScript's append is sent again, and stored twice": {
			rule: lost, script: connect + `await handle.append("1"); console.log("appended");`,
			prints: "appended\n", stored: "1\n1\n",
		},
		"without repeats it throws": {
			rule: lost, script: connect + `
const once = new DurableStream({ url, headers, contentType: "application/json", backoffOptions: { initialDelay: 100, maxDelay: 10000, multiplier: 2, maxRetries: 0 } });
await once.append("1").catch((err) => console.log(err.message));`,
			prints: "fetch failed\n", stored: "1\n",
		},
		"JavaScript's producer sends a batch once": {
			rule: lost, script: connect + `
const errors = [];
const producer = new IdempotentProducer(handle, "p", { onError: (err) => errors.push(err.message) });
producer.append("1"); await producer.flush();
producer.append("2"); await producer.flush();
console.log(errors.length, errors[0]);`,
			prints: "1 fetch failed\n", stored: "1\n2\n",
		},
		"JavaScript's producer does not wait, and later batches fail with the one that was refused": {
			limits: slow, script: connect + `
const errors = [];
const producer = new IdempotentProducer(handle, "p", { onError: (err) => errors.push(err.status) });
for (let n = 1; errors.length === 0; n++) { producer.append(String(n)); await producer.flush(); }
await new Promise((done) => setTimeout(done, 2000));
producer.append("late"); await producer.flush();
console.log(errors.join(" "));`,
			prints: "429 429\n",
		},
		"JavaScript waits as Retry-After says": {
			limits: slow, script: connect + `for (const n of [1, 2, 3]) await handle.append(String(n)); console.log("appended");`,
			prints: "appended\n", stored: "1\n2\n3\n",
			check: func(t *testing.T, e *edge) {
				t.Helper()
				if n := e.answered(http.MethodPost, http.StatusTooManyRequests); n < 1 || n > 4 {
					t.Errorf("429 was answered %d times", n)
				}
			},
		},
		"JavaScript reads no lines as JSON": {
			script: connect + `handle.append("1"); await handle.append("2");
for (const json of [true, undefined]) await stream({ url, headers, json }).then((res) => res.json()).catch((err) => console.log(err.code));`,
			prints: "PARSE_ERROR\nBAD_REQUEST\n", stored: "1\n2\n",
		},
		"JavaScript's live: false is one answer": {
			script: connect + `handle.append("1"); await handle.append("2");
for (const live of [false, true]) {
  const res = await stream({ url, headers, live, params: { max_bytes: "2" } });
  console.log(JSON.stringify(await res.text()), res.upToDate);
}`,
			prints: "\"1\\n\" false\n\"1\\n2\\n\" true\n", stored: "1\n2\n",
		},
		"Python repeats nothing": {
			rule: lost, script: pythonConnect + `
try:
    handle.append(1)
except Exception as err:
    print(type(err).__name__)
`,
			prints: "RemoteProtocolError\n", stored: "1\n",
		},
		"Python does not wait": {
			limits: slow, script: pythonConnect + `
handle.append(1)
try:
    for n in range(100):
        handle.append(2)
except DurableStreamError as err:
    print(err.code, hasattr(err, "headers"))
`,
			prints: "RATE_LIMITED False\n",
		},
		"Python's live=False, read and iterated": {
			script: pythonConnect + `
handle.append(1), handle.append(2)
for read in (lambda res: res.read_text(), lambda res: "".join(res.iter_text())):
    with stream(url, headers=headers, live=False, params={"max_bytes": "2"}) as res:
        print(repr(read(res)))
try:
    with stream(url, headers=headers, live=False) as res:
        res.read_json()
except ValueError as err:
    print(type(err).__name__)
`,
			prints: "'1\\n'\n'1\\n2\\n'\nJSONDecodeError\n", stored: "1\n2\n",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rule := whole
			if tc.rule != nil {
				rule = tc.rule
			}
			way := newCutter(t, rule())
			e := &edge{Account: testAccount(t), Key: newTestKey(t), Reads: newTestKey(t)}
			file := edgeFile(e, []string{standIn(t)}, "")
			if tc.limits != "" {
				file = strings.Replace(file, "requests_per_second: 100000, burst: 100000", tc.limits, 1)
				file = strings.Replace(file, "drain_timeout", "limits: {floor: {requests_per_second: 1, open_tails: 1}}\ndrain_timeout", 1)
			}
			e.start(t, file, nil)
			way.to(strings.TrimPrefix(e.URL, "http://"))
			dir, program, script := clients.Dir(t), clients.Node, "script.mjs"
			if strings.HasPrefix(tc.script, "import os") {
				program, script = clients.Python, "script.py"
			}
			writeFile(t, filepath.Join(dir, script), tc.script)
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			cmd := exec.CommandContext(ctx, program, script)
			cmd.Dir, cmd.Env = dir, append(os.Environ(), "STREAM=http://"+way.address+e.path("json"), "TONBO_API_KEY="+e.Key)
			out, err := cmd.CombinedOutput()
			if err != nil || string(out) != tc.prints {
				t.Errorf("%v\n%s\nwant\n%s", err, out, tc.prints)
			}
			if tc.check != nil {
				tc.check(t, e)
			}
			if tc.stored == "" {
				return
			}
			eventually(t, "the read is let in", func() bool {
				res := e.do(t, http.MethodGet, e.path("json")+"?offset=-1", nil)
				if res.StatusCode == http.StatusOK && res.Text != tc.stored {
					t.Fatalf("stored: %q, want %q", res.Text, tc.stored)
				}
				return res.StatusCode == http.StatusOK
			})
		})
	}
}
