package gateway

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	"sluice/internal/refusal"
)

// ledger is a Lifecycle that notes what it is told.
type ledger struct {
	incarnation string // that a DELETE is for
	refuses     error

	mu      sync.Mutex
	changes []StreamChange
	told    []string // "begin", "end 201 CODE", "unsent", in their order
}

func (l *ledger) note(format string, args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.told = append(l.told, fmt.Sprintf(format, args...))
}

// Begin implements Lifecycle.
func (l *ledger) Begin(_ context.Context, c StreamChange) (Attempt, error) {
	l.note("begin")
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.refuses != nil {
		return nil, l.refuses
	}
	l.changes = append(l.changes, c)
	return &noted{l, c}, nil
}

// Look implements Lifecycle.
func (l *ledger) Look(context.Context, StreamChange) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.refuses
}

func (l *ledger) take() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	told := l.told
	l.told = nil
	return told
}

// noted is an Attempt of a ledger.
type noted struct {
	*ledger
	change StreamChange
}

func (n *noted) Incarnation() string {
	if !n.change.Remove {
		return ""
	}
	return n.incarnation
}

func (n *noted) End(_ context.Context, status int, _ http.Header, code string) {
	n.note("end %d %s", status, code)
}

func (n *noted) Unsent(context.Context) { n.note("unsent") }

func protocol(l *ledger) rigOptions {
	return rigOptions{change: func(o *Options) { o.Lifecycle = l }}
}

const twoHundredOne = "201 Created"

// Where clients make and delete streams themselves, a key or token may do so that writes and
// reaches the name, and nobody else; what may not is told as with any write, and nothing is
// written down of it.
func TestWhoMakesStreams(t *testing.T) {
	l := &ledger{}
	rg, u := newUpRig(t, respond(whole(twoHundredOne, "Stream-Incarnation: 7\r\nLocation: /acme/s.new\r\n", "")), protocol(l))
	for _, name := range []string{"full", "read", "other.full", "narrowed", "covering", "agent"} {
		rg.Keys[name+" token"] = rg.token(t, name)
	}
	for _, tc := range []struct {
		credentials []string
		stream      string
		status      int
		code        refusal.Code
	}{
		{[]string{"full", "full token", "agent token"}, "/acme/s.new", 201, ""},
		{[]string{"full", "covering", "covering token"}, "/acme/s.missing", 201, ""},
		{[]string{"full", "full token"}, "/acme/s.pub", 201, ""},
		{[]string{"covering", "covering token", "narrowed", "narrowed token"}, "/acme/s.new", 403, refusal.Forbidden},
		{[]string{"read", "read token", "other.full", "other.full token"}, "/acme/s.new", 403, refusal.Forbidden},
		{[]string{"read", "read token", "other.full", "other.full token"}, "/acme/s.pub", 403, refusal.Forbidden},
		{[]string{"", "agent", "unknown", "revoked", "malformed"}, "/acme/s.new", 401, refusal.InvalidCredential},
		{[]string{"", "agent"}, "/acme/s.pub", 401, refusal.InvalidCredential},
		{[]string{"expired"}, "/acme/s.new", 401, refusal.CredentialExpired},
		{[]string{"poor.full"}, "/poor/s.new", 402, refusal.PaymentRequired},
		{[]string{"gone.full"}, "/gone/s.new", 403, refusal.AccountRevoked},
	} {
		for _, credential := range tc.credentials {
			for _, method := range []string{http.MethodPut, http.MethodDelete} {
				before := len(u.requests())
				res := rg.Do(t, method, tc.stream, credential, "", "Content-Type", rigType)
				sent := len(u.requests()) - before
				if res.StatusCode != tc.status || res.code() != string(tc.code) {
					t.Errorf("%s %s by %q: %d %s, want %d %s", method, tc.stream, credential, res.StatusCode, res.Text, tc.status, tc.code)
				}
				want := []string(nil)
				if tc.status == 201 {
					want = []string{"begin", "end 201 "}
				}
				if told := l.take(); !slices.Equal(told, want) || sent != len(want)/2 {
					t.Errorf("%s %s by %q: %d requests at the node, written down %q", method, tc.stream, credential, sent, told)
				}
			}
		}
	}
	rg.Do(t, http.MethodPut, "/acme/s.new", key, "", "Content-Type", "text/csv", requestIDHeader, "mine")
	got := l.changes[len(l.changes)-1]
	if got.Account != "acme" || got.Stream != "new" || got.Remove || got.ContentType != "text/csv" || got.KeyID != "acme/full" ||
		!got.Client.IsLoopback() || got.RequestID != "mine" || got.Deadline.IsZero() {
		t.Errorf("written down: %+v", got)
	}
}

// What a node answers is written down before the client hears of it, with the code of its
// error; the client gets it whole, under the stream's own URL.
func TestAnswersAreWrittenDown(t *testing.T) {
	for _, tc := range []struct{ method, status, body, told string }{
		{http.MethodPut, "201 Created", "", "end 201 "},
		{http.MethodPut, "200 OK", "", "end 200 "},
		{http.MethodPut, "409 Conflict", `{"error":{"code":"STREAM_ALREADY_EXISTS_CONFLICT","message":"m"}}`, "end 409 STREAM_ALREADY_EXISTS_CONFLICT"},
		{http.MethodPut, "400 Bad Request", "no JSON", "end 400 "},
		{http.MethodPut, "503 Service Unavailable", `{"error":{"code":"NO_LEADER","message":"m"}}`, "end 503 NO_LEADER"},
		{http.MethodPut, "500 Internal Server Error", strings.Repeat("x", 3*maxErrorBody), "end 500 "},
		{http.MethodDelete, "204 No Content", "", "end 204 "},
		{http.MethodDelete, "404 Not Found", `{"error":{"code":"STREAM_NOT_FOUND","message":"m"}}`, "end 404 STREAM_NOT_FOUND"},
	} {
		t.Run(tc.method+" "+tc.status, func(t *testing.T) {
			l := &ledger{}
			rg, u := newUpRig(t, func(c *upConn, _ *upRequest) {
				if told := l.take(); !slices.Equal(told, []string{"begin"}) {
					t.Errorf("when the node got it: %q", told)
				}
				text := whole(tc.status, "Stream-Incarnation: 7\r\nLocation: /acme/s.new\r\nStream-TTL: 60\r\n", tc.body)
				if tc.status[:3] == "204" {
					text = "HTTP/1.1 204 No Content\r\n\r\n"
				}
				c.say(text)
			}, protocol(l))
			res := rg.Do(t, tc.method, "/acme/s.new", key, "first", "Content-Type", rigType, "Stream-TTL", "60", "Stream-Closed", "true",
				"Stream-Forked-From", "/other/s.priv", "Stream-Fork-Offset", "0")
			if told := l.take(); !slices.Equal(told, []string{tc.told}) {
				t.Errorf("written down %q, want %q", told, tc.told)
			}
			if res.Status != tc.status || res.Text != tc.body {
				t.Errorf("%s, %d bytes", res.Status, len(res.Text))
			}
			location := ""
			if tc.method == http.MethodPut && res.StatusCode < 300 {
				location = rigOrigin + "/acme/s.new"
			}
			if got := res.Header.Get("Location"); got != location {
				t.Errorf("Location %q, want %q", got, location)
			}
			got := u.requests()[0]
			if got.Body != "first" || got.Header.Get("Stream-TTL") != "60" || got.Header.Get("Stream-Closed") != "true" {
				t.Errorf("the node got %q %v", got.Body, got.Header)
			}
			if strings.Contains(got.Head, "Fork") {
				t.Errorf("a fork's source went to the node: %s", got.Head)
			}
		})
	}
}

// What has no answer ends nothing, unless it surely reached no node.
func TestUnansweredChanges(t *testing.T) {
	for name, tc := range map[string]struct {
		script func(*upConn, *upRequest)
		nodes  []string
		status int
		code   refusal.Code
		told   []string
	}{
		"cut":         {func(c *upConn, _ *upRequest) { _ = c.Close() }, nil, 502, refusal.UpstreamFailed, []string{"begin"}},
		"half a head": {func(c *upConn, _ *upRequest) { c.say("HTTP/1.1 201 Cre"); _ = c.Close() }, nil, 502, refusal.UpstreamFailed, []string{"begin"}},
		"unreachable": {nil, []string{"http://127.0.0.1:1"}, 503, refusal.UpstreamUnreachable, []string{"begin", "unsent"}},
	} {
		t.Run(name, func(t *testing.T) {
			l := &ledger{}
			o := protocol(l)
			var rg *rig
			if tc.nodes != nil {
				o.nodes = tc.nodes
				rg = newRig(t, o)
			} else {
				rg, _ = newUpRig(t, tc.script, o)
			}
			res := rg.Do(t, http.MethodPut, "/acme/s.new", key, "first", "Content-Type", rigType)
			if res.StatusCode != tc.status || res.code() != string(tc.code) {
				t.Errorf("%d %s", res.StatusCode, res.Text)
			}
			if told := l.take(); !slices.Equal(told, tc.told) {
				t.Errorf("written down %q", told)
			}
		})
	}
}

// A client that leaves before it is answered leaves the outcome open.
func TestClientLeavesAChange(t *testing.T) {
	l := &ledger{}
	got := make(chan *upConn, 1)
	rg, _ := newUpRig(t, func(c *upConn, _ *upRequest) { got <- c }, protocol(l))
	conn := rg.dial(t)
	rg.write(t, conn, "PUT /acme/s.new HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {key}\r\nContent-Length: 0\r\n\r\n")
	c := <-got
	_ = conn.Close()
	<-c.gone
	poll(t, "its line", func() bool {
		return slices.ContainsFunc(rg.requestLines(t), func(line map[string]any) bool { return line["end"] == string(endClientClosed) })
	})
	if told := l.take(); !slices.Equal(told, []string{"begin"}) {
		t.Errorf("written down %q", told)
	}
}

// What may not be begun goes to no node, with the refusal that says why.
func TestChangesThatMayNotBegin(t *testing.T) {
	for code, status := range map[refusal.Code]int{refusal.StreamTaken: 409, refusal.StoreUnavailable: 503, refusal.Declared: 409} {
		l := &ledger{refuses: refusal.New(code, nil).With("Retry-After", "7")}
		rg, u := newUpRig(t, respond(whole(twoHundredOne, "", "")), protocol(l))
		res := rg.Do(t, http.MethodPut, "/acme/s.new", key, "first", "Content-Type", rigType)
		if res.StatusCode != status || res.code() != string(code) || res.Header.Get("Retry-After") != "7" || len(u.requests()) != 0 {
			t.Errorf("%d %s, %d requests", res.StatusCode, res.Text, len(u.requests()))
		}
	}
}

// A DELETE is for the incarnation that is known, so that a late one takes nothing that was
// made since; where the node has another, for that. A client that names one is believed.
func TestDeleteIsForAnIncarnation(t *testing.T) {
	for _, tc := range []struct {
		name, known, own string
		has              string // at the node
		sent             []string
		status           int
		told             string
	}{
		{"known", "7", "", "7", []string{"7"}, 204, "end 204 "},
		{"not known", "", "", "7", []string{""}, 204, "end 204 "},
		{"another", "7", "", "8", []string{"7", "8"}, 204, "end 204 "},
		{"the client's own", "7", "6", "7", []string{"6"}, 412, "end 412 INCARNATION_MISMATCH"},
		{"moving on", "7", "", "moves", []string{"7", "8", "9", ""}, 204, "end 204 "},
	} {
		t.Run(tc.name, func(t *testing.T) {
			l := &ledger{incarnation: tc.known}
			n := 7
			rg, u := newUpRig(t, func(c *upConn, r *upRequest) {
				want := r.Header.Get(incarnationHeader)
				if want == "" || want == tc.has {
					c.say("HTTP/1.1 204 No Content\r\n\r\n")
					return
				}
				has := tc.has
				if has == "moves" {
					n++
					has = fmt.Sprint(n)
				}
				c.say(whole("412 Precondition Failed", "Stream-Incarnation: "+has+"\r\n", `{"error":{"code":"INCARNATION_MISMATCH","message":"m"}}`))
			}, protocol(l))
			var headers []string
			if tc.own != "" {
				headers = []string{incarnationHeader, tc.own}
			}
			res := rg.Do(t, http.MethodDelete, "/acme/s.priv", key, "", headers...)
			var sent []string
			for _, r := range u.requests() {
				sent = append(sent, r.Header.Get(incarnationHeader))
			}
			if res.StatusCode != tc.status || !slices.Equal(sent, tc.sent) {
				t.Errorf("%d %s, sent for %q", res.StatusCode, res.Text, sent)
			}
			if told := l.take(); !slices.Equal(told, []string{"begin", tc.told}) {
				t.Errorf("written down %q", told)
			}
		})
	}
}

// Who makes streams may know when they end.
func TestHeadTellsOfAStreamsEnd(t *testing.T) {
	for _, protocolMode := range []bool{false, true} {
		o := rigOptions{}
		if protocolMode {
			o = protocol(&ledger{})
		}
		rg, _ := newUpRig(t, respond("HTTP/1.1 200 OK\r\nStream-TTL: 60\r\nStream-Expires-At: 2099-01-01T00:00:00Z\r\nContent-Length: 0\r\n\r\n"), o)
		res := rg.Do(t, http.MethodHead, "/acme/s.priv", key, "")
		if tells := res.Header.Get("Stream-TTL") == "60" && res.Header.Get("Stream-Expires-At") != ""; tells != protocolMode {
			t.Errorf("protocol %t: %v", protocolMode, res.Header)
		}
	}
}
