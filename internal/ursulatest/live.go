package ursulatest

import (
	"encoding/base64"
	"net/http"
	"strings"
	"time"
	"unicode/utf8"
)

// longPoll waits for bytes at an offset (facts §10).
func (n *Node) longPoll(r *request, p *readParams) *answer {
	opened, offset, a := n.open(r.target, p)
	if a != nil {
		return a
	}
	pinned := opened.incarnation
	if p.want != 0 {
		pinned = p.want
	}
	n.cluster.addTail(1)
	defer n.cluster.addTail(-1)
	timer := time.NewTimer(time.Duration(p.timeout) * time.Millisecond) //nolint:gosec // at most 60000
	defer timer.Stop()
	for {
		piece, changed, a := n.look(r.target, offset, max(p.limit, 1))
		switch {
		case a != nil:
			return a
		case mismatch(p.want, piece.incarnation) != nil:
			return mismatch(p.want, piece.incarnation)
		case len(piece.data) == 0 && piece.upToDate && piece.closed:
			return n.pollEmpty(piece, p)
		case len(piece.data) > 0:
			return piece.render(r, p.cursor, true)
		case piece.incarnation != pinned: // made anew while it waited
			return n.pollEmpty(piece, p)
		}
		select {
		case <-changed:
		case <-timer.C:
			return n.pollEmpty(piece, p)
		case <-r.Context().Done():
			panic(http.ErrAbortHandler)
		}
	}
}

// pollEmpty is the 204 of a long-poll: the time is over, or the end is reached.
func (n *Node) pollEmpty(piece slice, p *readParams) *answer {
	a := newAnswer(statusNoContent).setOffset(hNextOffset, piece.next).
		setIncarnation(piece.incarnation).flag(hUpToDate, true)
	if piece.closed {
		return a.flag(hClosed, true)
	}
	sent := ""
	if p.hasCursor {
		sent = p.cursor
	}
	return a.set(hCursor, nextCursor(piece.next, sent))
}

// open looks a stream up for a live read and resolves its offset.
func (n *Node) open(t target, p *readParams) (slice, uint64, *answer) {
	st := n.cluster.state
	st.mu.Lock()
	defer st.mu.Unlock()
	now := n.cluster.now()
	s, a := st.lookup(t, now)
	if a != nil {
		return slice{}, 0, a
	}
	s.renew(now, false)
	offset := p.offset
	if p.now {
		offset = s.tail()
	}
	return slice{incarnation: s.incarnation, media: s.media}, offset, nil
}

// look reads from offset and returns what to wait for when nothing is there.
func (n *Node) look(t target, offset, limit uint64) (slice, <-chan struct{}, *answer) {
	st := n.cluster.state
	st.mu.Lock()
	defer st.mu.Unlock()
	s, a := st.lookup(t, n.cluster.now())
	if a != nil {
		return slice{}, nil, a
	}
	piece, a := s.cut(offset, limit)
	return piece, s.changed, a
}

// sse streams a read as events until the closed end, an error or the client's
// leaving. It returns nil when it wrote its own answer.
func (n *Node) sse(r *request, p *readParams) *answer {
	opened, offset, a := n.open(r.target, p)
	if a != nil {
		return a
	}
	if a := mismatch(p.want, opened.incarnation); a != nil {
		return a
	}
	text := isText(opened.media)
	a = newAnswer(http.StatusOK).set(hContentType, "text/event-stream").
		set("Stream-Data-Content-Type", readMedia(opened.media)).
		set(hCacheControl, "no-cache, no-store").setIncarnation(opened.incarnation)
	limit := max(p.limit, 1)
	if text {
		limit = max(p.limit, utf8.UTFMax)
	} else {
		a.set("Stream-Sse-Data-Encoding", "base64")
	}
	n.cluster.addTail(1)
	defer n.cluster.addTail(-1)
	for name, values := range a.header {
		r.w.Header()[name] = values
	}
	r.w.WriteHeader(http.StatusOK)
	t := &tail{r: r, cursor: p.cursor, text: text, incarnation: opened.incarnation, offset: offset, limit: limit}
	t.run(n)
	return nil
}

// tail is one SSE session.
type tail struct {
	r           *request
	cursor      string
	text        bool
	incarnation uint64
	offset      uint64
	limit       uint64
}

func (t *tail) run(n *Node) {
	for first := true; ; first = false {
		piece, changed, a := n.look(t.r.target, t.offset, t.limit)
		if a == nil && piece.incarnation != t.incarnation {
			a = refuse(http.StatusPreconditionFailed, "INCARNATION_MISMATCH", "the stream was deleted and recreated, "+
				"or its history was rewritten (Stream-Incarnation)")
		}
		if a != nil {
			t.send("event: error\ndata:" + safeLine(string(a.body)) + "\n\n")
			return
		}
		if !first && len(piece.data) == 0 && !piece.closed {
			select {
			case <-changed:
				continue
			case <-t.r.Context().Done():
				panic(http.ErrAbortHandler) // a node that stops breaks the body off
			}
		}
		if t.text {
			piece.clamp()
		}
		t.offset = piece.next
		if !t.send(piece.event(t.text, t.cursor)) || piece.end() == endClosed {
			return
		}
	}
}

// send writes one event at once; false when the client left.
func (t *tail) send(event string) bool {
	if _, err := t.r.w.Write([]byte(event)); err != nil {
		return false
	}
	return http.NewResponseController(t.r.w).Flush() == nil
}

// isText tells the media types whose SSE data is sent as it is.
func isText(media string) bool {
	media, _, _ = strings.Cut(media, ";")
	media = strings.ToLower(strings.TrimSpace(media))
	return strings.HasPrefix(media, "text/") || media == "application/json"
}

// clamp ends a text read at a whole message or a whole code point.
func (p *slice) clamp() {
	size := len(p.data)
	if isJSON(p.media) && size > 0 && p.data[size-1] != '\n' {
		if i := strings.LastIndexByte(string(p.data), '\n'); i >= 0 {
			p.shorten(i + 1)
			return
		}
	}
	valid := 0
	for valid < size {
		c, width := utf8.DecodeRune(p.data[valid:])
		if c == utf8.RuneError && width <= 1 {
			break
		}
		valid += width
	}
	p.shorten(valid)
}

func (p *slice) shorten(size int) {
	if size == 0 || size == len(p.data) {
		return
	}
	p.data = p.data[:size]
	p.next = p.offset + uint64(len(p.data))
	p.upToDate = false
}

// event renders a read as the node does: a data event when there are bytes,
// then a control event; no space after a colon (facts §10).
func (p slice) event(text bool, cursor string) string {
	var b strings.Builder
	if len(p.data) > 0 {
		payload := strings.ToValidUTF8(string(p.data), "\uFFFD")
		if !text {
			payload = base64.StdEncoding.EncodeToString(p.data)
		}
		b.WriteString("event: data\n")
		for line := range strings.SplitSeq(payload, "\n") {
			b.WriteString("data:" + safeLine(line) + "\n")
		}
		b.WriteString("\n")
	}
	b.WriteString("event: control\ndata:{\"streamNextOffset\":\"" + padded(p.next) + `"`)
	if p.end() != endClosed {
		b.WriteString(`,"streamCursor":"` + nextCursor(p.next, cursor) + `"`)
	}
	if p.upToDate {
		b.WriteString(`,"upToDate":true`)
	}
	if p.end() == endClosed {
		b.WriteString(`,"streamClosed":true`)
	}
	b.WriteString("}\n\n")
	return b.String()
}

// safeLine drops what would break an SSE line.
func safeLine(s string) string {
	return strings.NewReplacer("\r", "", "\x00", "").Replace(s)
}
