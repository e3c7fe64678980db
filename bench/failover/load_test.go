package failover

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// fakeGateway is a stream in memory behind a gateway with a fault of its own.
type fakeGateway struct {
	fault string

	mu      sync.Mutex
	content strings.Builder
	seen    map[string][2]int // by producer and sequence number
	appends int
}

func (g *fakeGateway) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Cache-Control", "no-store")
	switch {
	case r.Method == http.MethodPost:
		g.append(w, r)
	case r.URL.Query().Get("live") == "sse":
		g.tail(w, r)
	default:
		g.read(w, r)
	}
}

func (g *fakeGateway) append(w http.ResponseWriter, r *http.Request) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.appends++
	line := make([]byte, r.ContentLength)
	_, _ = r.Body.Read(line)
	key := r.Header.Get("Producer-Id") + " " + r.Header.Get("Producer-Seq")
	hit := g.appends == 3
	if hit && g.fault == "refuses before" {
		refuse(w, http.StatusServiceUnavailable, "NO_LEADER")
		return
	}
	place, again := g.seen[key]
	if !again || (hit && g.fault == "doubles") {
		place[0] = g.content.Len()
		if !hit || g.fault != "loses" {
			g.content.Write(line)
		}
		place[1] = place[0] + len(line)
		g.seen[key] = place
	}
	switch {
	case hit && g.fault == "refuses after":
		refuse(w, http.StatusServiceUnavailable, "NO_LEADER")
		return
	case hit && g.fault == "fails after":
		refuse(w, http.StatusBadGateway, "UPSTREAM_FAILED")
		return
	case hit && g.fault == "doubles":
		g.content.Write(line)
	}
	w.Header().Set("Stream-Offset", fmt.Sprintf("%020d", place[0]))
	w.Header().Set("Stream-Next-Offset", fmt.Sprintf("%020d", place[1]))
}

func refuse(w http.ResponseWriter, status int, code string) {
	w.Header().Set("Retry-After", "0")
	w.WriteHeader(status)
	_, _ = fmt.Fprintf(w, `{"error":{"code":%q}}`, code)
}

func (g *fakeGateway) read(w http.ResponseWriter, r *http.Request) {
	g.mu.Lock()
	defer g.mu.Unlock()
	offset, _ := strconv.Atoi(r.URL.Query().Get("offset"))
	text := g.content.String()
	w.Header().Set("Stream-Next-Offset", fmt.Sprintf("%020d", len(text)))
	if g.fault != "never up to date" {
		w.Header().Set("Stream-Up-To-Date", "true")
	}
	_, _ = fmt.Fprint(w, text[min(offset, len(text)):])
}

func (g *fakeGateway) tail(w http.ResponseWriter, r *http.Request) {
	offset, _ := strconv.Atoi(r.URL.Query().Get("offset"))
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	skip := g.fault == "gap"
	for sent := 0; ; sent++ {
		g.mu.Lock()
		text := g.content.String()[offset:]
		g.mu.Unlock()
		if skip && text != "" {
			offset, text, skip = offset+len(text), "", false
		}
		if text != "" {
			_, _ = fmt.Fprintf(w, "event: data\ndata:%s\n\n", strings.ReplaceAll(text, "\n", "\ndata:"))
			offset += len(text)
		}
		_, _ = fmt.Fprintf(w, "event: control\ndata:{\"streamNextOffset\":\"%020d\"}\n\n", offset)
		_ = http.NewResponseController(w).Flush()
		select {
		case <-r.Context().Done():
			return
		case <-tick.C:
		}
		if sent == 2 && g.fault == "ends tails" {
			return
		}
		if sent == 2 && g.fault == "cuts tails" {
			panic(http.ErrAbortHandler)
		}
	}
}

// A load finds each fault that a gateway may have, and takes what it must bear.
func TestLoadFindsFaults(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		fault string
		kind  ProducerKind
		want  func(v Verdict, odd string, ends TailEnds) bool
	}{
		{"", Keyed, func(v Verdict, odd string, _ TailEnds) bool { return v.Clean() && odd == "" }},
		{"refuses before", Keyed, func(v Verdict, odd string, _ TailEnds) bool { return v.Clean() && odd == "" }},
		{"refuses before", Proving, func(v Verdict, odd string, _ TailEnds) bool { return v.Clean() && odd == "" }},
		{"refuses after", Proving, func(v Verdict, _ string, _ TailEnds) bool { return v.Refused == 1 }},
		{"fails after", Proving, func(v Verdict, odd string, _ TailEnds) bool { return v.Clean() && odd == "" }},
		{"loses", Keyed, func(v Verdict, _ string, _ TailEnds) bool { return v.Lost == 1 }},
		{"doubles", Keyed, func(v Verdict, _ string, _ TailEnds) bool { return v.Doubled == 1 }},
		{"ends tails", Keyed, func(_ Verdict, odd string, _ TailEnds) bool { return strings.Contains(odd, "ended cleanly") }},
		{"cuts tails", Keyed, func(v Verdict, odd string, e TailEnds) bool { return v.Clean() && odd == "" && e.Cut > 0 }},
		{"gap", Keyed, func(_ Verdict, odd string, _ TailEnds) bool {
			return strings.Contains(odd, "says that the next offset is")
		}},
	} {
		t.Run(tt.fault, func(t *testing.T) {
			t.Parallel()
			g := &fakeGateway{fault: tt.fault, seen: map[string][2]int{}}
			s := httptest.NewUnstartedServer(g)
			s.Config.Protocols = new(http.Protocols)
			s.Config.Protocols.SetHTTP1(true)
			s.Config.Protocols.SetUnencryptedHTTP2(true)
			s.Start()
			t.Cleanup(s.Close)
			const path = "/a/s.x"
			l := Start(t.Context(), Options{
				Gateways: []string{s.URL, s.URL}, Every: 5 * time.Millisecond,
				Producers: []Producer{{ID: "p", Path: path, Kind: tt.kind}}, Readers: []string{path}, Tails: []string{path}, Finish: time.Second,
			})
			for range 5 {
				if _, err := l.Settle(t.Context(), 10*time.Second); err != nil {
					t.Fatal(err)
				}
			}
			l.Stop(t.Context())
			v, err := l.Verify(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if odd := strings.Join(l.Oddities(), "\n"); !tt.want(v, odd, l.TailEnds()) {
				t.Errorf("verdict %+v, oddities %q, tails %+v", v, odd, l.TailEnds())
			}
		})
	}
}

// A reader that never hears that it is up to date does not settle.
func TestSettleFails(t *testing.T) {
	t.Parallel()
	s := httptest.NewServer(&fakeGateway{fault: "never up to date", seen: map[string][2]int{}})
	t.Cleanup(s.Close)
	l := Start(t.Context(), Options{Gateways: []string{s.URL}, Every: 5 * time.Millisecond, Readers: []string{"/a/s.x"}, Finish: time.Millisecond})
	_, err := l.Settle(t.Context(), 50*time.Millisecond)
	l.Stop(t.Context())
	if err == nil || !strings.Contains(err.Error(), "reader 0") {
		t.Errorf("error %v, want one that names reader 0", err)
	}
}
