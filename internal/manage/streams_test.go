package manage

import (
	"net/http"
	"testing"
	"time"

	"sluice/internal/bubble"
	"sluice/internal/store"
)

const events = `{"name":"events","content_type":"application/json"}`

// A stream from its create to its name being free again.
func TestStreamLife(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		g := newRig(t)
		got := g.own(http.MethodPost, "/v1/streams", events)
		if got.status != http.StatusCreated || got.text("state") != "active" || got.text("url") != testOrigin+"/acme/s.events" {
			t.Fatalf("create: %d %s", got.status, got.body)
		}
		if in := g.inUrsula("events"); in == "" || in != got.text("incarnation") {
			t.Errorf("Ursula has incarnation %q, the answer says %q", in, got.text("incarnation"))
		}
		got = g.own(http.MethodPatch, "/v1/streams/events", `{"public":true}`)
		if got.status != http.StatusOK || got.at("public") != true {
			t.Errorf("publish: %d %s", got.status, got.body)
		}
		got = g.own(http.MethodDelete, "/v1/streams/events", "")
		if got.status != http.StatusAccepted || got.text("state") != "deleting" {
			t.Errorf("delete: %d %s", got.status, got.body)
		}
		if in := g.inUrsula("events"); in != "" {
			t.Errorf("Ursula still has incarnation %s", in)
		}
		if got = g.own(http.MethodDelete, "/v1/streams/events", ""); got.refused() != "STREAM_NOT_FOUND" {
			t.Errorf("delete again: %d %s", got.status, got.body)
		}
		if got = g.own(http.MethodGet, "/v1/streams/events", ""); got.refused() != "STREAM_NOT_FOUND" {
			t.Errorf("show: %d %s", got.status, got.body)
		}
		if got = g.own(http.MethodPost, "/v1/streams", events); got.text("state") != "active" {
			t.Errorf("create anew: %d %s", got.status, got.body)
		}
	})
}

// A stream expires within a minute of its time, and its name is free then.
func TestExpiry(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		g := newRig(t)
		ends := time.Now().Add(3 * time.Minute)
		got := g.own(http.MethodPost, "/v1/streams", `{"name":"events","content_type":"text/plain","expires_at":"`+ends.UTC().Format(time.RFC3339)+`"}`)
		if got.text("state") != "active" {
			t.Fatalf("create: %d %s", got.status, got.body)
		}
		time.Sleep(3*time.Minute - time.Second)
		bubble.Wait()
		if s := g.row("events"); s == nil || s.State != store.Live {
			t.Fatalf("a second before its time it is %v", s)
		}
		time.Sleep(time.Minute)
		bubble.Wait()
		if s := g.row("events"); s != nil || g.inUrsula("events") != "" {
			t.Errorf("a minute after its time it is %v", s)
		}
	})
}
