package manage

import (
	"fmt"
	"net/http"
	"strings"
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

// What a node says of a TTL is what lists and records say. A TTL of more than a hundred
// years was told as none, and one of 0 as 1.
func TestTTLIsToldAsItIs(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		g := newRig(t)
		for text, want := range map[string]int64{
			"0": 0, "1": 1, "4294967295": 4294967295, "9223372037": 9223372037, "31536000000": 31536000000,
			"18446744073709551615": 1<<53 - 1, // what JSON can say
		} {
			before := g.newest()
			if got := g.client(http.MethodPut, "a", "text/plain", "", "Stream-TTL", text); got.status != http.StatusCreated || got.header.Get("Stream-TTL") != text {
				t.Fatalf("%s: %d %v", text, got.status, got.header)
			}
			if got := g.listed("a").at("ttl_seconds"); got != float64(want) {
				t.Errorf("%s is listed as %v", text, got)
			}
			records, _, err := g.store.Audit(t.Context(), store.AuditQuery{Limit: 1})
			if err != nil || len(records) != 1 || records[0].ID <= before {
				t.Fatalf("%s: records %v, %v", text, records, err)
			}
			if details := string(records[0].Details); !strings.Contains(details, fmt.Sprintf(`"ttl_seconds":{"to":%d}`, want)) {
				t.Errorf("%s is recorded as %s", text, details)
			}
			time.Sleep(time.Minute)
			if text == "0" {
				g.isState("a", "")
				continue
			}
			g.client(http.MethodDelete, "a", "", "")
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
