package main

import (
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"sluice/config"
)

// O08: how descriptors are shared out, at the sizes that operators meet: as `ulimit -n`
// has it in the issue, as login shells and services have it, and as none has it. What
// clients and nodes may have never needs more than there is.
func TestSharesOfDescriptors(t *testing.T) {
	const head = "origin: https://a.example\nursula: {nodes: [\"http://a.example:1\", \"http://b.example:1\", \"http://c.example:1\"]}\n"
	for name, tc := range map[string]struct {
		more  string
		files uint64
		want  share
	}{
		"the issue's":        {"", 200, share{clients: 44, nodes: 45}},
		"a login's":          {"", 1024, share{clients: 456, nodes: 457}},
		"a service's":        {"", 1 << 20, share{clients: 524_232, nodes: 524_233}},
		"any number":         {"", 1<<64 - 1, share{clients: 1_048_520, nodes: 1_048_521}},
		"not known":          {"", 0, share{clients: 1_048_520, nodes: 1_048_521}},
		"a store, and Redis": {"store: {url: \"sqlite:/x\"}\nredis: {url: \"redis://r:1\"}\n", 1024, share{clients: 428, nodes: 429}},
		"too few":            {"", 64, share{clients: 8, nodes: 8}},
		"a file's":           {"server: {connections: 100}\n", 1024, share{clients: 100, nodes: 813}},
		"a file's most":      {"server: {connections: 799}\n", 1024, share{clients: 799, nodes: 114}},
		"a file's too many":  {"server: {connections: 800}\n", 1024, share{clients: 799, nodes: 114, lowered: true}},
		"too many of few":    {"server: {connections: 1000}\n", 64, share{clients: 8, nodes: 8, lowered: true}},
	} {
		t.Run(name, func(t *testing.T) {
			c, err := config.Parse("f", []byte(head+tc.more), config.Options{Grammar: grammar()})
			if err != nil {
				t.Fatal(err)
			}
			if got := shareOut(c, tc.files); got != tc.want {
				t.Errorf("got %+v, want %+v", got, tc.want)
			}
		})
	}
}

// A line for each connection that was turned away filled the log. One that goes on is
// told once in a while, with how often it happened, and another line is not held up by it.
func TestLimitedLog(t *testing.T) {
	core, lines := observer.New(zapcore.WarnLevel)
	now := time.Unix(1_000, 0)
	l := &limitedLog{log: zap.New(core), every: 10 * time.Second, now: func() time.Time { return now }}
	for range 1_000 {
		l.warn("a")
		now = now.Add(25 * time.Millisecond)
	}
	l.warn("b")
	var times int64
	for _, line := range lines.FilterMessage("a").All() {
		n, _ := line.ContextMap()["times"].(int64)
		times += n
	}
	if got := lines.FilterMessage("a").Len(); got != 3 || times != 801 {
		t.Errorf("%d lines of 1,000 in 25 s, %d times; want 3, and 801 up to the last", got, times)
	}
	if lines.FilterMessage("b").Len() != 1 {
		t.Error("another line was held up")
	}
}
