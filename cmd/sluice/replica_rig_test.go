package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"sluice/internal/tenant"
)

// Replicas are processes of the program that share a Redis, as an operator runs
// them.

// sharedWithin is how soon limits are shared again once Redis is back (design §6).
const sharedWithin = 5 * time.Second

// payer is an account of a trial, with a key that may do everything in it, and the
// streams of every edge.
type payer struct{ id, key, limits string }

func newPayer(t *testing.T, limits string) payer {
	t.Helper()
	return payer{testAccount(t), newTestKey(t), limits}
}

func (a payer) path(name string) string { return "/" + a.id + "/s." + name }

// replicaFile is the operator's file of a replica; redis is what stands in that
// section.
func replicaFile(nodes []string, redis string, payers ...payer) string {
	var b strings.Builder
	fmt.Fprintf(&b, "listen: 127.0.0.1:0\norigin: https://streams.example.com\nadmin: {listen: \"127.0.0.1:0\"}\n")
	fmt.Fprintf(&b, "ursula: {nodes: [%q]}\ndrain_delay: 0s\ndrain_timeout: 500ms\nredis: {%s}\naccounts:\n", strings.Join(nodes, `", "`), redis)
	for _, a := range payers {
		fmt.Fprintf(&b, "  - id: %s\n    limits: {%s}\n    streams:\n", a.id, a.limits)
		for name, media := range edgeStreams {
			fmt.Fprintf(&b, "      - {name: %s, content_type: %s}\n", name, media)
		}
		fmt.Fprintf(&b, "    keys:\n      - {name: all, digest: %q}\n", tenant.DigestOf(a.key))
	}
	return b.String()
}

// replica is such a process.
type replica struct {
	*process
	path string // of its file
	log  string // of its log
}

// startReplica runs a file. It does not wait for it.
func startReplica(t *testing.T, file string) *replica {
	t.Helper()
	return startReplicaOf(t, &edge{}, file)
}

// startReplicaOf is startReplica, with the keys of an edge.
func startReplicaOf(t *testing.T, e *edge, file string) *replica {
	t.Helper()
	r := &replica{log: filepath.Join(t.TempDir(), "log")}
	log, err := os.Create(r.log)
	if err != nil {
		t.Fatal(err)
	}
	r.process, r.path = runProcess(t, e, file, log)
	t.Cleanup(func() {
		if t.Failed() {
			lines := slices.DeleteFunc(strings.Split(r.logged(t), "\n"), func(l string) bool { return strings.Contains(l, `"status":429`) })
			t.Logf("log of the replica at %s, but for what went well:\n%s", r.URL, troubles(strings.Join(lines, "\n")))
		}
	})
	return r
}

// startReplicas runs n replicas of one file, until all are ready and share.
func startReplicas(t *testing.T, n int, file string) []*replica {
	t.Helper()
	all := make([]*replica, n)
	for i := range all {
		all[i] = startReplica(t, file)
	}
	for _, r := range all {
		r.awaitReady(t)
	}
	for _, r := range all {
		eventually(t, "the replica shares with all", func() bool {
			return r.gauge(t, "sluice_redis_degraded") == 0 && r.gauge(t, "sluice_replicas") == float64(n)
		})
	}
	return all
}

func (r *replica) awaitReady(t *testing.T) {
	t.Helper()
	eventually(t, "the replica is ready", func() bool { return answersWith(t, r.Admin+"/readyz", http.StatusOK, 5*time.Second) })
}

// answersWith reports whether a GET is answered with that status within the time.
func answersWith(t *testing.T, url string, status int, within time.Duration) bool {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return false
	}
	_ = res.Body.Close()
	return res.StatusCode == status
}

func (r *replica) logged(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile(r.log)
	if err != nil {
		t.Error(err)
	}
	return string(text)
}

// lines counts the lines of the log that have a text.
func (r *replica) lines(t *testing.T, text string) int {
	t.Helper()
	return strings.Count(r.logged(t), text)
}

// What the log says once of each change.
const (
	saysLost   = `"message":"Redis is lost`
	saysShared = `"message":"limits are counted over all replicas"`
)

// gauge is a sample of the replica's metrics.
func (r *replica) gauge(t *testing.T, name string) float64 {
	t.Helper()
	for line := range strings.Lines(r.admin(t, http.MethodGet, "/metrics").Text) {
		if value, ok := strings.CutPrefix(line, name+" "); ok {
			n, err := strconv.ParseFloat(strings.TrimSpace(value), 64)
			if err != nil {
				t.Fatal(err)
			}
			return n
		}
	}
	t.Fatalf("no metric %s", name)
	return 0
}

// outcome is what became of one request.
type outcome struct {
	kind   string // "read", "tail", "upload"
	status int    // 0: there was no answer
	code   string // of a refusal
	err    error
	retry  string // Retry-After
	begun  time.Time
	took   time.Duration
}

// ok reports a request that was let in and answered.
func (o outcome) ok() bool { return o.status == http.StatusOK || o.status == http.StatusNoContent }

func (o outcome) String() string {
	return fmt.Sprintf("%s: %d %s %v after %v", o.kind, o.status, o.code, o.err, o.took.Round(time.Millisecond))
}

// try makes one request with an account's key, and reads the answer whole but for a
// tail's, of which the first event is read.
func (r *replica) try(c *http.Client, a payer, kind string) outcome {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	o := outcome{kind: kind, begun: time.Now()}
	res, err := r.request(ctx, c, a, kind)
	if err != nil {
		o.err, o.took = err, time.Since(o.begun)
		return o
	}
	defer func() { _ = res.Body.Close() }()
	o.status, o.retry = res.StatusCode, res.Header.Get("Retry-After")
	if kind == "tail" && o.ok() {
		_, o.err = io.ReadFull(res.Body, make([]byte, 1))
		o.took = time.Since(o.begun)
		return o
	}
	text, err := io.ReadAll(res.Body)
	o.err, o.took = err, time.Since(o.begun)
	if !o.ok() {
		o.code = reply{res, string(text)}.code()
	}
	return o
}

// largeBody is more than what is small.
const largeBody = 1<<20 + 1

func (r *replica) request(ctx context.Context, c *http.Client, a payer, kind string) (*http.Response, error) {
	method, target, body := http.MethodGet, a.path("json")+"?offset=-1", io.Reader(http.NoBody)
	switch kind {
	case "tail":
		target = a.path("json") + "?offset=now&live=sse"
	case "upload":
		method, target, body = http.MethodPost, a.path("bytes"), strings.NewReader(strings.Repeat("x", largeBody))
	}
	req, err := http.NewRequestWithContext(ctx, method, r.URL+target, body)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Authorization", "Bearer "+a.key)
	if kind == "upload" {
		req.Header.Set("Content-Type", edgeStreams["bytes"])
	}
	return c.Do(req)
}

// loadClient keeps its connections, so that a load makes no handshakes.
func loadClient(t *testing.T) *http.Client {
	t.Helper()
	c := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 256, DisableCompression: true}}
	t.Cleanup(c.CloseIdleConnections)
	return c
}

// load makes requests of one kind at so many a second until ctx ends, whether or not
// the earlier ones have been answered, and returns what became of all of them.
func (r *replica) load(ctx context.Context, c *http.Client, a payer, kind string, perSecond float64) []outcome {
	var mu sync.Mutex
	var all []outcome
	var running sync.WaitGroup
	slots := make(chan struct{}, 200)
	began := time.Now()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for sent := 0; ; {
		select {
		case <-ctx.Done():
			running.Wait()
			return all
		case now := <-tick.C:
			for ; sent < int(now.Sub(began).Seconds()*perSecond); sent++ {
				slots <- struct{}{}
				running.Go(func() {
					o := r.try(c, a, kind)
					<-slots
					mu.Lock()
					defer mu.Unlock()
					all = append(all, o)
				})
			}
		}
	}
}

// held is what Redis knows of an account's slots, of all replicas.
func held(t *testing.T, client *redis.Client, what, account string) int {
	t.Helper()
	keys, err := client.Keys(t.Context(), "sluice:{*}:"+what+":"+account).Result()
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, key := range keys {
		fields, err := client.HGetAll(t.Context(), key).Result()
		if err != nil {
			t.Fatal(err)
		}
		for _, value := range fields {
			slots, _, _ := strings.Cut(value, ":")
			more, err := strconv.Atoi(slots)
			if err != nil {
				t.Fatal(err)
			}
			n += more
		}
	}
	return n
}

// openTail is a tail that stays.
type openTail struct {
	*http.Response
	status int
	cancel context.CancelFunc
}

// openTail opens a tail, which ends with the test or with close.
func (r *replica) openTail(t *testing.T, c *http.Client, a payer) openTail {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	res, err := r.request(ctx, c, a, "tail")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = res.Body.Close() })
	return openTail{res, res.StatusCode, cancel}
}

func (o openTail) close() {
	o.cancel()
	_ = o.Body.Close()
}

var errOddLine = errors.New("a line that is no entry")

// entries are the log's lines.
func (r *replica) entries(t *testing.T) []map[string]any {
	t.Helper()
	var all []map[string]any
	for line := range strings.Lines(r.logged(t)) {
		var entry map[string]any
		if err := json.Unmarshal([]byte(line), &entry); err != nil {
			t.Error(fmt.Errorf("%w: %q", errOddLine, line))
			continue
		}
		all = append(all, entry)
	}
	return all
}
