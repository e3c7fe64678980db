package upstream

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// fleet starts one double for each word, all writing into one order:
//
//	ok            answers 200
//	404, 503, …   answers that status, 503 with Retry-After
//	dead          takes no connection
//	cut           reads the request and closes the connection
//	->N  ?->N     redirects to node N, naming the leader or as a hint
//	->else        redirects to a node that is not configured, naming it
//	302->N        a redirect that Ursula does not send
func fleet(t *testing.T, words ...string) (urls []string, order func() []int, ask []*double) {
	t.Helper()
	var log []int
	var mu sync.Mutex
	urls = make([]string, len(words))
	servers := make([]*httptest.Server, len(words))
	ask = make([]*double, len(words))
	for i, word := range words {
		ask[i] = &double{id: i}
		if word == "dead" {
			urls[i] = deadURL(i)
			continue
		}
		answer := func(w http.ResponseWriter, r *http.Request) {
			mu.Lock()
			log = append(log, i)
			mu.Unlock()
			act(w, r, word, func(n int) string { return urls[n] })
		}
		servers[i] = httptest.NewUnstartedServer(ask[i].handler(answer))
		urls[i] = "http://" + servers[i].Listener.Addr().String()
	}
	for _, s := range servers {
		if s != nil {
			s.Start()
			t.Cleanup(s.Close)
		}
	}
	return urls, func() []int {
		mu.Lock()
		defer mu.Unlock()
		return append([]int{}, log...)
	}, ask
}

func act(w http.ResponseWriter, r *http.Request, word string, url func(int) string) {
	to := func(s string) string {
		var n int
		if _, err := fmt.Sscanf(s, "%d", &n); err != nil {
			return "http://192.0.2.1:4437" + r.RequestURI
		}
		return url(n) + r.RequestURI
	}
	switch kind, target, _ := strings.Cut(word, "->"); {
	case word == "ok":
	case word == "cut":
		cut(w, r)
	case !strings.Contains(word, "->"):
		var status int
		_, _ = fmt.Sscanf(word, "%d", &status)
		if status == http.StatusServiceUnavailable {
			w.Header().Set("Retry-After", "1")
		}
		w.WriteHeader(status)
	case kind == "" || kind == "?":
		redirect(w, to(target), kind == "")
	default:
		var status int
		_, _ = fmt.Sscanf(kind, "%d", &status)
		w.Header().Set("Location", to(target))
		w.WriteHeader(status)
	}
}

// Each case names its rows of facts §13. Only the nodes of order were asked, in
// that order; the rest have 0 hits.
func TestRedirects(t *testing.T) {
	const ok = -1 // no error
	tests := []struct {
		name  string
		nodes string
		first int
		order []int
		kind  Kind
		want  int // status; 0 = an error of that kind
	}{
		{"R1 followed", "->1 ok", 0, []int{0, 1}, ok, 200},
		{"R2 first pick is the leader", "->1 ok", 1, []int{1}, ok, 200},
		{"R2 first pick is the other follower", "ok ->0 ->0", 2, []int{2, 0}, ok, 200},
		{"R3 one node, to itself", "->0", 0, []int{0}, NoLeader, 0},
		{"R3 one node, elsewhere", "->else", 0, []int{0}, NoLeader, 0},
		{"R4 no target is a node", "->else ->else", 0, []int{0, 1}, NoLeader, 0},
		{"R5 first and only node refuses", "dead", 0, nil, Unreachable, 0},
		{"R5 refused after a redirect", "->1 dead", 0, []int{0}, Unreachable, 0},
		{"R6 two hops to 200", "->1 ->2 ok", 0, []int{0, 1, 2}, ok, 200},
		{"R6 two hops to 404", "->1 ->2 404", 0, []int{0, 1, 2}, ok, 404},
		{"R6 two hops to 503", "->1 ->2 503", 0, []int{0, 1, 2}, ok, 503},
		{"R7 hint is followed", "?->2 503 ok", 0, []int{0, 2}, ok, 200},
		{"R8 unknown address, next in order", "->else ok ok", 0, []int{0, 1}, ok, 200},
		{"R8 hint at an unknown address", "?->else ok ok", 0, []int{0, 1}, ok, 200},
		{"R9 two nodes point at each other", "->1 ->0", 0, []int{0, 1}, NoLeader, 0},
		{"R9 three hops after the first", "->1 ->0 ->0 ->0 ok", 0, []int{0, 1, 2, 3}, NoLeader, 0},
		{"R13 search goes past a dead node", "->else dead ok", 0, []int{0, 2}, ok, 200},
		{"R13 search with none left", "->else dead", 0, []int{0}, Unreachable, 0},
		{"R14 search hop broke", "->else cut ok", 0, []int{0, 1}, Failed, 0},
		{"R16 search over dead nodes stops after three hops", "->else dead dead dead ok", 0, []int{0}, Unreachable, 0},
		{"R17 named leader is dead, no search", "->1 dead ok", 0, []int{0}, Unreachable, 0},
		{"R18 hint is dead, search goes on", "?->1 dead ok", 0, []int{0, 2}, ok, 200},
		{"R20 search begins after the one that redirected", "ok ->else ok", 1, []int{1, 2}, ok, 200},
		{"R20 and wraps", "ok ok ->else", 2, []int{2, 0}, ok, 200},
		{"R21 back to one already tried", "->1 ->0 ok", 0, []int{0, 1, 2}, ok, 200},
		{"R21 to itself", "->0 ok", 0, []int{0, 1}, ok, 200},
		{"R23 first hop hung up", "cut ok", 0, []int{0}, Failed, 0},
		{"R23 hung up after redirects", "->1 ->2 cut ok", 0, []int{0, 1, 2}, Failed, 0},
		{"a dead node is passed over", "dead ok", 0, []int{1}, ok, 200},
		{"so are three", "dead dead dead ok", 0, []int{3}, ok, 200},
		{"three hops after the first, dead nodes too", "dead dead dead dead ok", 0, nil, Unreachable, 0},
		{"all are dead", "dead dead dead", 0, nil, Unreachable, 0},
		{"redirect to the dead node that was asked first", "dead ->0", 0, []int{1}, NoLeader, 0},
		{"a refusal is no reason to go on", "404 ok", 0, []int{0}, ok, 404},
		{"nor is 503", "503 ok", 0, []int{0}, ok, 503},
		{"301 proves nothing", "301->1 ok", 0, []int{0}, Failed, 0},
		{"302 proves nothing", "302->1 ok", 0, []int{0}, Failed, 0},
		{"303 proves nothing", "303->1 ok", 0, []int{0}, Failed, 0},
		{"308 is a 307 (facts §5.3)", "308->1 ok", 0, []int{0, 1}, ok, 200},
		{"304 is an answer", "304 ok", 0, []int{0}, ok, 304},
	}
	for _, tt := range tests {
		for _, method := range []string{http.MethodGet, http.MethodPost, http.MethodPut, http.MethodDelete} {
			t.Run(tt.name+"/"+method, func(t *testing.T) {
				urls, order, nodes := fleet(t, strings.Fields(tt.nodes)...)
				p := newBlindPool(t, urls...)
				p.firstIs(tt.first, len(urls))
				m := Meta{Path: streamPath, Read: method == http.MethodGet}
				if method == http.MethodPost || method == http.MethodPut {
					m.Body = []byte("the body")
				}
				res, err := p.send(t.Context(), method, streamPath+"?a=1&b=%20", m, "Producer-Id", "p", "Content-Type", "text/plain")
				if tt.want == 0 {
					wantKind(t, err, tt.kind)
				} else if err != nil || res.StatusCode != tt.want {
					t.Errorf("got %v, error %v; want %d", res.Response, err, tt.want)
				}
				if diff := cmp.Diff(append([]int{}, tt.order...), order()); diff != "" {
					t.Errorf("nodes asked (-want +got):\n%s", diff)
				}
				// R1: method, target, headers and body are the same at each hop.
				for _, n := range nodes {
					for _, r := range n.hits() {
						if r.Method != method || r.Target != streamPath+"?a=1&b=%20" || string(r.Body) != string(m.Body) ||
							r.Header.Get("Producer-Id") != "p" || r.Header.Get("Content-Type") != "text/plain" {
							t.Errorf("node %d got %s %s %v %q", r.Node, r.Method, r.Target, r.Header, r.Body)
						}
					}
				}
			})
		}
	}
}

// R22: a Location that only begins with a node's address is not that node.
func TestLocate(t *testing.T) {
	p := newPool(t, "http://h:8", "https://h:8", "http://h:80/")
	nodes := *p.nodes.Load()
	tests := []struct {
		name, location, want string
	}{
		{"end", "http://h:8", "http://h:8"},
		{"path", "http://h:8/acme/s.x?offset=1", "http://h:8"},
		{"query", "http://h:8?x", "http://h:8"},
		{"other scheme", "https://h:8/x", "https://h:8"},
		{"longer port that is a node", "http://h:80/x", "http://h:80"},
		{"longer port that is none", "http://h:800/x", ""},
		{"longer host", "http://h:8.evil/x", ""},
		{"credentials trick", "http://h:8@evil/x", ""},
		{"fragment", "http://h:8#x", ""},
		{"other host", "http://evil/http://h:8/", ""},
		{"relative", "/acme/s.x", ""},
		{"scheme-relative", "//h:8/x", ""},
		{"empty", "", ""},
		{"metadata service", "http://169.254.169.254/", ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := ""
			if n := locate(nodes, tt.location); n != nil {
				got = n.base
			}
			if got != tt.want {
				t.Errorf("got node %q, want %q", got, tt.want)
			}
		})
	}
}

// R22, H23: the same through the pool: the look-alike is never asked.
func TestLookAlikeLocation(t *testing.T) {
	evil := newDouble(t, nil)
	var base string
	good := newDouble(t, func(w http.ResponseWriter, r *http.Request) { redirect(w, base+".evil"+r.RequestURI, true) })
	base = good.URL
	toEvil := newDouble(t, func(w http.ResponseWriter, r *http.Request) { redirect(w, evil.URL+r.RequestURI, true) })
	for _, n := range []*double{good, toEvil} {
		p := newPool(t, n.URL)
		_, err := p.send(t.Context(), http.MethodPost, streamPath, Meta{Body: []byte("x")})
		wantKind(t, err, NoLeader)
	}
	if got := len(evil.hits()); got != 0 {
		t.Errorf("a node that is not configured was asked %d times", got)
	}
}

// F2: a base URL with a trailing slash adds none to the path.
func TestTrailingSlash(t *testing.T) {
	n := newDouble(t, nil)
	p := newPool(t, n.URL+"/")
	p.mustSend(t, http.MethodGet, streamPath+"?", Meta{Read: true})
	p.mustSend(t, http.MethodGet, streamPath+"?b=%2B&a=1&a=+", Meta{Read: true})
	got := []string{n.hits()[0].Target, n.hits()[1].Target}
	if diff := cmp.Diff([]string{streamPath + "?", streamPath + "?b=%2B&a=1&a=+"}, got); diff != "" {
		t.Errorf("targets (-want +got):\n%s", diff)
	}
}
