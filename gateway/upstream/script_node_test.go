package upstream

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strconv"
	"sync"
	"syscall"
	"time"
)

const (
	maxAskBody = 64 << 10
	askMark    = "?ask=" // in a request's target, before the number of the ask
	tagHeader  = "X-Tag"
)

// pattern is what bodies are slices of, each ask's from another place.
var pattern = bytes.Repeat([]byte("the quick brown fox jumps over the lazy dog 0123456789 "), 2*maxAskBody/50)

func (a ask) body(number int) []byte { return pattern[number : number+a.Size] }

// receipt is one request as one node got it. Its fields are guarded by trial.mu.
type receipt struct {
	ask, node, serial int
	link              *link
	kept              bool // its connection was there before
	at, last          time.Duration
	accepted          int // bytes that the connection took; a node may have them
	read              int // bytes that the node read
	head, total       int
	garbled           bool // other bytes than the ask's
	applied           bool
	answerHead        int  // bytes of the answer up to the end of its head; 0 = there is none
	heard             int  // bytes of it that came to the pool
	redirected        bool // the node sent it away, and the pool has heard so
	refuses           bool // its answer proves that nothing was applied
	answered          bool // the pool has heard the head
	answeredAt        time.Duration
	status            int
	text              string // the whole body of the answer, sent or not
	deed              deed
}

// reached tells whether the node may have a byte of it.
func (rc *receipt) reached() bool { return rc.accepted > 0 || rc.read > 0 }

// mayHave tells whether a node may have it and did not send it away.
func (rc *receipt) mayHave() bool { return rc.reached() && !rc.redirected }

func (rc *receipt) tag() string {
	return strconv.Itoa(rc.ask) + "." + strconv.Itoa(rc.node) + "." + strconv.Itoa(rc.serial)
}

// link is a connection to a scripted node, as the pool holds it.
type link struct {
	net.Conn
	trial   *trial
	node    *scriptedNode
	far     net.Conn
	arrived chan *receipt
	gone    chan struct{} // closed with the pool's end
	cut     chan struct{} // closed when the node goes down
	once    sync.Once
	cutOnce sync.Once
	ask     int           // that it was made for
	at      time.Duration // when
	count   int           // requests so far
	dropped bool          // the node ended it, and not the pool
	now     *receipt
}

// Write notes whose request is written: its first line is in the first bytes.
func (l *link) Write(p []byte) (int, error) {
	l.trial.mu.Lock()
	if number, ok := askOf(p); ok {
		l.now = l.trial.receive(l, number, p)
		l.count++
		l.arrived <- l.now
	}
	rc := l.now
	rc.last = l.trial.since()
	l.trial.mu.Unlock()
	n, err := l.Conn.Write(p)
	l.trial.mu.Lock()
	rc.accepted += n
	l.trial.mu.Unlock()
	return n, err
}

// Read notes what the pool hears of an answer: what it does not, proves nothing.
func (l *link) Read(p []byte) (int, error) {
	n, err := l.Conn.Read(p)
	l.trial.mu.Lock()
	defer l.trial.mu.Unlock()
	if rc := l.now; rc != nil && n > 0 {
		rc.heard += n
		if rc.answerHead > 0 && rc.heard >= rc.answerHead && !rc.answered {
			rc.answered, rc.answeredAt, rc.redirected = true, l.trial.since(), rc.deed.Say == sayRedirect
		}
	}
	return n, err
}

func (l *link) Close() error {
	l.once.Do(func() { close(l.gone) })
	return l.Conn.Close()
}

// askOf finds the ask that a written request line belongs to.
func askOf(p []byte) (int, bool) {
	line, _, ok := bytes.Cut(p[:min(len(p), 200)], []byte("\r\n"))
	_, rest, marked := bytes.Cut(line, []byte(askMark))
	if !ok || !marked || !bytes.HasSuffix(line, []byte(" HTTP/1.1")) {
		return 0, false
	}
	end := bytes.IndexAny(rest, "& ")
	number, err := strconv.Atoi(string(rest[:end]))
	return number, err == nil
}

// scriptedNode is a node in memory that does as the script says.
type scriptedNode struct {
	trial  *trial
	number int
	host   string
	deeds  []deed
	dials  []dialAct
	spells []spell
	links  []*link
	until  time.Duration // it is down until then, because a deed said so
}

// ill is what is wrong with the node now, and until when. trial.mu is held.
func (n *scriptedNode) ill(what illness) (until time.Duration, ok bool) {
	now := n.trial.since()
	if what == down && now < n.until {
		return n.until, true
	}
	for _, s := range n.spells {
		if s.What == what && s.From <= now && now < s.Until {
			return s.Until, true
		}
	}
	return 0, false
}

// kill cuts all connections.
func (n *scriptedNode) kill(until time.Duration) {
	n.trial.mu.Lock()
	n.until = max(n.until, until)
	links := n.links
	n.links = nil
	n.trial.mu.Unlock()
	for _, l := range links {
		l.hangUp(true)
	}
}

// hangUp ends the node's side of a connection.
func (l *link) hangUp(reset bool) {
	l.cutOnce.Do(func() {
		select {
		case <-l.gone:
		default:
			l.dropped = true
		}
		if w, ok := l.far.(*wireEnd); ok && reset {
			w.reset()
		}
		_ = l.far.Close()
		close(l.cut)
	})
}

var errBlackhole error = &net.OpError{Op: "dial", Net: "tcp", Err: dialTimeoutError{}}

type dialTimeoutError struct{}

func (dialTimeoutError) Error() string   { return "i/o timeout" }
func (dialTimeoutError) Timeout() bool   { return true }
func (dialTimeoutError) Temporary() bool { return true }

// dial is how the pool gets its connections.
func (t *trial) dial(ctx context.Context, _, address string) (net.Conn, error) {
	n := t.byHost[address]
	t.mu.Lock()
	var d dialAct
	if len(n.dials) > 0 {
		d, n.dials = n.dials[0], n.dials[1:]
	}
	after := len(t.receipts)
	t.mu.Unlock()
	late := d.After >= ConnectTimeout
	if err := t.sleep(ctx, nil, min(d.After, ConnectTimeout)); err != nil {
		return nil, err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	_, isDown := n.ill(down)
	number, ok := ctx.Value(askKey{}).(int)
	switch {
	case late:
		t.dialFailed(number, ok, n, after)
		return nil, errBlackhole
	case d.Refuse || isDown:
		t.dialFailed(number, ok, n, after)
		return nil, &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}
	}
	l := &link{trial: t, node: n, ask: number, at: t.since(), arrived: make(chan *receipt, 8), gone: make(chan struct{}), cut: make(chan struct{})}
	if d.Piped {
		l.Conn, l.far = net.Pipe()
	} else {
		l.Conn, l.far = newWire()
	}
	n.links = append(n.links, l)
	t.all = append(t.all, l)
	t.served.Go(func() { n.serve(l) })
	return l, nil
}

var errOver = errors.New("the trial is over")

// sleep waits for d; it ends early with ctx, with the trial, or with stop.
func (t *trial) sleep(ctx context.Context, stop <-chan struct{}, d time.Duration) error {
	if d <= 0 {
		return nil
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-stop:
		return net.ErrClosed
	case <-t.over:
		return errOver
	}
}

// RoundTrip answers probes and questions about the identity.
func (t *trial) RoundTrip(req *http.Request) (*http.Response, error) {
	n := t.byHost[req.URL.Host]
	for {
		t.mu.Lock()
		_, isDown := n.ill(down)
		until, isIll := n.ill(mute)
		if more, ok := n.ill(frozen); ok {
			until, isIll = max(until, more), true
		}
		t.mu.Unlock()
		if isDown {
			return nil, syscall.ECONNREFUSED
		}
		if !isIll {
			break
		}
		if err := t.sleep(req.Context(), nil, until-t.since()); err != nil {
			return nil, err
		}
	}
	header := http.Header{ProtocolHeader: {"11"}, ClusterIDHeader: {"scripted"}}
	return &http.Response{StatusCode: http.StatusNotFound, Header: header, Body: http.NoBody, Request: req}, nil
}

// thaw waits while the node is frozen.
func (n *scriptedNode) thaw() {
	n.trial.mu.Lock()
	until, ok := n.ill(frozen)
	n.trial.mu.Unlock()
	if ok {
		_ = n.trial.sleep(context.Background(), nil, until-n.trial.since())
	}
}

func (n *scriptedNode) serve(l *link) {
	reset := false
	defer func() { l.hangUp(reset) }()
	for {
		select {
		case rc := <-l.arrived:
			var goOn bool
			if goOn, reset = n.handle(l, rc); !goOn {
				return
			}
		case <-l.gone:
			return
		case <-l.cut:
			return
		case <-n.trial.over:
			return
		}
	}
}

// handle does with a request what its deed says.
func (n *scriptedNode) handle(l *link, rc *receipt) (goOn, reset bool) {
	t, a := n.trial, rc.deed
	n.thaw()
	most := rc.total
	if a.Stop > 0 {
		most = min(most, a.Stop-1)
	}
	if !n.take(l, rc, most) {
		return false, false
	}
	answer, head := rc.compose()
	t.mu.Lock()
	write := !t.script.Asks[rc.ask].Kind.read()
	if write && (a.Say == sayOK && rc.read >= rc.head || rc.read == rc.total && !a.Forget && !rc.refuses && a.Say != sayRedirect) {
		rc.applied = true
	}
	t.mu.Unlock()
	if t.sleep(context.Background(), l.cut, a.Wait) != nil {
		return false, false
	}
	n.thaw()
	if a.Cut > 0 && a.Cut-1 < len(answer) {
		answer = answer[:a.Cut-1]
	}
	t.mu.Lock()
	if a.Say != sayNothing {
		rc.answerHead = head
	}
	t.mu.Unlock()
	if a.Then == thenJunk && a.Say != sayNothing && a.Cut == 0 && len(answer) < 10_000 {
		answer += "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n" + tagHeader + ": junk\r\n\r\njunk"
	}
	if answer != "" {
		if _, err := io.WriteString(l.far, answer); err != nil {
			return false, false
		}
	}
	if t.sleep(context.Background(), l.cut, a.Pause) != nil {
		return false, false
	}
	switch a.Then {
	case thenKeep, thenJunk:
		return a.Say != sayNothing && a.Cut == 0 && n.take(l, rc, rc.total), false
	case thenHang:
		select {
		case <-l.gone:
		case <-l.cut:
		case <-t.over:
		}
	case thenDie:
		n.kill(t.since() + 2*time.Second)
	case thenClose, thenReset, endings:
	}
	return false, a.Then == thenReset
}

// take reads on until the node has that many bytes of the request.
func (n *scriptedNode) take(l *link, rc *receipt, most int) bool {
	t := n.trial
	buf, ok := buffers.Get().(*[]byte)
	if !ok {
		return false
	}
	defer buffers.Put(buf)
	for rc.read < most {
		k, err := l.far.Read((*buf)[:min(len(*buf), most-rc.read)])
		t.mu.Lock()
		for i := max(0, rc.head-rc.read); i < k && !rc.garbled; {
			at := rc.read + i - rc.head
			rc.garbled = !bytes.Equal((*buf)[i:k], t.script.Asks[rc.ask].body(rc.ask)[at:at+k-i])
			i = k
		}
		rc.read += k
		t.mu.Unlock()
		if err != nil {
			return false
		}
		n.thaw()
	}
	return true
}

var buffers = sync.Pool{New: func() any { b := make([]byte, 8<<10); return &b }}
