package manage

import (
	"fmt"
	"net/http"
	"sync"
	"testing"
	"time"

	"sluice/internal/bubble"
	"sluice/internal/store"
)

// What Ursula lets expire leaves the list within a minute, by an end or by not being used;
// nobody asks it all the time, and what lives on stays.
func TestClientsStreamsExpire(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		heads := 0
		g := newRig(t, func(r *ReconcilerOptions, _ *Options) {
			r.Poll = 15 * time.Second
			nodes := r.Nodes
			r.Nodes = nodesFunc(func(req *http.Request) (*http.Response, error) {
				mu.Lock()
				heads++
				mu.Unlock()
				return nodes.Do(req)
			})
		})
		end := time.Now().Add(10 * time.Minute).UTC().Truncate(time.Second)
		g.client(http.MethodPut, "ends", "text/plain", "", "Stream-Expires-At", end.Format(time.RFC3339))
		g.client(http.MethodPut, "idle", "text/plain", "", "Stream-TTL", "600")
		g.client(http.MethodPut, "used", "text/plain", "", "Stream-TTL", "600")
		g.client(http.MethodPut, "over", "text/plain", "", "Stream-TTL", "0")
		if got := g.listed("ends").text("expires_at"); got != end.Format(time.RFC3339) {
			t.Errorf("expires_at %q, want %v", got, end)
		}
		if got := g.listed("idle"); got.at("ttl_seconds") != 600.0 || got.at("expires_at") != nil {
			t.Errorf("%s", got.body)
		}
		for range 4 { // in the 40th minute it was used in the last ten
			time.Sleep(5 * time.Minute)
			g.content("used")
			time.Sleep(4 * time.Minute)
		}
		for name, want := range map[string]store.StreamState{"ends": "", "idle": "", "used": store.Live, "over": ""} {
			g.isState(name, want)
			g.agree(name)
		}
		mu.Lock()
		defer mu.Unlock()
		if heads > 60 { // "used" once in 45 s for 26 minutes, and the others a few times
			t.Errorf("%d looks", heads)
		}
	})
}

// An expired stream is not in the list for longer than a minute.
func TestClientsStreamIsMissedWithinAMinute(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		g := newRig(t, seldom)
		g.client(http.MethodPut, "idle", "text/plain", "", "Stream-TTL", "100")
		time.Sleep(90 * time.Second)
		g.content("idle") // its last use
		time.Sleep(100 * time.Second)
		if g.inUrsula("idle") != "" {
			t.Fatal("Ursula has it still")
		}
		time.Sleep(time.Minute)
		g.isState("idle", "")
		// Its name is free, also before anybody looked.
		for range 3 {
			if got := g.client(http.MethodPut, "idle", "text/plain", "", "Stream-TTL", "5"); got.status != http.StatusCreated {
				t.Errorf("%d %s", got.status, got.body)
			}
			time.Sleep(5100 * time.Millisecond)
		}
	})
}

// Many streams with a TTL are looked at a few at a time.
func TestLooksHaveAPace(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var at []time.Time
		g := newRig(t, func(r *ReconcilerOptions, _ *Options) {
			nodes := r.Nodes
			r.Nodes = nodesFunc(func(req *http.Request) (*http.Response, error) {
				mu.Lock()
				at = append(at, time.Now())
				mu.Unlock()
				return nodes.Do(req)
			})
		})
		const streams = 5 * lookLimit
		for i := range streams {
			g.client(http.MethodPut, fmt.Sprintf("s%d", i), "text/plain", "", "Stream-TTL", "60")
		}
		time.Sleep(5 * time.Minute)
		mu.Lock()
		defer mu.Unlock()
		if len(at) != streams {
			t.Errorf("%d looks at %d streams", len(at), streams)
		}
		for i := range len(at) - lookLimit {
			if took := at[i+lookLimit].Sub(at[i]); took < time.Second {
				t.Fatalf("%d looks within %v", lookLimit+1, took)
			}
		}
	})
}
