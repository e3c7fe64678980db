package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

const (
	// strangeRequests is the trial's size (issue 10).
	strangeRequests = 20_000
	// warmRequests of the same kinds bring the series that there are into being.
	warmRequests = 2_000
	// seriesMost is what all of it together may add to a process that has served nothing: the
	// operations times the statuses that each can have, the buckets of those that were asked
	// for, the codes of refusals. seriesMore is what the 20,000 behind the first 2,000 may:
	// a pair of operation and status, or a refusal, that chance has left out before.
	seriesMost = 400
	seriesMore = 40
)

// Labels that clients choose filled the memory of who scrapes: a path, a method, a host, a
// user agent, a key or an account as a label's value makes a series each. Here 20,000
// requests with random ones of all, over HTTP/1.1 and HTTP/2, refused, cut and tails among
// them, move the number of series by a small constant; and each has one line in the log.
func TestTrialCardinality(t *testing.T) {
	e := &edge{Account: testAccount(t), Key: newTestKey(t), Reads: newTestKey(t)}
	e.start(t, edgeFile(e, []string{standIn(t)}, "trusted_proxies: [127.0.0.1]\nserver: {failed_credentials_per_minute: 1000000}\n"), nil)
	e.append(t, "json", `1`)
	// Those from outside alone: /metrics tells of the scrapes of it too.
	first := e.series(t)
	s := &strangers{edge: e, clients: []*http.Client{http1(), http2()}}
	s.send(t, warmRequests)
	before := e.series(t)
	s.send(t, strangeRequests)
	after := e.series(t)
	t.Logf("series: %d at the start, %d after %d requests, %d after %d more", first, before, warmRequests, after, strangeRequests)
	if after-first > seriesMost {
		t.Errorf("%d requests made %d series, want %d at the most", warmRequests+strangeRequests, after-first, seriesMost)
	}
	if after-before > seriesMore {
		t.Errorf("%d requests made %d more series, want %d at the most", strangeRequests, after-before, seriesMore)
	}
	s.wantLines(t)
}

// series counts the samples of /metrics. Go's own differ from moment to moment by
// themselves, in no way that a request has a part in.
func (e *edge) series(t *testing.T) (n int) {
	t.Helper()
	for line := range strings.Lines(e.admin(t, http.MethodGet, "/metrics").Text) {
		if strings.HasPrefix(line, "sluice_") {
			n++
		}
	}
	return n
}

// strangers send requests in which everything that a client chooses is random.
type strangers struct {
	*edge

	clients []*http.Client
	sent    atomic.Int64
}

func (s *strangers) send(t *testing.T, n int) {
	t.Helper()
	var group sync.WaitGroup
	next := s.sent.Load()
	end := next + int64(n)
	for worker := range 8 {
		random := rand.New(rand.NewPCG(uint64(worker), uint64(n))) //nolint:gosec // the same each time
		group.Go(func() {
			for {
				i := s.sent.Add(1)
				if i > end {
					s.sent.Add(-1)
					return
				}
				s.one(t, random, int(i))
			}
		})
	}
	group.Wait()
}

// idOf names a request of the trial.
func idOf(i int) string { return fmt.Sprintf("stranger-%d", i) }

func word(r *rand.Rand) string {
	const letters = "abcdefghijklmnopqrstuvwxyz0123456789"
	b := make([]byte, 4+r.IntN(12))
	for i := range b {
		b[i] = letters[r.IntN(len(letters))]
	}
	return string(b)
}

func pick[T any](r *rand.Rand, list ...T) T { return list[r.IntN(len(list))] }

// one sends one request, and does not mind what becomes of it.
func (s *strangers) one(t *testing.T, r *rand.Rand, i int) {
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	switch r.IntN(40) {
	case 0:
		s.cut(t, r, i)
		return
	case 1:
		s.tail(ctx, r, i)
		return
	}
	account := pick(r, s.Account, word(r), "__ursula", "v1", strings.Repeat("x", 70))
	stream := pick(r, "s.json", "s.open-json", "s."+word(r), word(r), "s.text")
	path := pick(r,
		"/"+account+"/"+stream, "/"+account+"/"+stream+"/"+word(r), "/"+account+"/"+stream+"/snapshot/"+word(r),
		"/"+account+"/"+stream+"/incarnation/"+word(r)+"/chunk/"+word(r), "/"+account+"/"+stream+"/bootstrap",
		"/"+word(r), "/v1/"+word(r), "/v1/token", "/.well-known/jwks.json", "/"+account+"/%2e%2e/"+word(r), "/"+account+"//"+stream,
		"/metrics", "/debug/pprof/"+word(r), "/"+account+"/"+stream+"/retention/"+word(r),
	)
	path += pick(r, "", "?offset=-1", "?"+word(r)+"="+word(r), "?live="+word(r), "?offset=-1&live=long-poll&timeout_ms=1")
	method := pick(r, "GET", "GET", "GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE", strings.ToUpper(word(r)), "get")
	var body io.Reader
	if method == "POST" || method == "PUT" {
		body = strings.NewReader(pick(r, "", "1", word(r)))
	}
	q, err := http.NewRequestWithContext(ctx, method, s.URL+path, body)
	if err != nil {
		t.Errorf("%s %s: %v", method, path, err)
		return
	}
	q.Host = pick(r, "streams.example.com", word(r)+".example", word(r)+":1234")
	q.Header.Set("X-Request-Id", idOf(i))
	q.Header.Set("User-Agent", word(r))
	q.Header.Set("Content-Type", pick(r, "application/json", word(r)+"/"+word(r), "application/x-www-form-urlencoded"))
	q.Header.Set("X-Forwarded-For", fmt.Sprintf("%d.%d.%d.%d", 1+r.IntN(200), r.IntN(256), r.IntN(256), r.IntN(256)))
	q.Header.Set("Traceparent", pick(r, "", parentOf(traceOne), word(r)))
	q.Header.Set("Referer", "http://"+word(r)+"/")
	switch r.IntN(5) {
	case 0:
	case 1:
		q.Header.Set("Authorization", "Bearer "+word(r))
	case 2:
		q.Header.Set("Authorization", word(r))
	default:
		q.Header.Set("Authorization", "Bearer "+pick(r, s.Key, s.Reads, "tbo_"+strings.Repeat(word(r)[:4], 10)))
	}
	res, err := s.clients[r.IntN(len(s.clients))].Do(q)
	if err != nil {
		t.Errorf("%s %s: %v", method, path, err)
		return
	}
	_, _ = io.Copy(io.Discard, res.Body)
	_ = res.Body.Close()
}

// tail opens a stream of events, and leaves it.
func (s *strangers) tail(ctx context.Context, r *rand.Rand, i int) {
	q, err := http.NewRequestWithContext(ctx, http.MethodGet, s.URL+s.path("json")+"?offset=-1&live=sse", nil)
	if err != nil {
		return
	}
	q.Header.Set("X-Request-Id", idOf(i))
	q.Header.Set("Authorization", "Bearer "+s.Key)
	res, err := s.clients[r.IntN(len(s.clients))].Do(q)
	if err != nil {
		return
	}
	_, _ = io.ReadFull(res.Body, make([]byte, 5))
	_ = res.Body.Close()
}

// cut sends what Go's server refuses by itself, of which there is no line, and then half of a
// request, whose client goes.
func (s *strangers) cut(t *testing.T, r *rand.Rand, i int) {
	host := strings.TrimPrefix(s.URL, "http://")
	var d net.Dialer
	for _, text := range []string{
		word(r) + "\r\n\r\n", // bare
		fmt.Sprintf("POST %s HTTP/1.1\r\nHost: x\r\nX-Request-Id: %s\r\nAuthorization: Bearer %s\r\nContent-Length: 100\r\n\r\nhalf", s.path("json"), idOf(i), s.Key),
	} {
		conn, err := d.DialContext(t.Context(), "tcp", host)
		if err != nil {
			t.Error(err)
			return
		}
		_, _ = io.WriteString(conn, text)
		if c, ok := conn.(*net.TCPConn); ok {
			_ = c.CloseWrite()
		}
		_, _ = io.Copy(io.Discard, bufio.NewReader(conn))
		_ = conn.Close()
	}
}

// wantLines checks that each request has one line, and that there is no line but those.
func (s *strangers) wantLines(t *testing.T) {
	t.Helper()
	n := int(s.sent.Load())
	marker := []byte(`"message":"request","request_id":"stranger-`)
	eventually(t, "all lines", func() bool { return bytes.Count([]byte(s.Log.String()), marker) >= n })
	lines := make(map[string]int, n)
	for line := range strings.Lines(s.Log.String()) {
		if !strings.Contains(line, `"message":"request"`) {
			continue
		}
		var l struct {
			ID string `json:"request_id"`
		}
		if err := json.Unmarshal([]byte(line), &l); err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		lines[l.ID]++
	}
	for i := 1; i <= n; i++ {
		if got := lines[idOf(i)]; got != 1 {
			t.Errorf("%s has %d lines", idOf(i), got)
		}
		delete(lines, idOf(i))
	}
	// The append at the start is the only other request.
	if len(lines) != 1 {
		t.Errorf("there are %d lines of requests that nobody sent", len(lines)-1)
	}
}
