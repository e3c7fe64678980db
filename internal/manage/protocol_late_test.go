package manage

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"sluice/internal/bubble"
	"sluice/internal/store"
)

// A DELETE of a stream whose making nobody has written down yet came late, and took the
// stream that the client had made since. It is for the one that the node told, or for none.
func TestLateDeleteOfWhatIsNotKnown(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		g := newRig(t, seldom)
		g.answering(func(req *http.Request) (*http.Response, error) { // made, and nobody told
			closeAnswer(g.nodes.Do(req))
			return nil, errors.New("cut")
		})
		g.client(http.MethodPut, "events", "text/plain", "one")
		var late []*http.Request
		g.answering(func(req *http.Request) (*http.Response, error) {
			late = append(late, req.Clone(context.WithoutCancel(req.Context())))
			return nil, errors.New("cut")
		})
		g.client(http.MethodDelete, "events", "", "")
		g.answering(func(*http.Request) (*http.Response, error) { return nil, nil })
		if got := g.client(http.MethodDelete, "events", "", ""); got.status != http.StatusNoContent {
			t.Errorf("%d %s", got.status, got.body)
		}
		if got := g.client(http.MethodPut, "events", "text/plain", "two"); got.status != http.StatusCreated {
			t.Errorf("%d %s", got.status, got.body)
		}
		for _, req := range late {
			closeAnswer(g.nodes.Do(req))
		}
		time.Sleep(settled)
		if !g.agree("events") || g.content("events") != "two" {
			t.Errorf("it holds %q", g.content("events"))
		}
	})
}

// A node that was frozen with a client's PUT in its hands makes the stream when it wakes,
// after a look that found nothing. The second look finds it, and it gets its row; what was
// deleted meanwhile is deleted again.
func TestFrozenNodeWithAClientsCreate(t *testing.T) {
	for _, deleted := range []bool{false, true} {
		t.Run(fmt.Sprintf("deleted=%t", deleted), func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				var looks atomic.Int32
				g := newRig(t, func(r *ReconcilerOptions, _ *Options) {
					nodes := r.Nodes
					r.Nodes = nodesFunc(func(req *http.Request) (*http.Response, error) {
						res, err := nodes.Do(req)
						if req.Method == http.MethodHead && looks.Add(1) == 1 {
							closeAnswer(nodes.Do(mustRequest(t, http.MethodPut, "events")))
						}
						return res, err
					})
				})
				g.answering(nodeCase{err: errors.New("cut")}.answer)
				g.client(http.MethodPut, "events", "text/plain", "")
				if deleted {
					g.clientNodes = g.nodes
					if got := g.client(http.MethodDelete, "events", "", ""); got.status != http.StatusNotFound {
						t.Errorf("%d %s", got.status, got.body)
					}
				}
				time.Sleep(settled)
				if exists := g.agree("events"); exists == deleted || looks.Load() < 2 {
					t.Errorf("exists: %t after %d looks", exists, looks.Load())
				}
			})
		})
	}
}

// A node was frozen with a client's PUT in its hands, the client's repeat made the stream,
// and it was deleted just after a look had found it: the frozen one made it again.
func TestFrozenNodeBesideAnother(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		looked := make(chan struct{}, 100)
		g := newRig(t, func(r *ReconcilerOptions, _ *Options) {
			nodes := r.Nodes
			r.Nodes = nodesFunc(func(req *http.Request) (*http.Response, error) {
				res, err := nodes.Do(req)
				looked <- struct{}{}
				return res, err
			})
		})
		g.answering(nodeCase{err: errors.New("cut")}.answer)
		g.client(http.MethodPut, "events", "text/plain", "")
		g.clientNodes = g.nodes
		g.client(http.MethodPut, "events", "text/plain", "")
		<-looked
		time.Sleep(time.Second)
		g.own(http.MethodDelete, "/v1/streams/events", "")
		time.Sleep(time.Second)
		closeAnswer(g.nodes.Do(mustRequest(t, http.MethodPut, "events")))
		time.Sleep(settled)
		if g.agree("events") {
			t.Error("what was deleted is there")
		}
	})
}

// A PUT that is refused while another is under way undoes nothing of it.
func TestRefusedBesideAnother(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		g := newRig(t)
		g.answering(func(*http.Request) (*http.Response, error) {
			g.clientNodes = nodesFunc(nodeCase{status: 400, code: "INVALID_HEADER"}.answer)
			g.client(http.MethodPut, "events", "text/plain", "x")
			g.isState("events", store.Creating)
			return nil, nil
		})
		if got := g.client(http.MethodPut, "events", "text/plain", "one"); got.status != http.StatusCreated {
			t.Errorf("%d %s", got.status, got.body)
		}
		if !g.agree("events") {
			t.Error("no row")
		}
	})
}

// The store fails when a stream is made: the client is told what the node said, and the
// stream gets its row later.
func TestStoreFailsAfterTheNode(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		g := newRig(t)
		g.answering(func(*http.Request) (*http.Response, error) {
			g.options.Streams = faultyStore{g.store, &injector{at: 1, what: lost}}
			return nil, nil
		})
		p := g.options.Streams
		failing := &injector{at: 2, what: lost}
		g.options.Streams = faultyStore{p, failing}
		if got := g.client(http.MethodPut, "events", "text/plain", "one", "Stream-TTL", "3600"); got.status != http.StatusCreated {
			t.Errorf("%d %s", got.status, got.body)
		}
		if !slices.Equal(failing.seen(), []string{"Begin", "End"}) {
			t.Errorf("steps %v", failing.seen())
		}
		g.options.Streams = p
		g.isState("events", store.Creating)
		time.Sleep(settled)
		g.isState("events", store.Live)
		if !g.agree("events") || g.listed("events").at("ttl_seconds") != 3600.0 {
			t.Errorf("%s", g.listed("events").body)
		}
	})
}
