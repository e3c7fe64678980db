package manage

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"
	"time"

	"sluice/internal/bubble"
	"sluice/internal/store"
	"sluice/internal/tenant"
)

// recorded are the records since one, oldest first: what was done to which stream, and who
// did it from where.
func (g *rig) recorded(since int64) []string {
	g.tb.Helper()
	records := g.since(since)
	all := make([]string, 0, len(records))
	for _, r := range records {
		all = append(all, fmt.Sprintf("%s %s by %s %s %s %s", r.Action, r.Target, r.Actor.Kind, r.Actor.KeyID, r.Client, r.RequestID))
	}
	slices.Reverse(all)
	return all
}

// makeInUrsula makes a stream past the gateway.
func (g *rig) makeInUrsula(name, contentType string) {
	g.tb.Helper()
	r := httptest.NewRequestWithContext(context.WithoutCancel(g.tb.Context()), http.MethodPut, tenant.StreamPath(testAccount, tenant.StreamName(name)), nil)
	r.Header.Set("Content-Type", contentType)
	res, err := g.nodes.Do(r)
	if err != nil {
		g.tb.Fatal(err)
	}
	_ = res.Body.Close()
}

// What a client makes and deletes at the stream's own URL is in the audit log as what the
// Management API does is: with the key, the address and the request; what changes nothing
// is not, and what ends by itself is the program's.
func TestClientsChangesAreRecorded(t *testing.T) {
	const client = " by key key_1 192.0.2.1 r1"
	bubble.Test(t, func(t *testing.T) {
		g := newRig(t)
		steps := []struct {
			what string
			do   func()
			want []string
		}{
			{"made", func() { g.client(http.MethodPut, "a", "text/plain", "x") }, []string{"stream.create a" + client}},
			{"there already", func() { g.client(http.MethodPut, "a", "text/plain", "x") }, nil},
			{"there, with another type", func() { g.client(http.MethodPut, "a", "text/csv", "x") }, nil},
			{"for another incarnation", func() { g.client(http.MethodDelete, "a", "", "", incarnationHeader, "1") }, nil},
			{"deleted", func() { g.client(http.MethodDelete, "a", "", "") }, []string{"stream.delete a" + client}},
			{"not there", func() { g.client(http.MethodDelete, "a", "", "") }, nil},
			{"refused", func() { g.client(http.MethodPut, "a", "text/plain", "x", "Stream-TTL", "soon") }, nil},
			{"in Ursula alone", func() {
				g.makeInUrsula("a", "text/plain")
				g.client(http.MethodDelete, "a", "", "")
			}, []string{"stream.delete a" + client}},
			{"found in Ursula", func() {
				g.makeInUrsula("a", "text/plain")
				g.client(http.MethodPut, "a", "text/plain", "")
			}, []string{"stream.create a" + client}},
			{"deleted by the API", func() { g.own(http.MethodDelete, "/v1/streams/a", ""); time.Sleep(settled) }, []string{"stream.delete a by key "}},
			{"let go by Ursula", func() {
				g.client(http.MethodPut, "a", "text/plain", "", "Stream-TTL", "60")
				time.Sleep(settled)
			}, []string{"stream.create a" + client, "stream.expire a by system  invalid IP "}},
		}
		for _, s := range steps {
			before := g.newest()
			s.do()
			got := g.recorded(before)
			same := slices.EqualFunc(got, s.want, func(got, want string) bool {
				return got == want || want[len(want)-1] == ' ' && len(got) > len(want) && got[:len(want)] == want
			})
			if !same {
				t.Errorf("%s: %q, want %q", s.what, got, s.want)
			}
		}
	})
}

// Who asked for what has no answer is recorded with it, when it turns out what became of it.
func TestUnansweredChangesAreRecorded(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		lose := ""
		g := newRig(t)
		nodes := g.clientNodes
		g.clientNodes = nodesFunc(func(r *http.Request) (*http.Response, error) {
			res, err := nodes.Do(r)
			if err == nil && r.Method == lose && res.StatusCode < 300 {
				_ = res.Body.Close()
				return nil, errFault
			}
			return res, err
		})
		for _, step := range []struct {
			method string
			action store.Action
		}{{http.MethodPut, store.StreamCreate}, {http.MethodDelete, store.StreamDelete}} {
			before := g.newest()
			lose = step.method
			if got := g.client(step.method, "a", "text/plain", ""); got.status != 0 {
				t.Fatalf("%s is answered: %d", step.method, got.status)
			}
			if got := g.recorded(before); len(got) > 0 {
				t.Errorf("%s is recorded before anybody knows: %q", step.method, got)
			}
			lose = ""
			time.Sleep(settled)
			want := []string{fmt.Sprintf("%s a by key key_1 192.0.2.1 r1", step.action)}
			if got := g.recorded(before); !slices.Equal(got, want) {
				t.Errorf("%s: %q, want %q", step.method, got, want)
			}
		}
		// A PUT that makes the name again shows that the DELETE before it has done its work.
		g.client(http.MethodPut, "b", "text/plain", "")
		lose = http.MethodDelete
		g.client(http.MethodDelete, "b", "", "")
		lose = ""
		before := g.newest()
		g.client(http.MethodPut, "b", "text/plain", "")
		want := []string{"stream.delete b by key key_1 192.0.2.1 r1", "stream.create b by key key_1 192.0.2.1 r1"}
		if got := g.recorded(before); !slices.Equal(got, want) {
			t.Errorf("made again: %q, want %q", got, want)
		}
	})
}
