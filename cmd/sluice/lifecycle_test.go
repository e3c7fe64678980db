package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"sluice/config"
	"sluice/internal/postgrestest"
	"sluice/internal/ursulatest"
)

// protocolSections are those of a file in which clients make and delete streams.
func protocolSections(storeURL string) string {
	return fmt.Sprintf("store: {url: %q}\nstreams: {lifecycle: protocol}\n", storeURL)
}

// A client with nothing but a base URL and a key makes a stream at its own URL, with its first
// body, its end and its closure, and deletes it; the Management API knows of all of it.
//
// Facts W1: these are the kinds of writes that pass in this mode only.
func TestClientsMakeStreams(t *testing.T) {
	forEachUpstream(t, func(t *testing.T, node string) {
		e := &edge{Account: testAccount(t), Key: newTestKey(t), Reads: newTestKey(t)}
		e.start(t, edgeFile(e, []string{node}, protocolSections("sqlite:"+filepath.Join(t.TempDir(), "sluice.db"))), nil)
		const text = "text/plain"
		url := "https://streams.example.com" + e.path("mine")
		made := e.do(t, http.MethodPut, e.path("mine"), []byte("one"), "Content-Type", text)
		want(t, made, http.StatusCreated, "Location", url, "Stream-Incarnation", "*", "Stream-Next-Offset", "*", "Cache-Control", "no-store")
		want(t, e.do(t, http.MethodPut, e.path("mine"), []byte("one"), "Content-Type", text), http.StatusOK, "Location", url)
		want(t, e.do(t, http.MethodPut, e.path("mine"), nil, "Content-Type", "application/json"), http.StatusConflict)
		if got := e.do(t, http.MethodGet, e.path("mine")+"?offset=-1", nil); got.Text != "one" {
			t.Errorf("it holds %q", got.Text)
		}
		shown := e.do(t, http.MethodGet, "/v1/streams/mine", nil)
		want(t, shown, http.StatusOK)
		for name, value := range map[string]string{"url": url, "content_type": text, "state": "active", "incarnation": made.Header.Get("Stream-Incarnation")} {
			if got := shown.member(t, name); got != value {
				t.Errorf("%s: %q, want %q", name, got, value)
			}
		}

		end := time.Now().Add(time.Hour).UTC().Truncate(time.Second).Format(time.RFC3339)
		want(t, e.do(t, http.MethodPut, e.path("ends"), nil, "Content-Type", text, "Stream-Expires-At", end), http.StatusCreated)
		want(t, e.do(t, http.MethodHead, e.path("ends"), nil), http.StatusOK, "Stream-Expires-At", "*")
		if got := e.do(t, http.MethodGet, "/v1/streams/ends", nil).member(t, "expires_at"); got != end {
			t.Errorf("expires_at %q, want %q", got, end)
		}
		want(t, e.do(t, http.MethodPut, e.path("brief"), nil, "Content-Type", text, "Stream-TTL", "1"), http.StatusCreated)
		if got := e.do(t, http.MethodGet, "/v1/streams/brief", nil); !strings.Contains(got.Text, `"ttl_seconds":1`) {
			t.Errorf("%s", got.Text)
		}
		want(t, e.do(t, http.MethodPut, e.path("closed"), []byte("[1]"), "Content-Type", "application/json", "Stream-Closed", "true"), http.StatusCreated)
		want(t, e.do(t, http.MethodHead, e.path("closed"), nil), http.StatusOK, "Stream-Closed", "true")
		want(t, e.do(t, http.MethodPut, e.path("bad"), nil, "Content-Type", text, "Stream-TTL", "+1"), http.StatusBadRequest)

		for _, method := range []string{http.MethodPut, http.MethodDelete} {
			want(t, e.doAs(t, http1(), e.Reads, method, e.path("mine"), nil), http.StatusForbidden)
			want(t, e.doAs(t, http1(), "", method, e.path("mine"), nil), http.StatusUnauthorized)
		}
		want(t, e.do(t, http.MethodPut, e.path("json"), nil, "Content-Type", "application/json"), http.StatusOK)
		if got := e.do(t, http.MethodDelete, e.path("json"), nil); got.StatusCode != http.StatusConflict || got.code() != "DECLARED_CONFLICT" {
			t.Errorf("delete of what the file states: %d %s", got.StatusCode, got.Text)
		}

		for range 2 {
			want(t, e.do(t, http.MethodDelete, e.path("mine"), nil), http.StatusNoContent)
			want(t, e.do(t, http.MethodDelete, e.path("mine"), nil), http.StatusNotFound)
			want(t, e.do(t, http.MethodGet, "/v1/streams/mine", nil), http.StatusNotFound)
			want(t, e.do(t, http.MethodPut, e.path("mine"), []byte("two"), "Content-Type", "text/csv"), http.StatusCreated)
		}
		want(t, e.do(t, http.MethodDelete, "/v1/streams/mine", nil), http.StatusAccepted)
		eventually(t, "it is deleted", func() bool {
			return e.do(t, http.MethodGet, "/v1/streams/mine", nil).StatusCode == http.StatusNotFound
		})
		want(t, e.do(t, http.MethodHead, e.path("mine"), nil), http.StatusNotFound)
		// What Ursula let go has left the list.
		eventually(t, "the brief one is gone", func() bool {
			return e.do(t, http.MethodGet, "/v1/streams/brief", nil).StatusCode == http.StatusNotFound
		})
		var left struct {
			Streams []struct{ Name, State string }
		}
		if err := json.Unmarshal([]byte(e.do(t, http.MethodGet, "/v1/streams?limit=100", nil).Text), &left); err != nil {
			t.Fatal(err)
		}
		for _, s := range left.Streams {
			if _, stated := edgeStreams[s.Name]; !stated && s.Name != "ends" && s.Name != "closed" || s.State != "active" {
				t.Errorf("left: %+v", s)
			}
		}
	})
}

// Who may make streams is for a reload to change.
func TestLifecycleIsReloaded(t *testing.T) {
	cluster := ursulatest.New(ursulatest.Options{})
	if err := cluster.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cluster.Close() })
	e := &edge{Account: testAccount(t), Key: newTestKey(t), Reads: newTestKey(t)}
	file := edgeFile(e, cluster.URLs(), protocolSections("sqlite:"+filepath.Join(t.TempDir(), "sluice.db")))
	managed := strings.Replace(file, "lifecycle: protocol", "lifecycle: managed", 1)
	next := file
	e.start(t, managed, func() (*config.Config, error) {
		return config.Parse("test.yaml", []byte(next), config.Options{Grammar: grammar()})
	})
	refused := func() {
		t.Helper()
		if got := e.do(t, http.MethodPut, e.path("mine"), nil); got.StatusCode != http.StatusForbidden || got.code() != "STREAM_LIFECYCLE" {
			t.Errorf("managed: %d %s", got.StatusCode, got.Text)
		}
	}
	refused()
	if restart, err := e.app.Reload(t.Context()); err != nil || len(restart) > 0 {
		t.Fatalf("%v, needs a restart for %v", err, restart)
	}
	want(t, e.do(t, http.MethodPut, e.path("mine"), nil), http.StatusCreated)
	next = managed
	if _, err := e.app.Reload(t.Context()); err != nil {
		t.Fatal(err)
	}
	refused()
}

// What a client does through one replica is known to the others: a stream that was public is
// nobody's any more once it is deleted, and private when it is made again.
func TestReplicasHearOfClientsDeletes(t *testing.T) {
	f := &fleet{cluster: ursulatest.New(ursulatest.Options{}), postgres: postgrestest.Start(t)}
	if err := f.cluster.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.cluster.Close() })
	file := managedFile(f.cluster.URLs(), f.postgres.Database(t, ""), "1m", sealedAuth+"streams: {lifecycle: protocol}\n")
	for range 2 {
		f.replicas = append(f.replicas, startReplica(t, file))
	}
	for _, r := range f.replicas {
		r.awaitReady(t)
	}
	a := f.owner(t)
	path := "/" + a.id + "/s.open-json"
	read := func(r *replica) int { return ask(t, http.MethodGet, r.URL+path, nil).StatusCode }
	for _, r := range f.replicas {
		eventually(t, "anybody reads it", func() bool { return read(r) == http.StatusOK })
	}
	credential := []string{"Authorization", "Bearer " + a.key, "Content-Type", "application/json"}
	eventually(t, "it is deleted", func() bool {
		return ask(t, http.MethodDelete, f.replicas[0].URL+path, nil, credential...).StatusCode == http.StatusNoContent
	})
	for _, r := range f.replicas { // the one that did it hears of it as the other does, a moment later
		eventually(t, "strangers are refused", func() bool { return read(r) == http.StatusUnauthorized })
	}
	eventually(t, "it is made again", func() bool {
		return ask(t, http.MethodPut, f.replicas[1].URL+path, nil, credential...).StatusCode == http.StatusCreated
	})
	for i, r := range f.replicas {
		if got := read(r); got != http.StatusUnauthorized {
			t.Errorf("a stranger gets %d of what is made anew, at replica %d", got, i)
		}
	}
}
