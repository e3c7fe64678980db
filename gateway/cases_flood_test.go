package gateway

import (
	"context"
	"io"
	"net/http"
	"net/http/httptrace"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2"

	"sluice/internal/tenant"
)

// G01: a client that began and ended requests all the time on one connection, 10,000 a
// second, was held by no bound on what is under way, since nothing ever was for long. The
// connection is closed once its budget is used up; until then each request that a handler
// was given is charged to the account, and the node never has more tails than the cap.
func TestRapidReset(t *testing.T) {
	const limit, burst = 5, 20
	node := &heldTails{}
	rg, _ := newUpRig(t, node.script, rigOptions{limits: func(l *tenant.Limits) {
		l.OpenTails, l.RequestsPerSecond, l.Burst = limit, 1, burst
	}})
	for name, begin := range rg.flooders(t) {
		t.Run(name, func(t *testing.T) {
			before := len(rg.requestLines(t))
			f := begin(t)
			began := time.Now()
			closed := f.flood(2000, func() {
				for range 50 {
					id := f.request(http.MethodGet, sseTail, rg.Keys[key], true)
					f.must(f.framer.WriteRSTStream(id, http2.ErrCodeCancel))
				}
			})
			if !closed {
				t.Fatalf("the connection stands after %d requests", f.next/2)
			}
			took := time.Since(began)
			poll(t, "no tail", func() bool { return rg.Limits.OpenTails() == 0 })
			// Those that a handler was given, 250 at one time, may all have been counted after
			// the last that was within the budget.
			most := resetBurst + int(took/resetEvery) + 2*streamsPerConnection
			if got := len(rg.requestLines(t)) - before; got > most {
				t.Errorf("%d requests were handled of %d that came in %v, want at most %d", got, f.next/2, took, most)
			}
		})
	}
	if got := sampleOf(t, rg, `sluice_connections_abused_total{why="resets"}`); got != "2" {
		t.Errorf("%s connections were counted", got)
	}
	if most := node.most.Load(); most > limit {
		t.Errorf("%d tails at the node at one time, want at most %d", most, limit)
	}
	if sampleOf(t, rg, `sluice_refusals_total{code="RATE_LIMITED"}`) == "" {
		t.Error("the account was not charged")
	}
	if !strings.Contains(rg.Log.String(), `"why":"resets"`) {
		t.Error("no line tells of it")
	}
}

// heldTails is a script of a node whose tails stand, and that counts them.
type heldTails struct{ open, most atomic.Int64 }

func (n *heldTails) script(c *upConn, _ *upRequest) {
	now := n.open.Add(1)
	defer n.open.Add(-1)
	for {
		most := n.most.Load()
		if now <= most || n.most.CompareAndSwap(most, now) {
			break
		}
	}
	c.say(sseHead + chunk("data: 1\n\n"))
	c.hold()
}

// sampleOf is the value of a sample of the metrics; "" where there is none.
func sampleOf(t testing.TB, rg *rig, sample string) string {
	t.Helper()
	for line := range strings.Lines(rg.exposition(t)) {
		if value, ok := strings.CutPrefix(line, sample+" "); ok {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

// G01: who ends requests now and then, as browsers do that leave a page and SDKs whose
// time is up, keeps the connection: 800 tails at once ended, of which half within their first
// bytes, and everything else is as before.
func TestCancellingNowAndThen(t *testing.T) {
	rg, _ := newUpRig(t, func(c *upConn, r *upRequest) {
		if !strings.Contains(r.Target, "live=") {
			c.say(whole("200 OK", "", "ok"))
			return
		}
		c.say(sseHead + chunk("data: 1\n\n"))
		c.hold()
	}, rigOptions{limits: func(l *tenant.Limits) { l.OpenTails = 1000 }})
	c := protocols(t)["h2"]
	var dialled atomic.Int64
	ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{GotConn: func(i httptrace.GotConnInfo) {
		if !i.Reused {
			dialled.Add(1)
		}
	}})
	for i := range 800 {
		one, cancel := context.WithCancel(ctx)
		res, err := c.Do(getOf(one, t, rg.URL+sseTail, rg.Keys[key]))
		if err != nil {
			t.Fatalf("tail %d: %v", i, err)
		}
		if i%2 == 0 {
			_ = readN(t, res.Body, 1)
		}
		cancel()
		_ = res.Body.Close()
		if i%100 == 0 {
			res, err := c.Do(getOf(ctx, t, rg.URL+"/acme/s.priv", rg.Keys[key]))
			if err != nil {
				t.Fatalf("read after %d tails: %v", i, err)
			}
			_, _ = io.Copy(io.Discard, res.Body)
			_ = res.Body.Close()
		}
	}
	if n := dialled.Load(); n != 1 {
		t.Errorf("%d connections, want the one", n)
	}
	for _, why := range []string{abuseResets, abuseFrames, abuseHeader} {
		if got := sampleOf(t, rg, `sluice_connections_abused_total{why="`+why+`"}`); got != "0" {
			t.Errorf("the client was taken for one who floods with %s: %s", why, got)
		}
	}
}

// G02: frames that carry nothing cost net/http work without end, in clear text as over TLS:
// whether the client reads what they are answered with or not, the connection is closed,
// and nothing piles up.
func TestFloodsOfFrames(t *testing.T) {
	rg, u := newUpRig(t, respond(whole("200 OK", "", "ok")), rigOptions{})
	for _, tc := range []struct {
		name  string
		begin func(f *flooder)
		one   func(f *flooder) error
	}{
		{"PING", nil, func(f *flooder) error { return f.framer.WritePing(false, [8]byte{1}) }},
		{"PING acks", nil, func(f *flooder) error { return f.framer.WritePing(true, [8]byte{1}) }},
		{"SETTINGS", nil, func(f *flooder) error { return f.framer.WriteSettings() }},
		{"PRIORITY", nil, func(f *flooder) error { return f.framer.WritePriority(1, http2.PriorityParam{StreamDep: 3}) }},
		{"WINDOW_UPDATE", nil, func(f *flooder) error { return f.framer.WriteWindowUpdate(0, 1) }},
		{"unknown", nil, func(f *flooder) error { return f.framer.WriteRawFrame(0xfa, 0, 0, nil) }},
		{
			"empty DATA", func(f *flooder) { f.request(http.MethodPost, "/acme/s.priv", rg.Keys[key], false) },
			func(f *flooder) error { return f.framer.WriteData(1, false, nil) },
		},
		{
			"padded DATA", func(f *flooder) { f.request(http.MethodPost, "/acme/s.priv", rg.Keys[key], false) },
			func(f *flooder) error {
				return f.framer.WriteRawFrame(http2.FrameData, http2.FlagDataPadded, 1, []byte{0})
			},
		},
		{"requests over the streams there may be", nil, func(f *flooder) error {
			f.request(http.MethodPost, "/acme/s.priv", rg.Keys[key], false)
			return nil
		}},
		{"requests that do not parse", nil, func(f *flooder) error {
			id := f.next
			f.next += 2
			return f.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: f.fields(":method", "GET"), EndStream: true, EndHeaders: true})
		}},
		{"requests that the server is made to end", nil, func(f *flooder) error {
			return f.framer.WriteWindowUpdate(f.request(http.MethodPost, "/acme/s.priv", rg.Keys[key], false), 1<<31-1)
		}},
		{"empty CONTINUATION", func(f *flooder) {
			f.must(f.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: f.fields(":method", "GET")}))
		}, func(f *flooder) error { return f.framer.WriteContinuation(1, false, nil) }},
		{"CONTINUATION", func(f *flooder) {
			f.must(f.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: f.fields(":method", "GET")}))
		}, func(f *flooder) error { return f.framer.WriteContinuation(1, false, f.fields("x-more", "of the same")) }},
	} {
		for way, begin := range rg.flooders(t) {
			t.Run(tc.name+" "+way, func(t *testing.T) {
				before := heap()
				f := begin(t)
				f.framer.AllowIllegalWrites = true
				if tc.begin != nil {
					tc.begin(f)
				}
				if !f.flood(10_000, func() {
					for range 100 {
						f.must(tc.one(f))
					}
				}) {
					t.Error("the connection stands after a million frames")
				}
				if after := heap(); after > before+(32<<20) {
					t.Errorf("the heap has grown from %d to %d bytes", before, after)
				}
			})
		}
	}
	u.untouched(t)
}

// G02: headers without end, in many frames, of many fields, and small ones that unpack to
// large ones: each is a 431 or the connection's end, and costs no memory.
func TestFloodsOfHeaders(t *testing.T) {
	rg, u := newUpRig(t, respond(whole("200 OK", "", "ok")), rigOptions{})
	tiny := func() (pairs []string) {
		for range 10_000 {
			pairs = append(pairs, "x", "")
		}
		return pairs
	}()
	for _, tc := range []struct {
		name string
		send func(f *flooder)
	}{
		{"10,000 tiny fields", func(f *flooder) {
			f.request(http.MethodGet, "/acme/s.priv", rg.Keys[key], true, tiny...)
		}},
		{"one large field", func(f *flooder) {
			block := f.fields(":method", "GET", ":scheme", "http", ":authority", "edge", ":path", "/acme/s.priv", "x", strings.Repeat("~", 200<<10))
			f.must(f.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block[:16<<10], EndStream: true}))
			for block = block[16<<10:]; len(block) > 0; block = block[min(len(block), 16<<10):] {
				f.must(f.framer.WriteContinuation(1, len(block) <= 16<<10, block[:min(len(block), 16<<10)]))
			}
		}},
		{"HPACK bomb", func(f *flooder) {
			// A field of the table of 4 KB, then a byte for each time that it is meant.
			block := f.fields(":method", "GET", ":scheme", "http", ":authority", "edge", ":path", "/acme/s.priv", "x", strings.Repeat("a", 3900))
			for range 8000 {
				block = append(block, 0x80|62)
			}
			f.must(f.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block, EndStream: true, EndHeaders: true}))
		}},
	} {
		for way, begin := range rg.flooders(t) {
			t.Run(tc.name+" "+way, func(t *testing.T) {
				before := heap()
				f := begin(t)
				f.framer.AllowIllegalWrites = true
				tc.send(f)
				_ = f.flush() // it may have been closed within
				if got := f.await("431", "GOAWAY", "200"); got == "200" {
					t.Errorf("answered %s", got)
				}
				if after := heap(); after > before+(8<<20) {
					t.Errorf("the heap has grown from %d to %d bytes", before, after)
				}
			})
		}
	}
	u.untouched(t)
}

// The budget of frames: so many at once, then one each millisecond, and one for each 16
// bytes that are sent.
func TestFrameBudget(t *testing.T) {
	now := time.Unix(0, 0)
	b := budget{burst: frameBurst, every: frameEvery}
	took := func() (n int) {
		for b.take(1, func() time.Time { return now }) {
			n++
		}
		b.left = 0 // what would have closed the connection
		return n
	}
	if got := took(); got != frameBurst {
		t.Errorf("%d at once, want %d", got, frameBurst)
	}
	now = now.Add(70 * time.Millisecond)
	b.sent.Add(30 * bytesPerFrame)
	if got := took(); got != 100 {
		t.Errorf("%d after 70 ms and 480 bytes sent, want 100", got)
	}
	now = now.Add(time.Hour)
	if got := took(); got != frameBurst {
		t.Errorf("%d after an hour, want %d", got, frameBurst)
	}
}

// The frames are found however they are cut.
func TestFrameReader(t *testing.T) {
	f := &flooder{t: t, next: 1}
	f.framer = http2.NewFramer(&f.out, nil)
	f.must(f.framer.WriteSettings(http2.Setting{ID: 1, Val: 1}))
	f.must(f.framer.WriteData(1, true, []byte("0123456789")))
	f.must(f.framer.WritePing(false, [8]byte{}))
	f.must(f.framer.WriteData(3, false, nil))
	all := f.out.Bytes()
	want := []frame{{6, 4, 0, 0}, {10, 0, 1, 1}, {8, 6, 0, 0}, {0, 0, 0, 3}}
	for size := 1; size <= len(all); size++ {
		var r frameReader
		var got []frame
		for rest := all; len(rest) > 0; rest = rest[min(size, len(rest)):] {
			for p := rest[:min(size, len(rest))]; ; {
				one, left, ok := r.next(p)
				if !ok {
					break
				}
				got, p = append(got, one), left
			}
		}
		if len(got) != len(want) {
			t.Fatalf("cut by %d: %v", size, got)
		}
		for i := range want {
			if got[i] != want[i] {
				t.Errorf("cut by %d: frame %d is %v, want %v", size, i, got[i], want[i])
			}
		}
	}
}
