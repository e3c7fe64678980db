package ursulatest

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"net/http"
	"strings"

	"github.com/zeebo/blake3"
)

// readParams is the query of a read (facts §1.4).
type readParams struct {
	want      uint64 // Stream-Incarnation, 0 for none
	live      string
	hasLive   bool
	leader    bool // consistency=leader
	now       bool // offset=now
	offset    uint64
	offsetErr *answer
	limit     uint64 // bytes
	cursor    string
	hasCursor bool
	timeout   uint64 // milliseconds
}

// removedReadParams are removed parameters that must fail loudly.
var removedReadParams = [...]string{"record", "tail_records", "max_records", "record_view"}

func parseRead(r *request) (*readParams, *answer) {
	query, a := parseQuery(r.query)
	if a != nil {
		return nil, a
	}
	if a := removedParams(query); a != nil {
		return nil, a
	}
	p := &readParams{limit: maxRead, timeout: 1000}
	if p.want, a = precondition(r.Header); a != nil {
		return nil, a
	}
	p.live, p.hasLive = query["live"]
	p.cursor, p.hasCursor = query["cursor"]
	switch c, ok := query["consistency"]; {
	case !ok || c == "local":
	case c == "leader":
		p.leader = true
	default:
		return nil, refuse(http.StatusBadRequest, "INVALID_QUERY", "invalid consistency")
	}
	if p.leader && p.hasLive {
		return nil, refuse(http.StatusBadRequest, "INVALID_QUERY",
			"leader consistency is available only for catch-up reads")
	}
	raw, has := query["offset"]
	if p.hasLive && !has {
		return nil, refuse(http.StatusBadRequest, "INVALID_QUERY", "live reads require a start position")
	}
	p.parseOffset(raw, has)
	if v, ok := parseU64(query["max_bytes"]); ok {
		p.limit = min(v, maxRead)
	}
	if v, ok := parseU64(query["timeout_ms"]); ok {
		p.timeout = min(max(v, 1), 60_000)
	}
	return p, nil
}

func removedParams(query map[string]string) *answer {
	for _, name := range removedReadParams {
		if _, ok := query[name]; ok {
			return refuse(http.StatusBadRequest, "UNSUPPORTED",
				fmt.Sprintf("the %s parameter is not supported; record coordinates were removed", name))
		}
	}
	for _, name := range []string{"incarnation", "aligned"} {
		if _, ok := query[name]; ok {
			return refuse(http.StatusBadRequest, "UNSUPPORTED", fmt.Sprintf("the %s parameter is not supported; "+
				"an immutable read is GET {stream}/incarnation/{token}/chunk/{offset}", name))
		}
	}
	return nil
}

func (p *readParams) parseOffset(raw string, has bool) {
	switch {
	case !has || raw == "-1":
	case raw == "now":
		p.now = true
	default:
		v, ok := parseU64(raw)
		if !ok {
			p.offsetErr = refuse(http.StatusBadRequest, "INVALID_OFFSET", "invalid offset")
		}
		p.offset = v
	}
}

// read answers GET of a stream: catch-up, long-poll and SSE.
func (n *Node) read(r *request) *answer {
	p, a := parseRead(r)
	if a != nil {
		return a
	}
	if p.offsetErr != nil {
		return p.offsetErr
	}
	if p.live == "sse" || p.live == "long-poll" {
		if a := n.routeAway(r); a != nil {
			return a
		}
		if p.live == "sse" {
			return n.sse(r, p)
		}
		return n.longPoll(r, p)
	}
	return n.catchUp(r, p)
}

func (n *Node) catchUp(r *request, p *readParams) *answer {
	// A follower asks the leader for these; the rest it has itself.
	asked := p.now || p.leader
	if asked {
		if a := n.askLeader(); a != nil {
			return a
		}
	}
	piece, a := n.cut(r.target, p)
	if p.hasLive && (a == nil || !p.now) { // only "now" is looked up before the mode
		return refuse(http.StatusBadRequest, "INVALID_QUERY", "invalid live mode")
	}
	if a != nil {
		return n.confirmed(a)
	}
	local := !asked && !n.leads()
	if local && p.want != 0 && p.want != piece.incarnation {
		if a := n.askLeader(); a != nil {
			return a
		}
		local = false
	}
	if len(piece.data) == 0 && n.askLeader() == nil {
		local = false // nothing new here: the leader confirms the tail
	}
	if local && !piece.closed {
		// A follower cannot know the tail of an open stream, so it claims none.
		piece.upToDate = false
	}
	if a := mismatch(p.want, piece.incarnation); a != nil {
		return a
	}
	if p.now {
		return newAnswer(http.StatusOK).set(hContentType, readMedia(piece.media)).
			setOffset(hNextOffset, piece.next).setIncarnation(piece.incarnation).
			flag(hUpToDate, true).flag(hClosed, piece.closed)
	}
	return piece.render(r, "", false)
}

// confirmed lets a follower check a refusal of its own state with the leader;
// ids that no node accepts it refuses itself.
func (n *Node) confirmed(a *answer) *answer {
	if a.status == http.StatusBadRequest || n.leads() {
		return a
	}
	if none := n.askLeader(); none != nil {
		return none
	}
	return a
}

func (n *Node) cut(t target, p *readParams) (slice, *answer) {
	st := n.cluster.state
	st.mu.Lock()
	defer st.mu.Unlock()
	now := n.cluster.now()
	s, a := st.lookup(t, now)
	if a != nil {
		return slice{}, a
	}
	s.renew(now, false)
	offset := p.offset
	if p.now {
		offset = s.tail()
	}
	return s.cut(offset, p.limit)
}

// render is the answer of a read; cursor is the request's, used by long-polls.
func (p slice) render(r *request, cursor string, longPoll bool) *answer {
	media := readMedia(p.media)
	a := newAnswer(http.StatusOK).set(hContentType, media).
		setOffset(hNextOffset, p.next).setIncarnation(p.incarnation)
	a.body = p.data
	tag := p.etag()
	probe := *a
	if probe.compressible() {
		tag = "W/" + tag // one tag must not cover two representations
	}
	a.set(hETag, tag).flag(hUpToDate, p.upToDate)
	if p.end() == endClosed {
		a.flag(hClosed, true)
	} else if longPoll {
		a.set(hCursor, nextCursor(p.next, cursor))
	}
	return notModified(r, a, tag)
}

// notModified turns an answer into its 304 when the request names its tag.
func notModified(r *request, a *answer, tag string) *answer {
	opaque := func(s string) string { return strings.TrimPrefix(strings.TrimSpace(s), "W/") }
	for _, line := range r.Header.Values("If-None-Match") {
		for item := range strings.SplitSeq(line, ",") {
			if opaque(item) == opaque(tag) {
				a.status, a.body = http.StatusNotModified, nil
				return a
			}
		}
	}
	return a
}

// etag is the node's: 128 bits of BLAKE3 over everything that makes the answer.
func (p slice) etag() string {
	h := blake3.New()
	var b []byte
	b = binary.LittleEndian.AppendUint64(b, p.incarnation)
	b = binary.LittleEndian.AppendUint64(b, p.offset)
	b = binary.LittleEndian.AppendUint64(b, p.next)
	b = append(b, p.end())
	b = binary.LittleEndian.AppendUint64(b, uint64(len(p.media)))
	b = append(b, p.media...)
	_, _ = h.Write(b) // a hash never fails
	_, _ = h.Write(p.data)
	return `"` + hex.EncodeToString(h.Sum(nil)[:16]) + `"`
}

// nextCursor moves a cursor past the one the request sent.
func nextCursor(next uint64, sent string) string {
	if v, ok := parseU64(sent); ok && v >= next {
		if v+1 > v {
			v++
		}
		return padded(v)
	}
	return padded(next)
}

// head answers HEAD of a stream (facts §3.2).
func (n *Node) head(r *request) *answer {
	want, a := precondition(r.Header)
	if a != nil {
		return a
	}
	if a := n.askLeader(); a != nil {
		return a
	}
	st := n.cluster.state
	st.mu.Lock()
	defer st.mu.Unlock()
	s, a := st.lookup(r.target, n.cluster.now())
	if a != nil {
		return a
	}
	if a := mismatch(want, s.incarnation); a != nil {
		return a
	}
	a = newAnswer(http.StatusOK).set(hContentType, s.media).setIncarnation(s.incarnation).
		setOffset(hNextOffset, s.tail()).setOffset(hRetained, s.retained).
		flag(hClosed, s.closed).set(hMaxRequest, decimal(maxBody)).
		setOffset("Stream-Cold-Hot-Start-Offset", s.hotStart()).flag(hUpToDate, true)
	if s.snapshot != nil {
		s.snapshot.name(a)
	}
	s.life.render(a)
	return a
}

// hotStart is where the bytes in memory begin: all are here, so it is the tail
// only when there are none.
func (s *stream) hotStart() uint64 { return s.retained }
