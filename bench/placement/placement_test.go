package placement

import (
	"context"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"sluice/gateway/upstream"
	"sluice/internal/ursulatest/realursula"
)

// BenchmarkCatchUpRead reads a small stream of a real three-node cluster at its
// leader and at a follower, with and without consistency=leader. Only the rows
// that say Stream-Up-To-Date keep the promise; run them interleaved
// (make bench PKG=./bench/placement) and compare within one run.
func BenchmarkCatchUpRead(b *testing.B) {
	servers := realursula.StartCluster(b, 3)
	const path = "/bench/s.placement"
	client := &http.Client{
		Transport:     &http.Transport{MaxIdleConnsPerHost: 16},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	leader, follower := "", ""
	for _, s := range servers {
		res := do(b, client, http.MethodPut, s.URL+path, "", "Content-Type", "text/plain")
		if res.StatusCode == http.StatusTemporaryRedirect {
			follower = s.URL
		} else {
			leader = s.URL
		}
	}
	if leader == "" || follower == "" {
		b.Fatalf("leader %q, follower %q", leader, follower)
	}
	if res := do(b, client, http.MethodPost, leader+path, strings.Repeat("x", 200), "Content-Type", "text/plain"); res.StatusCode != http.StatusNoContent {
		b.Fatalf("append: %d", res.StatusCode)
	}
	for _, bench := range []struct{ name, url string }{
		{"leader", leader + path},
		{"leader/confirmed", leader + path + "?consistency=leader"},
		{"follower", follower + path},
		{"follower/confirmed", follower + path + "?consistency=leader"},
	} {
		b.Run(bench.name, func(b *testing.B) {
			upToDate := 0
			for b.Loop() {
				res := do(b, client, http.MethodGet, bench.url, "")
				if res.StatusCode != http.StatusOK {
					b.Fatalf("status %d", res.StatusCode)
				}
				if res.Header.Get("Stream-Up-To-Date") == "true" {
					upToDate++
				}
			}
			b.ReportMetric(float64(upToDate)/float64(b.N), "up-to-date/op")
		})
	}
}

// BenchmarkPool reads the same through the pool, which learns from the nodes who
// leads and asks a leader that is sure for no confirmation.
func BenchmarkPool(b *testing.B) {
	servers := realursula.StartCluster(b, 3)
	const path = "/bench/s.placement"
	urls := make([]string, len(servers))
	for i, s := range servers {
		urls[i] = s.URL
	}
	pool, err := upstream.New(upstream.Options{Nodes: urls})
	if err != nil {
		b.Fatal(err)
	}
	defer pool.Close()
	send := func(method, body string, m upstream.Meta) got {
		req, err := http.NewRequestWithContext(b.Context(), method, path, nil)
		if err != nil {
			b.Fatal(err)
		}
		req.Header.Set("Content-Type", "text/plain")
		m.Path, m.Body = path, []byte(body)
		res, err := pool.Send(b.Context(), req, m)
		if err != nil {
			b.Fatal(err)
		}
		defer func() { _ = res.Body.Close() }()
		if _, err := io.Copy(io.Discard, res.Body); err != nil {
			b.Fatal(err)
		}
		return got{res.StatusCode, res.Header}
	}
	send(http.MethodPut, "", upstream.Meta{})
	send(http.MethodPost, strings.Repeat("x", 200), upstream.Meta{})
	read := upstream.Meta{Read: true, CatchUp: true}
	for began := time.Now(); time.Since(began) < 4*time.Second; { // by then every leader is sure
		send(http.MethodGet, "", read)
	}
	upToDate := 0
	for b.Loop() {
		if res := send(http.MethodGet, "", read); res.StatusCode == http.StatusOK && res.Header.Get("Stream-Up-To-Date") == "true" {
			upToDate++
		}
	}
	b.ReportMetric(float64(upToDate)/float64(b.N), "up-to-date/op")
}

// got is the head of an answer whose body was read.
type got struct {
	StatusCode int
	Header     http.Header
}

func do(b *testing.B, client *http.Client, method, url, body string, headers ...string) got {
	b.Helper()
	ctx, cancel := context.WithTimeout(b.Context(), 10*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, url, strings.NewReader(body))
	if err != nil {
		b.Fatal(err)
	}
	if body == "" {
		req.Body, req.ContentLength = http.NoBody, 0
	}
	for i := 0; i+1 < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	res, err := client.Do(req)
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	if _, err := io.Copy(io.Discard, res.Body); err != nil {
		b.Fatal(err)
	}
	return got{res.StatusCode, res.Header}
}
