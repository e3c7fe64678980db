package gateway

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"sluice/internal/tenant"
)

// framings write the same body in both of HTTP/1.1's ways.
func framings(body string) map[string]string {
	return map[string]string{
		"length":  fmt.Sprintf("Content-Length: %d\r\n\r\n%s", len(body), body),
		"chunked": fmt.Sprintf("Transfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n1\r\n \r\n0\r\nX-Trailer: dropped\r\n\r\n", len(body), body),
	}
}

// Facts B1, B5, B6: a client that sends its whole body before it reads never got the
// refusal, since the connection was reset under it; or it got the refusal and
// the connection was lost to the next request.
func TestRefusedBodyKeepsTheConnection(t *testing.T) {
	body := `"` + strings.Repeat("x", 1<<20) + `"`
	refused := func(request string, status int, code string) refusedBody {
		return refusedBody{request: request, status: status, code: code, next: http.StatusOK}
	}
	with := func(c refusedBody, o rigOptions) refusedBody {
		c.rig = o
		if c.status == http.StatusTooManyRequests { // strangers' allowance has the same size
			c.next = c.status
		}
		return c
	}
	const post = "POST /acme/s.priv HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
	for name, tc := range map[string]refusedBody{
		"bad path":       refused("POST /acme/s.priv/ HTTP/1.1\r\nHost: x\r\n", 400, "INVALID_REQUEST"),
		"bad query":      refused("POST /acme/s.priv?a;b HTTP/1.1\r\nHost: x\r\n", 400, "INVALID_QUERY"),
		"body on a read": refused("GET /acme/s.pub HTTP/1.1\r\nHost: x\r\n", 400, "INVALID_REQUEST"),
		"no credential":  refused(post, 401, "INVALID_CREDENTIAL"),
		"bad credential": refused(post+"Authorization: Bearer x\r\n", 401, "INVALID_CREDENTIAL"),
		"unpaid":         refused("POST /poor/s.priv HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {poor.full}\r\n", 402, "PAYMENT_REQUIRED"),
		"reads only":     refused(post+"Authorization: Bearer {read}\r\n", 403, "FORBIDDEN"),
		"lifecycle":      refused("PUT /acme/s.new HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {full}\r\n", 403, "STREAM_LIFECYCLE"),
		"no route":       refused("POST /acme HTTP/1.1\r\nHost: x\r\n", 404, "NOT_FOUND"),
		"no method":      refused("PATCH /acme/s.priv HTTP/1.1\r\nHost: x\r\n", 405, "METHOD_NOT_ALLOWED"),
		"no directory":   with(refused(post+"Authorization: Bearer {full}\r\n", 503, "AUTHENTICATION_UNAVAILABLE"), without(faultyDirectory{keys: true})),
		"over the rate":  with(refused(post+"Authorization: Bearer {full}\r\n", 429, "RATE_LIMITED"), rigOptions{limits: func(l *tenant.Limits) { l.Burst = 0 }}),
		"B6 over the budget": with(refused(post+"Authorization: Bearer {full}\r\n", 503, "UPLOAD_BUDGET_EXHAUSTED"), rigOptions{change: func(o *Options) {
			o.Budget = NewBodyBudget(1000)
			o.Pace.BudgetWait = 10 * time.Millisecond
		}}),
	} {
		for framing, sent := range framings(body) {
			t.Run(name+"/"+framing, func(t *testing.T) {
				t.Parallel()
				tc.run(t, sent)
			})
		}
	}
}

type refusedBody struct {
	request string
	status  int
	code    string
	rig     rigOptions
	next    int // the status of a public read afterwards
}

func (tc refusedBody) run(t *testing.T, sent string) {
	rg := newRig(t, tc.rig)
	conn := rg.dial(t)
	br := bufio.NewReader(conn)
	// All of it is written before a byte is read, as simple clients do.
	rg.write(t, conn, rg.fill(tc.request)+sent)
	res := readAnswer(t, br, "POST")
	if res.StatusCode != tc.status || res.code() != tc.code || res.Close {
		t.Fatalf("got %d %s, close %t; want %d %s and an open connection", res.StatusCode, res.Text, res.Close, tc.status, tc.code)
	}
	if seen := rg.reached(); len(seen) != 0 {
		t.Errorf("the node saw %q, want nothing", seen)
	}
	rg.write(t, conn, "HEAD /acme HTTP/1.1\r\nHost: x\r\n\r\n")
	if next := readAnswer(t, br, "HEAD"); next.StatusCode != http.StatusNotFound {
		t.Errorf("the next request: %d", next.StatusCode)
	}
	rg.write(t, conn, "GET /acme/s.pub?offset=-1 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
	if next := readAnswer(t, br, "GET"); next.StatusCode != tc.next {
		t.Errorf("a read on the same connection: %d %s, want %d", next.StatusCode, next.Text, tc.next)
	}
}

// fill writes keys for {name}.
func (rg *rig) fill(text string) string {
	for name, k := range rg.Keys {
		text = strings.ReplaceAll(text, "{"+name+"}", k)
	}
	return text
}

// H12: a drain before the refusal sent the client a 100 and had it upload in
// vain; or the connection went on and the withheld body was read as a request.
func TestExpectRefused(t *testing.T) {
	const post = "POST /acme/s.priv HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nExpect: 100-continue\r\n"
	o := pace(Pace{DrainStall: 20 * time.Millisecond})
	o.limits = smallRequests
	rg := newRig(t, o)
	for name, tc := range map[string]struct {
		request string
		status  int
	}{
		"bad path":       {strings.Replace(post, "s.priv", "s.priv/", 1), 400},
		"body on a read": {strings.Replace(post, "POST", "GET", 1), 400},
		"no credential":  {post, 401},
		"bad credential": {post + "Authorization: Bearer x\r\n", 401},
		"unpaid":         {strings.Replace(post, "acme", "poor", 1) + "Authorization: Bearer {poor.full}\r\n", 402},
		"reads only":     {post + "Authorization: Bearer {read}\r\n", 403},
		"no route":       {strings.Replace(post, "s.priv", "priv", 1), 404},
		"no method":      {strings.Replace(post, "POST", "PATCH", 1), 405},
		"too large":      {post + "Authorization: Bearer {full}\r\nX-Long: yes\r\n", 413},
	} {
		lengths := map[string]string{"length": "Content-Length: 5000\r\n\r\n", "chunked": "Transfer-Encoding: chunked\r\n\r\n"}
		if tc.status == http.StatusRequestEntityTooLarge {
			delete(lengths, "chunked") // nothing says yet that it is
		}
		for framing, head := range lengths {
			t.Run(name+"/"+framing, func(t *testing.T) {
				conn := rg.dial(t)
				rg.write(t, conn, rg.fill(tc.request)+head)
				// Reading to the end proves that the connection is closed, too.
				text, err := io.ReadAll(conn)
				if err != nil {
					t.Fatalf("%q: %v", text, err)
				}
				answer, _ := cutHead(t, string(text))
				if !strings.HasPrefix(answer, fmt.Sprintf("HTTP/1.1 %d ", tc.status)) || !strings.Contains(answer, "Connection: close") || strings.Count(string(text), "HTTP/1.1 ") != 1 {
					t.Errorf("got %q, want %d at once, no 100, and the end", text, tc.status)
				}
			})
		}
	}
	if seen := rg.reached(); len(seen) != 0 {
		t.Errorf("the node saw %q, want nothing", seen)
	}
}

// H12, the other way about: what is admitted gets its 100, and goes on.
func TestExpectAdmitted(t *testing.T) {
	rg := newRig(t, rigOptions{})
	conn := rg.dial(t)
	br := bufio.NewReader(conn)
	rg.write(t, conn, privHead+"Expect: 100-continue\r\nContent-Length: 7\r\n\r\n")
	if line, err := br.ReadString('\n'); err != nil || line != "HTTP/1.1 100 Continue\r\n" {
		t.Fatalf("got %q, %v", line, err)
	}
	if seen := rg.reached(); len(seen) != 0 {
		t.Errorf("the node saw %q before the body", seen)
	}
	if _, err := br.ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	rg.write(t, conn, `{"n":1}`)
	if res := readAnswer(t, br, "POST"); res.StatusCode != http.StatusNoContent || res.Close {
		t.Errorf("got %d %s, close %t", res.StatusCode, res.Text, res.Close)
	}
}

// Facts B2, B3, B4: a refused body that stalls, trickles or never ends held its
// connection for as long as the client liked.
func TestRefusedBodyIsGivenUp(t *testing.T) {
	const post = "POST /acme/s.priv HTTP/1.1\r\nHost: x\r\n"
	small := pace(Pace{DrainStall: 20 * time.Second})
	change := small.change
	small.change = func(o *Options) {
		change(o)
		o.MaxRequestBytes = 1000
	}
	for name, tc := range map[string]struct {
		rig     rigOptions
		request string
		trickle bool
		fate    string
	}{
		"B2 stalls":               {pace(Pace{DrainStall: 30 * time.Millisecond}), "Content-Length: 100\r\n\r\n{", false, "cut"},
		"B2 stalls before a byte": {pace(Pace{DrainStall: 30 * time.Millisecond}), "Transfer-Encoding: chunked\r\n\r\n", false, "cut"},
		"B2 trickles":             {pace(Pace{DrainTotal: 50 * time.Millisecond}), "Content-Length: 8388608\r\n\r\n", true, "cut"},
		"B4 never ends":           {small, "Transfer-Encoding: chunked\r\n\r\n7d0\r\n" + strings.Repeat("x", 2000), false, "cut"},
		"B4 declared too large":   {small, "Content-Length: 1001\r\n\r\n", false, "unread"},
		"broken chunk":            {small, "Transfer-Encoding: chunked\r\n\r\nZZ\r\n", false, "cut"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rg := newRig(t, tc.rig)
			conn := rg.dial(t)
			rg.write(t, conn, post+tc.request)
			if tc.trickle {
				feed(t, conn)
			}
			res := readAnswer(t, bufio.NewReader(conn), "POST")
			if res.StatusCode != http.StatusUnauthorized || res.code() != "INVALID_CREDENTIAL" || !res.Close {
				t.Errorf("got %d %s, close %t; want 401 and the end", res.StatusCode, res.Text, res.Close)
			}
			if seen := rg.reached(); len(seen) != 0 {
				t.Errorf("the node saw %q, want nothing", seen)
			}
			if got := drained(t, rg, tc.fate); got != 1 {
				t.Errorf("%v bodies counted as %s, want 1", got, tc.fate)
			}
		})
	}
}

// feed sends bytes without end until the connection is closed.
func feed(t *testing.T, conn net.Conn) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			if _, err := io.WriteString(conn, " "); err != nil {
				return
			}
		}
	}()
	t.Cleanup(func() {
		_ = conn.Close()
		<-done
	})
}

func drained(t *testing.T, rg *rig, fate string) float64 {
	t.Helper()
	families, err := rg.Metrics.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range families {
		for _, m := range family.GetMetric() {
			if family.GetName() == "sluice_refused_bodies_total" && m.GetLabel()[0].GetValue() == fate {
				return m.GetCounter().GetValue()
			}
		}
	}
	return 0
}

// U07: a missing upstream was waited for. The issue gives 100 ms from a refused
// connection to the answer; the best of five is taken, since the machine may be
// busy with something else at any one of them.
func TestUnreachableWithin100ms(t *testing.T) {
	var lc net.ListenConfig
	l, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_, port, err := net.SplitHostPort(l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	// A port that was just free refuses connections.
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	for name, nodes := range map[string]int{"one node": 1, "three nodes": 3} {
		t.Run(name, func(t *testing.T) {
			urls := make([]string, nodes)
			for i := range urls {
				urls[i] = fmt.Sprintf("http://127.0.0.%d:%s", i+1, port)
			}
			rg := newRig(t, rigOptions{nodes: urls})
			shortest := time.Hour
			for range 5 {
				start := time.Now()
				res := rg.Do(t, "POST", "/acme/s.priv", key, `{"n":1}`, "Content-Type", rigType)
				shortest = min(shortest, time.Since(start))
				if res.StatusCode != http.StatusServiceUnavailable || res.code() != "UPSTREAM_UNREACHABLE" || res.Header.Get("Retry-After") != "1" {
					t.Fatalf("got %d %s %v", res.StatusCode, res.Text, res.Header)
				}
			}
			if shortest > 100*time.Millisecond {
				t.Errorf("the quickest of five answers took %v, want at most 100 ms", shortest)
			}
		})
	}
}

// brokenDirectory has a fault of the program where streams are looked up.
type brokenDirectory struct{ tenant.Directory }

func (brokenDirectory) Stream(context.Context, tenant.AccountID, tenant.StreamName) (*tenant.Stream, error) {
	panic("a fault of the program")
}

// H12, by another way out: a panic before the body was read left the connection
// to a client that withheld the body, for ever.
func TestPanicBeforeTheBodyLeavesNoConnection(t *testing.T) {
	rg := newRig(t, rigOptions{change: func(o *Options) {
		o.Directory, o.Pace.DrainStall = brokenDirectory{o.Directory}, 20*time.Millisecond
	}})
	conn := rg.dial(t)
	rg.write(t, conn, privHead+"Content-Length: 100\r\n\r\n")
	text, err := io.ReadAll(conn)
	if err != nil || !strings.HasPrefix(string(text), "HTTP/1.1 500 ") || !strings.Contains(string(text), `"INTERNAL"`) {
		t.Errorf("got %q, %v; want 500 and the end", text, err)
	}
	if seen := rg.reached(); len(seen) != 0 {
		t.Errorf("the node saw %q, want nothing", seen)
	}
}
