package gateway

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"sluice/gateway/upstream"
	"sluice/internal/tenant"
	"sluice/internal/ursulatest"
)

// bodySpy keeps what the chain gives to the pool, and answers by itself.
type bodySpy struct {
	Upstream
	mu     sync.Mutex
	bodies [][]byte
	during func() // called while the body is held; nil = nothing
}

func (b *bodySpy) Send(_ context.Context, r *http.Request, m upstream.Meta) (*http.Response, error) {
	b.mu.Lock()
	b.bodies = append(b.bodies, m.Body)
	during := b.during
	b.mu.Unlock()
	if during != nil {
		during()
	}
	return &http.Response{StatusCode: http.StatusOK, Header: http.Header{}, Body: http.NoBody, Request: r, ProtoMajor: 1, ProtoMinor: 1}, nil
}

// last is the last body given, and how many there were.
func (b *bodySpy) last() ([]byte, int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.bodies) == 0 {
		return nil, 0
	}
	return b.bodies[len(b.bodies)-1], len(b.bodies)
}

func newSpyRig(t testing.TB, change func(*Options), limits func(*tenant.Limits)) (*rig, *bodySpy) {
	t.Helper()
	spy := &bodySpy{}
	rg := newRig(t, rigOptions{limits: limits, change: func(o *Options) {
		spy.Upstream = o.Upstream
		o.Upstream = spy
		if change != nil {
			change(o)
		}
	}})
	return rg, spy
}

// undeclared hides a reader's length, so that it is sent in chunks.
type undeclared struct{ io.Reader }

func pattern(n int) []byte {
	b := make([]byte, n)
	var seed [32]byte
	copy(seed[:], fmt.Sprint(n))
	random := rand.NewChaCha8(seed)
	_, _ = random.Read(b)
	return b
}

// Bodies of every length around the edges of the buffers arrive byte for byte,
// however they are framed, and one byte over the limit is refused and reaches
// nobody. Afterwards nothing of the budget is held (F15, U9, U10).
func TestBodiesArriveExactly(t *testing.T) {
	const limit = 3<<20 + 17
	rg, spy := newSpyRig(t, nil, func(l *tenant.Limits) { l.RequestBytes = limit })
	lengths := []int{
		0, 1, 2, 4095, 4096, 64<<10 - 1, 64 << 10, 64<<10 + 1, 64<<10 + 2, 128<<10 + 1, 128<<10 + 2,
		1<<20 - 1, 1 << 20, 1<<20 + 1, 2 << 20, 2<<20 + 1, limit - 1, limit, limit + 1,
	}
	for protocol, c := range protocols(t) {
		for _, declared := range []bool{true, false} {
			for _, n := range lengths {
				if declared && n > limit {
					continue // refused from the head: below
				}
				t.Run(fmt.Sprintf("%s/declared %t/%d", protocol, declared, n), func(t *testing.T) {
					want := pattern(n)
					var in io.Reader = bytes.NewReader(want)
					if !declared {
						in = undeclared{in}
					}
					_, before := spy.last()
					ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
					defer cancel()
					req, err := http.NewRequestWithContext(ctx, http.MethodPost, rg.URL+"/acme/s.priv", in)
					if err != nil {
						t.Fatal(err)
					}
					req.Header.Set("Authorization", "Bearer "+rg.Keys[key])
					res, err := c.Do(req)
					if err != nil {
						t.Fatal(err)
					}
					text, _ := io.ReadAll(res.Body)
					_ = res.Body.Close()
					got, after := spy.last()
					if n > limit {
						if res.StatusCode != http.StatusRequestEntityTooLarge || res.Header.Get(maxRequestBytesHeader) != fmt.Sprint(limit) || after != before {
							t.Errorf("got %d %s %v, %d reached the pool; want 413 and none", res.StatusCode, text, res.Header, after-before)
						}
						return
					}
					if res.StatusCode != http.StatusOK || after != before+1 || !bytes.Equal(got, want) {
						t.Fatalf("got %d %s, %d requests, %d of %d bytes equal", res.StatusCode, text, after-before, len(got), n)
					}
					// Facts U10: a held body has no spare chunk behind it.
					if spare := cap(got) - len(got); spare > spareBody+len(got)/4 {
						t.Errorf("%d bytes are held in a buffer of %d", len(got), cap(got))
					}
				})
			}
		}
	}
	// Facts B4: one that says itself that it is too large is not waited for.
	_, before := spy.last()
	conn := rg.dial(t)
	rg.write(t, conn, fmt.Sprintf("POST /acme/s.priv HTTP/1.1\r\nHost: gw\r\nAuthorization: Bearer %s\r\nContent-Length: %d\r\n\r\n", rg.Keys[key], limit+1))
	res := readAnswer(t, bufio.NewReader(conn), http.MethodPost)
	if _, after := spy.last(); res.code() != "REQUEST_TOO_LARGE" || res.Header.Get(maxRequestBytesHeader) != fmt.Sprint(limit) || after != before {
		t.Errorf("declared too large: got %d %s %v", res.StatusCode, res.Text, res.Header)
	}
	poll(t, "the budget given back", func() bool { return rg.Budget.Used() == 0 })
}

// Facts U10, U11: what is reserved: 1, 2, 4 MiB as a body grows, never more than
// was declared, and its real size once it is whole.
func TestReservationFollowsTheBody(t *testing.T) {
	const mib = 1 << 20
	held, leave := make(chan struct{}), make(chan struct{})
	rg, spy := newSpyRig(t, nil, nil)
	spy.during = func() {
		held <- struct{}{}
		<-leave
	}
	tests := []struct {
		name     string
		declared int64
		send     []int // so many bytes each, then the wanted reservation is looked at
		want     []int64
		whole    int64
	}{
		{"undeclared, 3 KiB", -1, []int{0, 3 << 10}, []int64{mib, mib}, 3 << 10},
		{"undeclared, exactly small", -1, []int{mib}, []int64{mib}, mib},
		{"undeclared, 1 → 2 → 4", -1, []int{mib, 1, mib - 1, 1}, []int64{mib, 2 * mib, 2 * mib, 4 * mib}, 2*mib + 1},
		{"undeclared, up to the limit", -1, []int{4*mib + 1, 4*mib - 1}, []int64{8 * mib, 8 * mib}, 8 * mib},
		{"declared, 100 KiB", 100 << 10, []int{10, 100<<10 - 11}, []int64{100 << 10, 100 << 10}, 100 << 10},
		// A declared length reserves nothing by itself: 60 bytes of requests that
		// declared 8 MiB each took everybody's budget.
		{"declared, 5 MiB", 5 * mib, []int{1, mib - 1, 1, 4*mib - 2}, []int64{mib, mib, 2 * mib, 5 * mib}, 5 * mib},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			in, out := io.Pipe()
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			req, err := http.NewRequestWithContext(ctx, http.MethodPost, rg.URL+"/acme/s.priv", in)
			if err != nil {
				t.Fatal(err)
			}
			req.ContentLength = tt.declared
			req.Header.Set("Authorization", "Bearer "+rg.Keys[key])
			done := make(chan int, 1)
			go func() {
				res, err := client().Do(req)
				if err != nil {
					done <- 0
					return
				}
				_ = res.Body.Close()
				done <- res.StatusCode
			}()
			sent := 0
			for i, n := range tt.send {
				if _, err := out.Write(make([]byte, n)); err != nil {
					t.Fatal(err)
				}
				sent += n
				poll(t, fmt.Sprintf("%d reserved after %d bytes", tt.want[i], sent), func() bool { return rg.Budget.Used() == tt.want[i] })
			}
			if rest := int(tt.whole) - sent; rest > 0 {
				_, _ = out.Write(make([]byte, rest))
			}
			_ = out.Close()
			<-held
			if got := rg.Budget.Used(); got != tt.whole {
				t.Errorf("%d held while the node has it, want %d", got, tt.whole)
			}
			leave <- struct{}{}
			if status := <-done; status != http.StatusOK {
				t.Errorf("status %d", status)
			}
			poll(t, "the budget given back", func() bool { return rg.Budget.Used() == 0 })
		})
	}
}

// Facts U5-U7, U10, B6: a body that finds no room waits, then is refused and read to
// its end; one whose room comes within the wait passes; small ones go on.
func TestBudgetExhausted(t *testing.T) {
	const mib = 1 << 20
	rg, spy := newSpyRig(t, func(o *Options) {
		o.Budget = NewBodyBudget(8 * mib)
		o.Pace.BudgetWait = 100 * time.Millisecond
	}, nil)
	budget := rg.Options.Budget
	other := &reservation{budget: budget}
	if !tryResize(t, other, 6*mib) {
		t.Fatal("no room for the first")
	}
	post := func(n int, declared bool) answer {
		var in io.Reader = bytes.NewReader(make([]byte, n))
		if !declared {
			in = undeclared{in}
		}
		return send(t, http.MethodPost, rg.URL+"/acme/s.priv", rg.Keys[key], in)
	}
	for _, declared := range []bool{true, false} {
		start := time.Now()
		res := post(3*mib, declared)
		if res.StatusCode != http.StatusServiceUnavailable || res.code() != "UPLOAD_BUDGET_EXHAUSTED" || res.Header.Get("Retry-After") != "1" {
			t.Errorf("declared %t: got %d %s %v", declared, res.StatusCode, res.Text, res.Header)
		}
		if took := time.Since(start); took < 100*time.Millisecond {
			t.Errorf("declared %t: refused after %s, want the wait first", declared, took)
		}
		poll(t, "the refused body's claim given back", func() bool { return budget.Used() == 6*mib })
		if _, n := spy.last(); n != 0 {
			t.Fatalf("%d refused bodies reached the pool", n)
		}
	}
	if res := post(mib, true); res.StatusCode != http.StatusOK {
		t.Errorf("a small body with headroom left: %d %s", res.StatusCode, res.Text)
	}
	// Room that comes while a body waits; the wait is long, so that it is not missed.
	o := rg.Options
	o.Pace.BudgetWait = 20 * time.Second
	rg.Gateway.Swap(o)
	done := make(chan answer, 1)
	go func() { done <- post(3*mib, true) }()
	poll(t, "the third body waits", func() bool { return waiting(budget) })
	other.release()
	if res := <-done; res.StatusCode != http.StatusOK {
		t.Errorf("after room was made: %d %s", res.StatusCode, res.Text)
	}
	poll(t, "the budget given back", func() bool { return budget.Used() == 0 })
}

// waiting reports whether somebody waits for the share of large bodies: then
// even nothing cannot be taken at once.
func waiting(b *BodyBudget) bool {
	return !b.large.TryAcquire(0)
}

// 0 is closed, for bodies of any framing; what has no body is no upload.
func TestRequestBytesZero(t *testing.T) {
	rg, spy := newSpyRig(t, nil, func(l *tenant.Limits) { l.RequestBytes = 0 })
	for _, in := range []io.Reader{strings.NewReader("x"), undeclared{strings.NewReader("x")}} {
		res := send(t, http.MethodPost, rg.URL+"/acme/s.priv", rg.Keys[key], in)
		if res.StatusCode != http.StatusRequestEntityTooLarge || res.Header.Get(maxRequestBytesHeader) != "0" {
			t.Errorf("%T: got %d %s %v", in, res.StatusCode, res.Text, res.Header)
		}
	}
	if _, n := spy.last(); n != 0 {
		t.Errorf("%d bodies reached the pool", n)
	}
	if res := rg.Do(t, http.MethodPost, "/acme/s.priv", key, "", "Stream-Closed", "true"); res.StatusCode != http.StatusOK {
		t.Errorf("a close without a body: %d %s", res.StatusCode, res.Text)
	}
}

// Facts B7, U13, F14: bodies that stall, trickle, break or are left in the middle: the
// right answer, nothing at the node, nothing held, and no next request on a
// connection whose framing is lost.
func TestBodiesThatDoNotCome(t *testing.T) {
	quick := Pace{Stall: 50 * time.Millisecond}
	slow := Pace{Window: 60 * time.Millisecond, MinBytes: 1 << 20}
	tests := []struct {
		name   string
		pace   Pace
		body   string // framing and what comes of the body
		leaves bool
		status int
		code   string
	}{
		{"silent, declared", quick, "Content-Length: 10\r\n\r\n", false, 408, "BODY_TOO_SLOW"},
		{"silent, chunked", quick, "Transfer-Encoding: chunked\r\n\r\n", false, 408, "BODY_TOO_SLOW"},
		{"stops midway, declared", quick, "Content-Length: 10\r\n\r\nabc", false, 408, "BODY_TOO_SLOW"},
		{"stops midway, chunked", quick, "Transfer-Encoding: chunked\r\n\r\n5\r\nab", false, 408, "BODY_TOO_SLOW"},
		{"stops before the last chunk", quick, "Transfer-Encoding: chunked\r\n\r\n2\r\nab\r\n", false, 408, "BODY_TOO_SLOW"},
		{"stops in a large one", quick, "Content-Length: 3000000\r\n\r\n" + strings.Repeat("x", 2_000_000), false, 408, "BODY_TOO_SLOW"},
		{"below the rate", slow, "Content-Length: 8000000\r\n\r\n", false, 408, "BODY_TOO_SLOW"},
		{"left before the body", Pace{}, "Content-Length: 10\r\n\r\n", true, 400, "BODY_UNREADABLE"},
		{"left midway", Pace{}, "Content-Length: 10\r\n\r\nabc", true, 400, "BODY_UNREADABLE"},
		{"left before the last chunk", Pace{}, "Transfer-Encoding: chunked\r\n\r\n2\r\nab\r\n", true, 400, "BODY_UNREADABLE"},
		{"chunk size is no number", Pace{}, "Transfer-Encoding: chunked\r\n\r\nzz\r\nab\r\n0\r\n\r\n", false, 400, "BODY_UNREADABLE"},
		{"chunk longer than it says", Pace{}, "Transfer-Encoding: chunked\r\n\r\n2\r\nabcdef\r\n0\r\n\r\n", false, 400, "BODY_UNREADABLE"},
		{"chunk size beyond a number", Pace{}, "Transfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\nab\r\n0\r\n\r\n", false, 400, "BODY_UNREADABLE"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			rg := newRig(t, rigOptions{change: func(o *Options) { o.Pace = tt.pace }})
			conn := rg.dial(t)
			rg.write(t, conn, "POST /acme/s.priv HTTP/1.1\r\nHost: gw\r\nContent-Type: application/json\r\nAuthorization: Bearer "+rg.Keys[key]+"\r\n"+tt.body)
			if tt.pace == slow {
				feed(t, conn)
			}
			if tt.leaves {
				closeWrite(t, conn)
			}
			br := bufio.NewReader(conn)
			res := readAnswer(t, br, http.MethodPost)
			if res.StatusCode != tt.status || res.code() != tt.code || !res.Close {
				t.Errorf("got %d %s, close %t; want %d %s and the end", res.StatusCode, res.Text, res.Close, tt.status, tt.code)
			}
			if _, err := br.ReadByte(); err == nil {
				t.Error("the connection goes on")
			}
			if n := rg.Cluster.Hits(); n != 0 {
				t.Errorf("the node saw %d requests, want none", n)
			}
			poll(t, "the budget given back", func() bool { return rg.Budget.Used() == 0 })
		})
	}
}

// closeWrite says that nothing more comes, and goes on reading.
func closeWrite(t testing.TB, conn net.Conn) {
	t.Helper()
	if tcp, ok := conn.(*net.TCPConn); !ok || tcp.CloseWrite() != nil {
		t.Fatal("cannot end one direction only")
	}
}

// The same over HTTP/2, where the stream ends and the connection does not.
func TestSlowBodyOverHTTP2(t *testing.T) {
	rg := newRig(t, rigOptions{change: func(o *Options) { o.Pace = Pace{Stall: 50 * time.Millisecond} }})
	c := protocols(t)["h2"]
	in, out := io.Pipe()
	defer func() { _ = out.Close() }()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, rg.URL+"/acme/s.priv", in)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+rg.Keys[key])
	go func() { _, _ = out.Write([]byte("abc")) }()
	res, err := c.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	text, _ := io.ReadAll(res.Body)
	_ = res.Body.Close()
	if res.StatusCode != http.StatusRequestTimeout || !strings.Contains(string(text), "BODY_TOO_SLOW") || res.Header.Get("Connection") != "" {
		t.Errorf("got %d %s %v", res.StatusCode, text, res.Header)
	}
	if n := rg.Cluster.Hits(); n != 0 {
		t.Errorf("the node saw %d requests, want none", n)
	}
	if res := do(t, c, http.MethodGet, rg.URL+"/acme/s.priv?offset=-1", rg.Keys[key]); res.StatusCode != http.StatusOK {
		t.Errorf("the next request on the connection: %d", res.StatusCode)
	}
	poll(t, "the budget given back", func() bool { return rg.Budget.Used() == 0 })
}

// The body that was read under a deadline leaves none behind: an answer that
// comes later than the stall limit, and a next request after it, are not cut.
func TestNoDeadlineStaysBehind(t *testing.T) {
	rg := newRig(t, rigOptions{change: func(o *Options) { o.Pace = Pace{Stall: 50 * time.Millisecond, DrainStall: 50 * time.Millisecond} }})
	rg.Cluster.Node(0).SetFault(ursulatest.Delay(150 * time.Millisecond))
	conn := rg.dial(t)
	br := bufio.NewReader(conn)
	for range 3 {
		rg.write(t, conn, "POST /acme/s.priv HTTP/1.1\r\nHost: gw\r\nContent-Type: application/json\r\nAuthorization: Bearer "+rg.Keys[key]+"\r\nContent-Length: 2\r\n\r\n{}")
		if res := readAnswer(t, br, http.MethodPost); res.StatusCode != http.StatusNoContent || res.Close {
			t.Fatalf("got %d %s, close %t", res.StatusCode, res.Text, res.Close)
		}
		rg.write(t, conn, "POST /acme/s.priv HTTP/1.1\r\nHost: gw\r\nContent-Length: 2\r\n\r\n{}")
		if res := readAnswer(t, br, http.MethodPost); res.StatusCode != http.StatusUnauthorized || res.Close {
			t.Fatalf("got %d %s, close %t", res.StatusCode, res.Text, res.Close)
		}
	}
}
