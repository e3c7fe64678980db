package main

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
)

// A20: whoever got hold of the store, a copy of it, or a list of keys could use what was in
// it. Keys are made, rotated, used and exchanged; then every byte of the store, the log, the
// metrics and what the Management API lists is looked through for a secret, and what is
// there in its place opens nothing.
func TestA20StoreHoldsNoSecret(t *testing.T) {
	t.Run("SQLite", func(t *testing.T) {
		dir := t.TempDir()
		r := startReplica(t, managedFile([]string{standIn(t)}, "sqlite:"+filepath.Join(dir, "sluice.db"), "15m", ""))
		r.awaitReady(t)
		holdsNoSecret(t, &fleet{replicas: []*replica{r}}, func(t *testing.T) string { return everyFile(t, dir) })
	})
	t.Run("Postgres", func(t *testing.T) {
		f := newFleet(t, 1, "15m", "info")
		holdsNoSecret(t, f, f.everyRow)
	})
}

func holdsNoSecret(t *testing.T, f *fleet, stored func(*testing.T) string) {
	t.Helper()
	r, a := f.replicas[0], f.owner(t)
	id, k := f.apiKey(t, a, "second")
	rotated := r.managed(t, a.key, http.MethodPost, "/v1/api-keys/"+id+"/rotate", nil)
	want(t, rotated, http.StatusOK)
	keys := map[string]string{"the first key": a.key, "a key": k.key, "its second secret": rotated.member(t, "key")}
	secrets := maps.Clone(keys)
	for name, key := range keys {
		want(t, r.settled(t, key, a.path("json")), http.StatusOK)
		token := r.accessToken(t, key)
		want(t, r.settled(t, token, a.path("json")), http.StatusOK)
		secrets["a token of "+name] = token
	}
	var api strings.Builder
	// A client may call its request by its own key, which the records of changes have.
	renamed := ask(t, http.MethodPatch, r.URL+"/v1/api-keys/"+id, strings.NewReader(`{"name":"renamed"}`),
		"Authorization", "Bearer "+a.key, "Content-Type", "application/json", "X-Request-Id", a.key)
	want(t, renamed, http.StatusOK)
	for _, path := range []string{"/v1/api-keys", "/v1/api-keys/" + id, "/v1/account", "/v1/streams", "/v1/audit"} {
		api.WriteString(r.managed(t, a.key, http.MethodGet, path, nil).Text)
	}
	for _, path := range []string{"/v1/accounts", "/v1/accounts/" + a.id, "/v1/accounts/" + a.id + "/api-keys", "/v1/audit"} {
		api.WriteString(r.manage(t, "", http.MethodGet, path, nil).Text)
	}
	places := map[string]string{"store": stored(t), "log": r.logged(t), "metrics": r.admin(t, http.MethodGet, "/metrics").Text, "Management API": api.String()}
	for where, text := range places {
		for name, secret := range secrets {
			// A part of it is one, but for the four that are its hint.
			if strings.Contains(text, secret) || strings.Contains(text, secret[4:24]) && strings.HasPrefix(secret, "tbo_") {
				t.Errorf("the %s: holds %s", where, name)
			}
		}
	}
	if !strings.Contains(places["store"], a.id) || !strings.Contains(places["store"], id) {
		t.Error("the store was not looked through: it names neither the account nor the key")
	}
	digest := sha256.Sum256([]byte(a.key))
	for _, instead := range []string{hex.EncodeToString(digest[:]), "sha256:" + hex.EncodeToString(digest[:]), "tbo_" + hex.EncodeToString(digest[:])[:40], id} {
		want(t, r.settled(t, instead, a.path("json")), http.StatusUnauthorized)
	}
}

// everyFile is what the files of a directory hold.
func everyFile(t *testing.T, dir string) string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var all strings.Builder
	for _, e := range entries {
		all.WriteString(readFile(t, filepath.Join(dir, e.Name())))
	}
	return all.String()
}

// everyRow is what the tables of the store hold, bytes in hex and as they are.
func (f *fleet) everyRow(t *testing.T) string {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), f.database)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(t.Context()) }()
	column := func(query string) []string {
		t.Helper()
		rows, err := conn.Query(t.Context(), query)
		if err != nil {
			t.Fatal(err)
		}
		list, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			t.Fatal(err)
		}
		return list
	}
	var all strings.Builder
	for _, table := range column(`SELECT table_name::text FROM information_schema.tables WHERE table_schema = 'public'`) {
		name := pgx.Identifier{table}.Sanitize()
		for _, row := range column(fmt.Sprintf(`SELECT t::text FROM %s t`, name)) {
			all.WriteString(row)
			for _, part := range strings.Split(row, `\x`)[1:] { // bytes are written in hex
				end := strings.IndexAny(part+`"`, `",)`)
				raw, _ := hex.DecodeString(part[:end])
				all.Write(raw)
			}
		}
	}
	return all.String()
}
