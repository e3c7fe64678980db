package manage

import (
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"sluice/internal/tenant"
)

// pages reads a whole list by its cursors; each page but the last is full.
func (g *rig) pages(a *API, target, list, id string, limit int) []string {
	g.tb.Helper()
	var all []string
	cursor := ""
	for range 100 {
		query := url.Values{"limit": {fmt.Sprint(limit)}}
		if cursor != "" {
			query.Set("cursor", cursor)
		}
		path, prefix, _ := strings.Cut(target, "?prefix=")
		if prefix != "" {
			query.Set("prefix", prefix)
		}
		got := g.ask(a, g.key, http.MethodGet, path+"?"+query.Encode(), "")
		entries, _ := got.at(list).([]any)
		for _, e := range entries {
			entry, _ := e.(map[string]any)
			text, _ := entry[id].(string)
			all = append(all, text)
		}
		if cursor = got.text("next_cursor"); cursor == "" {
			return all
		}
		if len(entries) != limit {
			g.tb.Fatalf("%d entries, and more to come", len(entries))
		}
	}
	g.tb.Fatal("the list has no end")
	return nil
}

// Every entry of a list is on one page, whatever the size of a page, also where the last
// page is full to the brim.
func TestLists(t *testing.T) {
	g := newRig(t)
	names := []string{"a", "a.b", "B", "b", "c~", "c", "d-", "x1", "x2"}
	keys, accounts := make([]string, 0, 32), make([]string, 0, 8)
	for _, name := range names {
		if got := g.own(http.MethodPost, "/v1/streams", `{"name":"`+name+`","content_type":"a/b"}`); got.status != http.StatusCreated {
			t.Fatalf("%d %s", got.status, got.body)
		}
		keys = append(keys, g.own(http.MethodPost, "/v1/api-keys", `{"name":"`+name+`"}`).text("id"))
	}
	for i := range 6 {
		accounts = append(accounts, fmt.Sprintf("many-%d", i))
		g.newAccount(tenant.AccountID(accounts[i]))
	}
	accounts = append(accounts, string(testAccount))
	keys = append(keys, g.pages(g.owner, "/v1/api-keys", "api_keys", "id", 200)...) // with the first one
	for _, list := range [][]string{names, keys, accounts} {
		slices.Sort(list)
	}
	keys = slices.Compact(keys)
	for limit := 1; limit <= 10; limit++ {
		for _, tt := range []struct {
			api              *API
			target, list, id string
			want             []string
		}{
			{g.owner, "/v1/streams", "streams", "name", names},
			{g.owner, "/v1/streams?prefix=a", "streams", "name", []string{"a", "a.b"}},
			{g.owner, "/v1/streams?prefix=zz", "streams", "name", nil},
			{g.operator, "/v1/accounts/acme/streams", "streams", "name", names},
			{g.owner, "/v1/api-keys", "api_keys", "id", keys},
			{g.operator, "/v1/accounts", "accounts", "id", accounts},
			{g.operator, "/v1/accounts?prefix=many-", "accounts", "id", accounts[1:]},
		} {
			if diff := cmp.Diff(tt.want, g.pages(tt.api, tt.target, tt.list, tt.id, limit)); diff != "" {
				t.Errorf("%s by %d (-want +got):\n%s", tt.target, limit, diff)
			}
		}
	}
}

// A cursor is for the list that it came from.
func TestCursorOfAnotherList(t *testing.T) {
	g := newRig(t)
	for _, name := range []string{"a", "b"} {
		g.own(http.MethodPost, "/v1/api-keys", `{"name":"`+name+`"}`)
	}
	cursor := g.own(http.MethodGet, "/v1/api-keys?limit=1", "").text("next_cursor")
	if got := g.own(http.MethodGet, "/v1/api-keys?cursor="+cursor, ""); got.status != http.StatusOK {
		t.Errorf("its own: %d %s", got.status, got.body)
	}
	for _, bad := range []string{cursor + "A", cursor[:len(cursor)-2], "", strings.Repeat("A", 600)} {
		if got := g.own(http.MethodGet, "/v1/streams?cursor="+bad, ""); got.refused() != "INVALID_QUERY cursor" {
			t.Errorf("%q: %d %s", bad, got.status, got.body)
		}
	}
	if got := g.own(http.MethodGet, "/v1/streams?cursor="+cursor, ""); got.refused() != "INVALID_QUERY cursor" {
		t.Errorf("another list's: %d %s", got.status, got.body)
	}
}
