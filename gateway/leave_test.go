package gateway

import (
	"bytes"
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"sluice/auth"
	"sluice/internal/bubble"
)

// The events of one append, as a node sends them (facts §10).
const appended = "event: data\ndata:{\"n\":1}\ndata:\n\nevent: control\ndata:{}\n\n"

var comeAgain = regexp.MustCompile(`retry: ([12]\d{3}|3000)\n\n$`)

// hintless takes the hint off a tail's text, and fails where there is none.
func hintless(t *testing.T, text string) string {
	t.Helper()
	at := comeAgain.FindStringIndex(text)
	if at == nil {
		t.Errorf("no hint at the end of %q", text)
		return text
	}
	return text[:at[0]]
}

// Design §5, O05: a drain ends the tails one after the other over its time, each with a
// hint when to come again and no advice about its credential; those that come later at once.
func TestDrainSpreadsTheEndsOfTails(t *testing.T) {
	const tails, over = 200, 20 * time.Second
	bubble.Test(t, func(t *testing.T) {
		rg, nodes, l := bubbleTails(t, rigOptions{})
		clients := l.clients(t)
		ends := make([]<-chan tailEnd, 0, tails+1)
		for i := range tails {
			ends = append(ends, follow(t.Context(), clients[[]string{"h1", "h2"}[i%2]], liveURL, rg.Keys["full"]))
			_, _ = io.WriteString(<-nodes.opened, appended)
		}
		bubble.Wait()
		begun := time.Now()
		rg.Gateway.EndTails(t.Context(), over)
		late := follow(t.Context(), clients["h1"], liveURL, rg.Keys["full"])
		<-nodes.opened
		ends = append(ends, late)
		var quarters [4]int
		for i, end := range ends {
			got := <-end
			if got.status != http.StatusOK || got.err != nil || i < tails && hintless(t, got.text) != appended || i == tails && hintless(t, got.text) != "" {
				t.Fatalf("tail %d: %d %q %v", i, got.status, got.text, got.err)
			}
			if i < tails {
				quarters[min(3, int(4*got.at.Sub(begun)/over))]++
			}
		}
		for i, n := range quarters {
			if n < tails/4-2 || n > tails/4+2 {
				t.Errorf("%d tails ended in quarter %d of the time, want %d", n, i+1, tails/4)
			}
		}
		checkEnds(t, rg, "drain", tails+1)
	})
}

// A tail ended behind data, before the event that says from where to go on: its reader
// would be told the data again. At every byte, with each line end, it ends where that has
// come, and never inside an event; the node sends the rest 300 ms later.
func TestDrainEndsWhereATailResumes(t *testing.T) {
	const late = 300 * time.Millisecond
	for _, lines := range []string{"\n", "\r\n", "\r"} {
		stream := strings.ReplaceAll(appended+":\n\n"+appended, "\n", lines)
		bubble.Test(t, func(t *testing.T) {
			rg, nodes, l := bubbleTails(t, rigOptions{})
			c := l.clients(t)["h1"]
			var ends []<-chan tailEnd
			var reads []*liveRead
			for offset := range len(stream) + 1 {
				ends = append(ends, follow(t.Context(), c, liveURL, rg.Keys["full"]))
				reads = append(reads, <-nodes.opened)
				go func(node *liveRead) {
					_, _ = io.WriteString(node, stream[:offset])
					time.Sleep(late)
					_, _ = io.WriteString(node, stream[offset:])
				}(reads[offset])
			}
			bubble.Wait()
			rg.Gateway.EndTails(t.Context(), 0)
			for offset, end := range ends {
				got := <-end
				text, whole := resumable(stream, offset)
				if got.err != nil || !whole || hintless(t, got.text) != text {
					t.Errorf("after %q: %q, %v; want %q", stream[:offset], got.text, got.err, text)
				}
			}
			checkEnds(t, rg, "drain", len(ends))
		})
	}
}

// resumable is the shortest part of the stream that has what was handed on and from which
// its reader goes on without being told anything twice, found in another way.
func resumable(stream string, handed int) (part string, ok bool) {
	for n := handed; n <= len(stream); n++ {
		plain := strings.ReplaceAll(strings.ReplaceAll(stream[:n], "\r\n", "\n"), "\r", "\n")
		if between(stream[:n]) && strings.Count(plain, "event: data\n") == strings.Count(plain, "event: control\n") {
			return stream[:n], true
		}
	}
	return stream, false
}

// What must end goes before what only should: a key that is revoked while its tail waits
// for a place to resume from ends it there, and says so.
func TestRevocationGoesBeforeADrain(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		rg, nodes, l := bubbleTails(t, rigOptions{})
		data, control, _ := strings.Cut(appended, "event: control")
		end := follow(t.Context(), l.clients(t)["h1"], liveURL, rg.Keys["full"])
		node := <-nodes.opened
		_, _ = io.WriteString(node, data)
		bubble.Wait()
		rg.Gateway.EndTails(t.Context(), 0)
		if err := rg.Directory.RevokeKey("acme/full"); err != nil {
			t.Fatal(err)
		}
		bubble.Wait()
		_, _ = io.WriteString(node, "event: control"+control)
		if got := <-end; got.err != nil || got.text != appended+credentialExpired {
			t.Errorf("%q %v", got.text, got.err)
		}
		checkEnds(t, rg, "credential", 1)
	})
}

// A long-poll that waits at a drain is asked once more, with no time to wait: its client
// gets the node's own answer, with the position to go on from. The rest of its query is as
// it came. One whose answer has come already is not asked again.
func TestDrainAnswersLongPolls(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		rg, nodes, l := bubbleTails(t, rigOptions{})
		for _, proto := range []string{"h1", "h2"} {
			end := follow(t.Context(), l.clients(t)[proto], "http://gw/acme/s.priv?offset=17&x=a%20b&timeout_ms=60000&live=long-poll&timeout%5Fms=50000", rg.Keys["full"])
			first := <-nodes.opened
			bubble.Wait()
			go rg.Gateway.EndTails(t.Context(), 0)
			again := <-nodes.opened
			if got, want := again.request.URL.RawQuery, "offset=17&x=a%20b&live=long-poll&timeout_ms=1"; got != want {
				t.Errorf("asked %q, want %q", got, want)
			}
			if !first.gone() {
				t.Error("the node still waits for the first")
			}
			again.answer <- "what has come"
			if got := <-end; got.status != http.StatusOK || got.text != "what has come" || got.err != nil {
				t.Errorf("%s: %d %q %v", proto, got.status, got.text, got.err)
			}
			bubble.Wait()
			rg.Gateway.open.mu.Lock()
			rg.Gateway.open.closed = false
			rg.Gateway.open.mu.Unlock()
		}
		checkEnds(t, rg, "drain", 2)
	})
}

// G05: before the end every answer closes its connection, refusals and tails too, and
// over HTTP/2 a GOAWAY has the client open another one; none is lost.
func TestLeavingEndsConnections(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		rg, nodes, l := bubbleTails(t, rigOptions{})
		clients := l.clients(t)
		nodes.body = func() io.ReadCloser { return io.NopCloser(strings.NewReader("x")) }
		ask := func(proto, key string) (closes bool) {
			req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://gw/acme/s.priv", nil)
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("Authorization", "Bearer "+key)
			res, err := clients[proto].Do(req)
			if err != nil {
				t.Fatal(err)
			}
			_, _ = io.Copy(io.Discard, res.Body)
			_ = res.Body.Close()
			return res.Close
		}
		for _, proto := range []string{"h1", "h2"} {
			if ask(proto, rg.Keys["full"]) {
				t.Errorf("%s: closed before it leaves", proto)
			}
		}
		tail := follow(t.Context(), clients["h2"], liveURL, rg.Keys["full"])
		feed := <-nodes.opened
		bubble.Wait()
		rg.Gateway.Leave()
		for range 3 {
			for _, key := range []string{rg.Keys["full"], "tbo_bad"} {
				if !ask("h1", key) {
					t.Error("not closed")
				}
				ask("h2", key)
				time.Sleep(2 * time.Second) // net/http closes it a while after the GOAWAY
			}
		}
		_, _ = io.WriteString(feed, appended)
		rg.Gateway.EndTails(t.Context(), 0)
		if got := <-tail; got.err != nil || hintless(t, got.text) != appended {
			t.Errorf("the tail on a connection that was told to go: %q %v", got.text, got.err)
		}
		if n := l.dialled.Load(); n < 8 {
			t.Errorf("%d connections for 12 requests: some went on", n)
		}
	})
}

// tails.max_age: a tail ends before it is that old, in the last tenth of it, by chance; so
// do those that are open when a reload brings another age in force. Long-polls too.
func TestTailsEndAtTheirAge(t *testing.T) {
	const tails, age = 60, time.Hour
	bubble.Test(t, func(t *testing.T) {
		rg, nodes, l := bubbleTails(t, rigOptions{change: func(o *Options) { o.TailMaxAge = age }})
		ends := func() (times []time.Duration) {
			all := make([]<-chan tailEnd, 0, tails)
			begun := time.Now()
			for range tails {
				all = append(all, follow(t.Context(), l.clients(t)["h1"], liveURL, rg.Keys["full"]))
				_, _ = io.WriteString(<-nodes.opened, appended)
			}
			if len(times) == 0 && rg.Options.TailMaxAge != age {
				time.Sleep(30 * time.Minute)
				rg.Gateway.Swap(rg.Options)
			}
			for _, end := range all {
				got := <-end
				if got.err != nil || hintless(t, got.text) != appended {
					t.Fatalf("%q %v", got.text, got.err)
				}
				times = append(times, got.at.Sub(begun))
			}
			slices.Sort(times)
			return times
		}
		within := func(times []time.Duration, from, to time.Duration) {
			t.Helper()
			if times[0] < from || times[tails-1] > to || times[tails-1]-times[0] < (to-from)/2 {
				t.Errorf("ended %v to %v after the beginning, want %v to %v", times[0], times[tails-1], from, to)
			}
		}
		within(ends(), age-age/10, age)
		rg.Options.TailMaxAge = 20 * time.Minute // less than they are old by then
		within(ends(), 30*time.Minute, 32*time.Minute)
		checkEnds(t, rg, "max_age", 2*tails)
		if strings.Contains(rg.Log.String(), "credential") {
			t.Error("booked on the credential")
		}
	})
}

// A drain that is cut short tells no more tails; one with none to tell is over with its time.
func TestDrainIsCutShort(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		open := openTails{now: time.Now, random: noChance, check: func(_ context.Context, tl *openTail) (*auth.Principal, error) { return tl.principal, nil }}
		begun := time.Now()
		open.drain(t.Context(), time.Minute)
		if took := time.Since(begun); took != time.Minute {
			t.Errorf("none to tell: %v", took)
		}
		open.closed = false
		all := make([]*openTail, 0, 100)
		for range 100 {
			all = append(all, bareTail("acme", nil))
			open.add(all[len(all)-1])
		}
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		open.drain(ctx, time.Minute)
		told := 0
		for _, tl := range all {
			if tl.ended() != nil {
				told++
			}
			open.remove(tl)
		}
		if told < 45 || told > 55 {
			t.Errorf("%d of 100 told in half of the time", told)
		}
		open.close()
	})
}

// The hint tells each reader another time.
func TestRetryHintsDiffer(t *testing.T) {
	open := openTails{random: fractions(rand.Reader)}
	seen := map[string]bool{}
	for range 50 {
		hint := open.retryHint()
		if !comeAgain.Match(hint) || bytes.Count(hint, []byte("\n")) != 2 {
			t.Fatalf("%q", hint)
		}
		seen[string(hint)] = true
	}
	if len(seen) < 40 {
		t.Errorf("%d hints of 50 differ", len(seen))
	}
	if got := fmt.Sprintf("%q", (&openTails{random: noChance}).retryHint()); got != `"retry: 2000\n\n"` {
		t.Error(got)
	}
}
