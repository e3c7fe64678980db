package manage

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"sluice/internal/usage"
)

// usedBy is a batch of one account's, of all classes, each hour of so many, the first
// that of a time.
func usedBy(account string, sequence int64, first time.Time, hours int) *usage.Batch {
	b := &usage.Batch{Replica: "r", Sequence: sequence, WindowEnd: 1, ChunkBytes: 100}
	for h := range hours {
		for i, name := range usage.Classes() {
			class, _ := usage.ParseClass(name)
			b.Records = append(b.Records, usage.Record{
				Account: account, Class: class, Hour: usage.HourOf(first.Add(time.Duration(h) * time.Hour)), Principal: &usage.Principal{KeyID: "k"},
				Counts: usage.Counts{Requests: int64(1 + h), ResponseBytes: int64(10 * i), HeartbeatBytes: 3, Tail: 59_250, Refused: 2, Chunks: 5, RequestBytes: 7},
			})
		}
	}
	return b
}

// Each hour of an account's use is on one page, whatever the size of a page; nobody sees
// another's.
func TestUsageIsListed(t *testing.T) {
	g := newRig(t)
	first := time.Now().UTC().Truncate(time.Hour).Add(-4 * time.Hour)
	for i, account := range []string{"acme", "other"} {
		if err := g.store.WriteUsage(t.Context(), usedBy(account, int64(1+i), first, 5)); err != nil {
			t.Fatal(err)
		}
	}
	whole := g.own(http.MethodGet, "/v1/usage?limit=200", "")
	list, _ := whole.at("usage").([]any)
	if len(list) != 20 {
		t.Fatalf("%d entries of five hours and four classes: %s", len(list), whole.body)
	}
	entry, _ := json.Marshal(list[3]) // of the first hour
	want := fmt.Sprintf(`{"chunks":5,"class":"management","heartbeat_bytes":3,"hour":%q,"refused":2,"request_bytes":7,"requests":1,"response_bytes":30,"tail_seconds":59.25}`, first.Format(time.RFC3339))
	if string(entry) != want {
		t.Errorf("an entry: %s, want %s", entry, want)
	}
	if got := g.ask(g.operator, "", http.MethodGet, "/v1/accounts/acme/usage?limit=200", ""); got.body != whole.body {
		t.Errorf("to the operator: %s", got.body)
	}
	for limit := 1; limit < 22; limit += 3 {
		var paged []any
		for cursor := ""; ; {
			query := url.Values{"limit": {fmt.Sprint(limit)}}
			if cursor != "" {
				query.Set("cursor", cursor)
			}
			page := g.own(http.MethodGet, "/v1/usage?"+query.Encode(), "")
			entries, _ := page.at("usage").([]any)
			paged = append(paged, entries...)
			if cursor = page.text("next_cursor"); cursor == "" {
				break
			}
		}
		if diff := cmp.Diff(list, paged); diff != "" {
			t.Errorf("by %d (-want +got):\n%s", limit, diff)
		}
	}
	some := g.own(http.MethodGet, "/v1/usage?class=live_read&from="+first.Add(time.Hour).Format(time.RFC3339)+"&to="+first.Add(3*time.Hour).Format(time.RFC3339), "")
	if entries, _ := some.at("usage").([]any); len(entries) != 2 {
		t.Errorf("live reads of two hours: %s", some.body)
	}
}

// Whoever goes on behind the last batch that was read has each of them once, in the order
// in which they were written.
func TestBatchesAreListed(t *testing.T) {
	g := newRig(t)
	ask := func(after, limit int64) (names []string, next int64) {
		got := g.ask(g.operator, "", http.MethodGet, fmt.Sprintf("/v1/usage/batches?after=%d&limit=%d", after, limit), "")
		var page struct {
			Batches []struct {
				Position int64
				usage.Batch
			}
			Next int64 `json:"next_after"`
		}
		if err := json.Unmarshal([]byte(got.body), &page); err != nil {
			t.Fatalf("%v: %s", err, got.body)
		}
		for _, b := range page.Batches {
			names = append(names, fmt.Sprint(b.Position, b.Replica, b.Sequence, len(b.Records)))
		}
		return names, page.Next
	}
	var all, want []string
	after := int64(0)
	for i := range int64(7) {
		if err := g.store.WriteUsage(t.Context(), usedBy("acme", i+1, time.Now(), 1)); err != nil {
			t.Fatal(err)
		}
		want = append(want, fmt.Sprint(i+1, "r", i+1, 4))
		if i%3 == 0 {
			continue
		}
		for {
			names, next := ask(after, 2)
			all, after = append(all, names...), next
			if len(names) == 0 {
				break
			}
		}
	}
	names, next := ask(after, 200)
	if diff := cmp.Diff(want, append(all, names...)); diff != "" || next != 7 {
		t.Errorf("to %d (-want +got):\n%s", next, diff)
	}
}
