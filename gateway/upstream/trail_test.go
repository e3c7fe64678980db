package upstream

import (
	"fmt"
	"net/http"
	"slices"
	"testing"
	"time"

	"sluice/internal/bubble"
)

// What the log tells of a request's way: the node that it came to, how often one was
// asked, why it went on, and how long the heads took in all.
func TestTrail(t *testing.T) {
	const h = HeaderTimeout
	b := saying("b")
	for _, tt := range []struct {
		name               string
		kind               kind
		nodes              []http.HandlerFunc
		node               int // that was asked last
		redirects, retries int
		took               time.Duration
		told               []string
	}{
		{"answered", readKind(), []http.HandlerFunc{b, b}, 0, 0, 0, 0, []string{"1: 200 2xx"}},
		{"redirected", keylessKind(), []http.HandlerFunc{to("b"), b}, 1, 1, 0, 0, []string{"1: 307 3xx", "2, redirected: 200 2xx"}},
		{"silent, then answered", readKind(), []http.HandlerFunc{silent, b}, 1, 0, 1, h, []string{"1: 0 timed_out", "2: 200 2xx"}},
		{"redirected, silent, then answered", readKind(), []http.HandlerFunc{to("b"), silent, b}, 2, 1, 1, h, []string{"1: 307 3xx", "2, redirected: 0 timed_out", "3: 200 2xx"}},
		{"broke", keylessKind(), []http.HandlerFunc{cut, b}, 0, 0, 0, 0, []string{"1: 0 failed"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				p, nodes, _ := newWatchedPipes(t, tt.nodes...)
				bubble.Wait()
				var trail Trail
				var told []string
				trail.Attempt = func(a Attempt, header http.Header) func(int, string) {
					header["Traceparent"] = []string{fmt.Sprint(a.Number)}
					what := fmt.Sprint(a.Number)
					if a.Redirected {
						what += ", redirected"
					}
					return func(status int, outcome string) { told = append(told, fmt.Sprintf("%s: %d %s", what, status, outcome)) }
				}
				k := tt.kind
				k.meta.Trail = &trail
				<-p.begin(t, k)
				if want := (*p.nodes.Load())[tt.node].host; trail.Node != want {
					t.Errorf("came to %s, want %s", trail.Node, want)
				}
				if trail.Attempts != len(tt.told) || trail.Redirects != tt.redirects || trail.Retries != tt.retries || trail.Took != tt.took {
					t.Errorf("trail %+v", trail)
				}
				if !slices.Equal(told, tt.told) {
					t.Errorf("told %q, want %q", told, tt.told)
				}
				last := nodes[tt.node].d.hits()
				if got := last[len(last)-1].Header.Get("Traceparent"); got != fmt.Sprint(trail.Attempts) {
					t.Errorf("the last attempt says that it is number %s", got)
				}
			})
		})
	}
}
