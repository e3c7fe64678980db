package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"sluice/internal/postgrestest"
	"sluice/internal/ursulatest"
)

// Replicas that share a store, each a process of the program with a line of its own to
// Postgres. Changes are made at the first; what matters is the others.

// managedFile is the operator's file of a replica; sections are further ones.
func managedFile(nodes []string, storeURL, staleFor, sections string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "listen: 127.0.0.1:0\norigin: https://streams.example.com\nadmin: {listen: \"127.0.0.1:0\"}\n")
	fmt.Fprintf(&b, "ursula: {nodes: [%q]}\ndrain_delay: 0s\ndrain_timeout: 500ms\n", strings.Join(nodes, `", "`))
	fmt.Fprintf(&b, "store: {url: %q, stale_for: %s}\n", storeURL, staleFor)
	// The tests' clients are one address, and have many keys that are bad on purpose.
	fmt.Fprintf(&b, "server: {failed_credentials_per_minute: 0, connections_per_address: 10000}\n")
	fmt.Fprintf(&b, "limits: {default: {requests_per_second: 100000, burst: 100000, open_tails: 1000}, floor: {requests_per_second: 50, open_tails: 16}}\n")
	b.WriteString(sections)
	return b.String()
}

// sealedAuth is the section with the key that Postgres' signing keys are sealed with.
const sealedAuth = "auth: {sealing_key: \"c2x1aWNlIHNsdWljZSBzbHVpY2Ugc2x1aWNlIGtleS4=\", exchange_per_second: 1000}\n"

// fleet is a store and the replicas on it.
type fleet struct {
	cluster  *ursulatest.Cluster
	postgres *postgrestest.Server
	database string // its URL, past the lines
	replicas []*replica
	lines    []*storeLine // of each replica
}

// newFleet starts replicas of one store, and waits for them. level is that of their log.
func newFleet(t *testing.T, replicas int, staleFor, level string) *fleet {
	t.Helper()
	f := &fleet{cluster: ursulatest.New(ursulatest.Options{}), postgres: postgrestest.Start(t)}
	if err := f.cluster.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.cluster.Close() })
	f.database = f.postgres.Database(t, "")
	for range replicas {
		line, url := newStoreLine(t, f.database)
		f.lines = append(f.lines, line)
		f.replicas = append(f.replicas, startReplica(t, managedFile(f.cluster.URLs(), url, staleFor, sealedAuth+"log: {level: "+level+"}\n")))
	}
	for _, r := range f.replicas {
		r.awaitReady(t)
	}
	return f
}

// manage makes a call of the Management API: of the admin listener where there is no key.
func (r *replica) manage(t *testing.T, key, method, path string, body any) reply {
	t.Helper()
	url, headers := r.Admin+path, []string(nil)
	if key != "" {
		url, headers = r.URL+path, []string{"Authorization", "Bearer " + key}
	}
	var in io.Reader = http.NoBody
	if body != nil {
		text, err := json.Marshal(body)
		if err != nil {
			t.Fatal(err)
		}
		in, headers = bytes.NewReader(text), append(headers, "Content-Type", "application/json")
	}
	return ask(t, method, url, in, headers...)
}

// managed is manage, again for as long as the key could not be looked up in time, as on a
// machine with much else to do.
func (r *replica) managed(t *testing.T, key, method, path string, body any) (got reply) {
	t.Helper()
	eventually(t, "the store answers in time", func() bool {
		got = r.manage(t, key, method, path, body)
		return got.code() != "AUTHENTICATION_UNAVAILABLE"
	})
	return got
}

// ask makes one request and reads the answer whole.
func ask(t *testing.T, method, url string, in io.Reader, headers ...string) reply {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, in)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i+1 < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	c := http1()
	c.Timeout = 20 * time.Second
	defer c.CloseIdleConnections()
	res, err := c.Do(req)
	if err != nil {
		t.Fatalf("%s %s: %v", method, url, err)
	}
	defer func() { _ = res.Body.Close() }()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatalf("%s %s: %v", method, url, err)
	}
	return reply{res, string(text)}
}

// member is a member of an answer's JSON, or of an object in it.
func (r reply) member(t *testing.T, names ...string) string {
	t.Helper()
	var at any
	if err := json.Unmarshal([]byte(r.Text), &at); err != nil {
		t.Fatalf("%v: %s", err, r.Text)
	}
	for _, name := range names {
		object, ok := at.(map[string]any)
		if !ok {
			t.Fatalf("no %v in %s", names, r.Text)
		}
		at = object[name]
	}
	text, ok := at.(string)
	if !ok {
		t.Fatalf("no %v in %s", names, r.Text)
	}
	return text
}

type fields map[string]any

// owner makes an account with its first key and two streams, of which one is public.
func (f *fleet) owner(t *testing.T) payer {
	t.Helper()
	a := payer{id: testAccount(t)}
	made := f.replicas[0].manage(t, "", http.MethodPost, "/v1/accounts", fields{"id": a.id, "api_key": fields{"name": "first"}})
	want(t, made, http.StatusCreated)
	a.key = made.member(t, "api_key", "key")
	for _, name := range []string{"json", "open-json"} {
		f.stream(t, a, name)
	}
	return a
}

// stream makes one of the streams of every edge, and waits until it is there.
func (f *fleet) stream(t *testing.T, a payer, name string) {
	t.Helper()
	r := f.replicas[0]
	want(t, r.managed(t, a.key, http.MethodPost, "/v1/streams", fields{
		"name": name, "content_type": edgeStreams[name], "public": strings.HasPrefix(name, "open-"),
	}), http.StatusCreated)
	eventually(t, "the stream is active", func() bool {
		return r.managed(t, a.key, http.MethodGet, "/v1/streams/"+name, nil).member(t, "state") == "active"
	})
}

// apiKey makes a key of the account.
func (f *fleet) apiKey(t *testing.T, a payer, name string) (id string, k payer) {
	t.Helper()
	made := f.replicas[0].managed(t, a.key, http.MethodPost, "/v1/api-keys", fields{"name": name})
	want(t, made, http.StatusCreated)
	return made.member(t, "id"), payer{id: a.id, key: made.member(t, "key")}
}

// settled is read, again for as long as a store that is there did not answer in time, as
// on a machine with much else to do.
func (r *replica) settled(t *testing.T, credential, path string) (got reply) {
	t.Helper()
	eventually(t, "the store answers in time", func() bool {
		got = r.read(t, credential, path)
		return got.StatusCode != http.StatusServiceUnavailable
	})
	return got
}

// accessToken exchanges a key at a replica, and is settled in the same way.
func (r *replica) accessToken(t *testing.T, key string) string {
	t.Helper()
	var made reply
	eventually(t, "the store answers in time", func() bool {
		made = r.token(t, key)
		return made.StatusCode != http.StatusServiceUnavailable
	})
	want(t, made, http.StatusOK)
	return made.member(t, "access_token")
}

// token exchanges a key at a replica.
func (r *replica) token(t *testing.T, key string) reply {
	t.Helper()
	form := "grant_type=urn:ietf:params:oauth:grant-type:token-exchange&subject_token_type=urn:ietf:params:oauth:token-type:access_token&subject_token=" + key
	return ask(t, http.MethodPost, r.URL+"/v1/token", strings.NewReader(form), "Content-Type", "application/x-www-form-urlencoded")
}

// read reads a stream; nobody's where there is no credential.
func (r *replica) read(t *testing.T, credential, path string) reply {
	t.Helper()
	var headers []string
	if credential != "" {
		headers = []string{"Authorization", "Bearer " + credential}
	}
	return ask(t, http.MethodGet, r.URL+path+"?offset=-1", http.NoBody, headers...)
}
