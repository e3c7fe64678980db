package gateway

import (
	"fmt"
	"net/http"
	"sync"
	"testing"
	"time"

	"sluice/internal/bubble"
	"sluice/internal/store/memory"
)

// A12: a revoked key went on working, on this gateway or on that, and its tokens for
// as long as they lived. At 100 requests a second on each of two gateways, with the
// key, its token and that one's child, nothing is answered later than the revocation
// but with 401; issue 5 allows a second.
func TestLastAnswerAfterARevocation(t *testing.T) {
	for name, revoke := range map[string]func(*testing.T, *rig){
		"revoked": func(t *testing.T, rg *rig) {
			t.Helper()
			if err := rg.Directory.RevokeKey("acme/full"); err != nil {
				t.Error(err)
			}
		},
		"removed": func(t *testing.T, rg *rig) {
			t.Helper()
			rg.replace(t, func(c *memory.Content) {
				for i, k := range c.Keys {
					if k.ID == "acme/full" {
						c.Keys = append(c.Keys[:i:i], c.Keys[i+1:]...)
						return
					}
				}
			})
		},
	} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) { lastAnswer(t, revoke) })
		})
	}
}

func lastAnswer(t *testing.T, revoke func(*testing.T, *rig)) {
	rg, _, l := newBubbleRig(t, rigOptions{})
	_, _, beside := newBubbleRig(t, rigOptions{beside: rg})
	credentials := map[string]string{"key": rg.Keys["full"], "token": bubbleToken(t, rg, l, "full", "expires_in", "3600")}
	rg.Keys["token"] = credentials["token"]
	credentials["child"] = bubbleToken(t, rg, l, "token")
	start := time.Now()
	var mu sync.Mutex
	last, first := map[string]time.Duration{}, map[string]time.Duration{} // 2xx, 401
	var wait sync.WaitGroup
	for at, way := range map[string]*pipeListener{"gateway 1": l, "gateway 2": beside} {
		for kind, credential := range credentials {
			who := fmt.Sprint(kind, " at ", at)
			wait.Go(func() {
				c := way.clients(t)["h1"]
				for range 300 {
					got := <-follow(t.Context(), c, "http://gw/acme/s.priv?offset=-1", credential)
					took := got.at.Sub(start)
					mu.Lock()
					switch {
					case got.status == http.StatusNoContent:
						last[who] = took
					case got.status != http.StatusUnauthorized || got.header.Get("WWW-Authenticate") != challengeInvalid:
						t.Errorf("%s: %d %s %v", who, got.status, got.text, got.err)
					case first[who] == 0:
						first[who] = took
					}
					mu.Unlock()
					time.Sleep(10 * time.Millisecond)
				}
			})
		}
	}
	const after = time.Second + 5*time.Millisecond
	time.Sleep(after)
	revoke(t, rg)
	wait.Wait()
	if len(last) != 6 || len(first) != 6 {
		t.Fatalf("answered before %v, refused after %v", last, first)
	}
	for who, at := range last {
		if at > after || first[who] > after+10*time.Millisecond {
			t.Errorf("%s: last answer after %s, first refusal after %s; revoked after %s", who, at, first[who], after)
		}
	}
}
