package proxy

import (
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"sluice/internal/ursulatest/realursula"
)

const (
	rounds = 20 // of one operation of the benchmark
	// reads of a process in a round: few, so that what else runs on the machine
	// weighs on all of a round alike.
	reads  = 1024
	warmUp = 128 // before them
)

// subject is a process that is measured.
type subject struct {
	name string
	process
	key string
}

// turn is what one round made of a subject.
type turn struct {
	cpu, wall time.Duration
}

// BenchmarkProxiedRead measures the CPU time that a process takes for each
// proxied small read: bare is a httputil.ReverseProxy over a transport of the
// pool's settings, pool is one over upstream.Pool, gateway is the whole program.
// All are asked in turns, and compared within a round only; what is reported are
// medians over the rounds. Target of the issue: pool/bare at most 1.10.
func BenchmarkProxiedRead(b *testing.B) {
	b.Run("node=fixed", func(b *testing.B) {
		benchmarkReads(b, startRole(b, "node", "").address)
	})
	b.Run("node=ursula", func(b *testing.B) {
		benchmarkReads(b, strings.TrimPrefix(realursula.Start(b).URL, "http://"))
	})
}

func benchmarkReads(b *testing.B, node string) {
	gateway, key := startGateway(b, node)
	appendOne(b, gateway.address, key)
	subjects := []subject{
		{"bare", startRole(b, "bare", node), key},
		{"pool", startRole(b, "pool", node), key},
		{"gateway", gateway, key},
	}
	for _, conns := range []int{16, 64} {
		b.Run(fmt.Sprintf("conns=%d", conns), func(b *testing.B) { compare(b, subjects, conns) })
	}
}

// appendOne makes the stream hold something small.
func appendOne(b *testing.B, address, key string) {
	b.Helper()
	req, err := http.NewRequestWithContext(b.Context(), http.MethodPost, "http://"+address+target, strings.NewReader(smallBody))
	if err != nil {
		b.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+key)
	req.Header.Set("Content-Type", "application/json")
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		b.Fatal(err)
	}
	text, _ := io.ReadAll(res.Body)
	_ = res.Body.Close()
	if res.StatusCode/100 != 2 {
		b.Fatalf("append: %s: %s", res.Status, text)
	}
}

func compare(b *testing.B, subjects []subject, conns int) {
	loads := make([]*load, len(subjects))
	for i, s := range subjects {
		l, err := dialLoad(b.Context(), s.address, s.key, conns)
		if err != nil {
			b.Fatal(err)
		}
		defer l.close()
		loads[i] = l
	}
	turns := make([][]turn, len(subjects))
	for b.Loop() {
		for round := range rounds {
			for n := range subjects {
				// Each begins a round in its turn, so that none always follows the same.
				i := (round + n) % len(subjects)
				turns[i] = append(turns[i], measure(b, subjects[i], loads[i]))
			}
		}
	}
	report(b, subjects, turns)
}

func measure(b *testing.B, s subject, l *load) turn {
	// Connections to the node may have grown old in the others' turns.
	if err := l.run(warmUp); err != nil {
		b.Fatalf("%s: %v", s.name, err)
	}
	cpu, began := s.cpu(b), time.Now()
	if err := l.run(reads); err != nil {
		b.Fatalf("%s: %v", s.name, err)
	}
	return turn{cpu: s.cpu(b) - cpu, wall: time.Since(began)}
}

func report(b *testing.B, subjects []subject, turns [][]turn) {
	b.ReportMetric(0, "ns/op")
	for i, s := range subjects {
		cpu, rate, ratio := make([]float64, 0, len(turns[i])), make([]float64, 0, len(turns[i])), make([]float64, 0, len(turns[i]))
		for round, t := range turns[i] {
			cpu = append(cpu, float64(t.cpu.Nanoseconds())/1e3/reads)
			rate = append(rate, reads/t.wall.Seconds())
			ratio = append(ratio, float64(t.cpu)/float64(turns[0][round].cpu))
		}
		b.ReportMetric(median(cpu), s.name+"-cpu-µs/read")
		b.ReportMetric(median(rate), s.name+"-reads/s")
		if i > 0 {
			b.ReportMetric(median(ratio), s.name+"/bare")
		}
	}
}

func median(list []float64) float64 {
	slices.Sort(list)
	middle := len(list) / 2
	if len(list)%2 == 1 {
		return list[middle]
	}
	return (list[middle-1] + list[middle]) / 2
}
