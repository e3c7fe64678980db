package main

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"sluice/internal/redistest"
	"sluice/internal/ursulatest"
)

// tailEnding is a way in which tails end.
type tailEnding struct {
	name   string
	fault  ursulatest.Fault // of the node
	stream string           // "" = json
	status int              // 0: the client leaves before it
	stays  bool             // the client does not leave
}

func tailEndings() []tailEnding {
	return []tailEnding{
		{name: "the client leaves", status: 200},
		{name: "the client leaves before the head", fault: ursulatest.Hang},
		{name: "no such stream", stream: "missing", status: 404, stays: true},
		{name: "the node answers an error", fault: ursulatest.Status(500, nil, nil), status: 500, stays: true},
		{name: "the node breaks off before the head", fault: ursulatest.Reset, status: 502, stays: true},
		{name: "the node breaks off after the head", fault: ursulatest.CutAfter(10), status: 200, stays: true},
	}
}

// L14, with Redis: of many tails that ended, in each way and over both protocols,
// slots were left in Redis, and the account was locked out. The last ones are ended by
// a reload that takes their account away, and by the end of the process.
func TestTailsEndAtZeroInRedis(t *testing.T) {
	each := 40
	if soak() {
		each = 1200
	}
	server := redistest.Start(t)
	client := server.Client(t)
	cluster := ursulatest.New(ursulatest.Options{})
	if err := cluster.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cluster.Close() })
	roomy := strings.Replace(unlimited, "open_tails: 1000", "open_tails: 5000", 1)
	a, b := newPayer(t, roomy), newPayer(t, roomy)
	r := startReplicas(t, 1, replicaFile(cluster.URLs(), "url: redis://"+server.Addr, a, b))[0]
	clients := []*http.Client{loadClient(t), http2()}
	zero := func(t *testing.T) {
		t.Helper()
		eventually(t, "no tail is open", func() bool { return r.gauge(t, "sluice_open_tails") == 0 })
		eventually(t, "Redis knows of none", func() bool { return held(t, client, "tails", a.id)+held(t, client, "tails", b.id) == 0 })
	}
	for _, way := range tailEndings() {
		t.Run(way.name, func(t *testing.T) {
			if way.fault != nil {
				cluster.Node(0).SetFault(ursulatest.Match(func(r *http.Request) bool { return strings.Contains(r.RequestURI, "live=sse") }, way.fault))
				defer cluster.Node(0).SetFault(nil)
			}
			var group errgroup.Group
			group.SetLimit(20)
			for i := range each {
				group.Go(func() error { return r.endTail(clients[i%2], a, way) })
			}
			if err := group.Wait(); err != nil {
				t.Error(err)
			}
			zero(t)
		})
	}
	open := func(t *testing.T, of payer) []openTail {
		t.Helper()
		tails := make([]openTail, each)
		for i := range tails {
			tails[i] = r.openTail(t, clients[i%2], of)
		}
		eventually(t, "Redis knows of all", func() bool { return held(t, client, "tails", of.id) == each })
		return tails
	}
	t.Run("their account goes", func(t *testing.T) {
		tails := open(t, b)
		others, _, _ := strings.Cut(readFile(t, r.path), "  - id: "+b.id) // it is the last
		writeFile(t, r.path, others)
		want(t, r.admin(t, http.MethodPost, "/reload"), http.StatusOK)
		for i, tail := range tails {
			if text, err := io.ReadAll(tail.Body); err != nil || !strings.Contains(string(text), "credential-expired") {
				t.Fatalf("tail %d: %q, %v", i, text, err)
			}
		}
		zero(t)
	})
	t.Run("the process is told to stop", func(t *testing.T) {
		open(t, a)
		if err := r.ends(t, syscall.SIGTERM); err != nil {
			t.Errorf("exit: %v", err)
		}
		// The next replica has all of them at once.
		next := startReplica(t, replicaFile(cluster.URLs(), "url: redis://"+server.Addr, payer{a.id, a.key, strings.Replace(roomy, "open_tails: 5000", "open_tails: 1", 1)}))
		next.awaitReady(t)
		eventually(t, "the next replica shares", func() bool { return next.gauge(t, "sluice_redis_degraded") == 0 })
		if o := next.try(clients[0], a, "tail"); !o.ok() {
			t.Errorf("a tail at the next replica: %v", o)
		}
	})
}

// endTail opens a tail that ends in that way.
func (r *replica) endTail(c *http.Client, a payer, way tailEnding) error {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	if way.status == 0 {
		defer time.AfterFunc(20*time.Millisecond, cancel).Stop()
	}
	stream := way.stream
	if stream == "" {
		stream = "json"
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, r.URL+a.path(stream)+"?offset=now&live=sse", nil)
	if err != nil {
		return err
	}
	req.Header.Set("Authorization", "Bearer "+a.key)
	res, err := c.Do(req)
	switch {
	case way.status == 0 && errors.Is(err, context.Canceled):
		return nil
	case err != nil:
		return err
	}
	defer func() { _ = res.Body.Close() }()
	if res.StatusCode != way.status {
		return errors.New(way.name + ": answered " + res.Status)
	}
	if way.stays {
		_, _ = io.Copy(io.Discard, res.Body) // it may be cut
	}
	return nil
}
