package ursulatest

import (
	"encoding/hex"
	"fmt"
	"net/http"

	"github.com/zeebo/blake3"
)

func (n *Node) createBucket(r *request) *answer {
	if p := bucketProblem(r.bucket); p != "" {
		return refuse(http.StatusBadRequest, "INVALID_BUCKET_ID", p)
	}
	return bare(http.StatusCreated)
}

// create answers PUT of a stream: 201, 200 when it exists with the same
// settings, 409 else (facts §1.2).
func (n *Node) create(r *request) *answer {
	life, a := parseLifetime(r.Header)
	if a != nil {
		return a
	}
	want, a := precondition(r.Header)
	if a != nil {
		return a
	}
	seq, a := streamSeq(r.Header)
	if a != nil {
		return a
	}
	if key, err := parseProducer(r.Header); err != nil {
		return invalidProducer(err)
	} else if key != nil {
		return refuse(http.StatusBadRequest, "INVALID_PRODUCER",
			"a create carries no producer headers: create the stream, then claim an epoch")
	}
	if a := n.routeBody(r); a != nil {
		return a
	}
	body, a := readBody(r)
	if a != nil {
		return a
	}
	media, _ := mediaType(r.Header)
	if isJSON(media) && len(body) > 0 {
		text, err := jsonMessages(body, true)
		if err != nil {
			return refuse(http.StatusBadRequest, "INVALID_RECORD_BOUNDARIES", err.Error())
		}
		body = text
	}
	return n.cluster.state.create(&stream{
		id: r.id(), media: media, data: body, closed: wantsClose(r.Header), lastSeq: seq, life: life,
	}, r.target, want, n)
}

func (st *state) create(s *stream, t target, want uint64, n *Node) *answer {
	st.mu.Lock()
	defer st.mu.Unlock()
	now := n.cluster.now()
	old := st.find(s.id, now)
	if old != nil && want != 0 && old.incarnation != want {
		return incarnationConflict(old.incarnation)
	}
	if a := scope(t); a != nil {
		return a
	}
	status := http.StatusOK
	switch {
	case old == nil && want != 0:
		return incarnationConflict(0)
	case old == nil:
		if a := st.room(len(s.data)); a != nil {
			return a
		}
		if len(st.streams) >= maxStreams {
			return st.room(maxStoredBytes + 1)
		}
		s.incarnation, s.touched = newIncarnation(), now.UnixMilli()
		s.producers, s.changed = make(map[string]*producer), make(chan struct{})
		st.streams[s.id], st.buckets[t.bucket] = s, true
		st.stored += len(s.data)
		status, old = http.StatusCreated, s
	case old.media != s.media || old.closed != s.closed || !old.life.equal(s.life):
		return refuse(http.StatusConflict, "STREAM_ALREADY_EXISTS_CONFLICT",
			fmt.Sprintf("stream '%s' already exists with different metadata", s.id))
	}
	a := newAnswer(status).set(hContentType, old.media).setOffset(hNextOffset, old.tail()).
		set("Location", "/"+old.id).setIncarnation(old.incarnation).flag(hClosed, old.closed)
	old.life.render(a)
	return a
}

// appendTo answers POST of a stream: append, close, or both (facts §1.2).
func (n *Node) appendTo(r *request) *answer {
	if len(r.Header.Values("Stream-Record-Match")) > 0 {
		return refuse(http.StatusBadRequest, "UNSUPPORTED", "Stream-Record-Match is not supported")
	}
	want, a := precondition(r.Header)
	if a != nil {
		return a
	}
	key, err := parseProducer(r.Header)
	if err != nil {
		return invalidProducer(err)
	}
	seq, a := streamSeq(r.Header)
	if a != nil {
		return a
	}
	if a := n.routeBody(r); a != nil {
		return a
	}
	body, a := readBody(r)
	if a != nil {
		return a
	}
	w := &write{key: key, seq: seq, want: want, closes: wantsClose(r.Header)}
	w.closeOnly = len(body) == 0 && w.closes
	w.media, w.hasMedia = mediaType(r.Header)
	w.payload, w.fault = contentCheck(w, body)
	if key == nil && w.fault != nil {
		return w.fault
	}
	if key == nil && len(w.payload) == 0 && !w.closes {
		return refuse(http.StatusBadRequest, "EMPTY_APPEND", "append payload must be non-empty unless closing the stream")
	}
	return n.cluster.state.append(w, r.target, n)
}

// write is an append or close, read and checked.
type write struct {
	key       *producerKey
	seq       string
	want      uint64
	media     string
	hasMedia  bool
	closes    bool
	closeOnly bool
	payload   []byte
	fault     *answer // of the content; a keyed write gets it only if it would apply
}

func contentCheck(w *write, body []byte) ([]byte, *answer) {
	if w.key != nil && w.key.digest != "" {
		sum := blake3.Sum256(body)
		if hex.EncodeToString(sum[:]) != w.key.digest {
			return nil, refuse(http.StatusBadRequest, "PRODUCER_DIGEST_MISMATCH", "Producer-Digest does not match the request body")
		}
	}
	if len(body) == 0 {
		return body, nil
	}
	if !w.hasMedia {
		return nil, w.faulty("MISSING_CONTENT_TYPE", "append with a body must include content type",
			"a write with a body must include a content type")
	}
	if !isJSON(w.media) {
		return body, nil
	}
	text, err := jsonMessages(body, false)
	if err != nil {
		return nil, w.faulty("INVALID_RECORD_BOUNDARIES", err.Error(), "the body is not valid JSON message text")
	}
	return text, nil
}

// faulty words a content fault: the node words it otherwise for a keyed write.
func (w *write) faulty(code, message, keyed string) *answer {
	if w.key != nil {
		message = keyed
	}
	return refuse(http.StatusBadRequest, code, message)
}

func (st *state) append(w *write, t target, n *Node) *answer {
	st.mu.Lock()
	defer st.mu.Unlock()
	now := n.cluster.now()
	s, a := st.lookupWrite(t, w.want, now)
	if a != nil {
		return a
	}
	var v verdict
	if w.key != nil {
		s.makeRoom(now)
		v = s.judge(w.key, w.want != 0, now)
		if v.refusal != nil {
			return v.refusal
		}
		if v.repeat != nil {
			return v.repeat.receipt(statusNoContent, w.key, v.evicted, s.incarnation)
		}
	}
	if a := st.checkAppend(s, w); a != nil || (s.closed && w.closeOnly) {
		if a == nil { // an unkeyed close of a closed stream is idempotent
			a = s.appended(true)
		}
		return a
	}
	start := s.tail()
	s.data = append(s.data, w.payload...)
	st.stored += len(w.payload)
	if w.seq != "" {
		s.lastSeq = w.seq
	}
	s.renew(now, true)
	s.closed = s.closed || w.closes
	defer s.wake()
	if w.key == nil {
		return s.appended(w.closes)
	}
	status := http.StatusOK
	if w.closeOnly {
		status = statusNoContent
	}
	return s.applied(w.key, v, start, s.closed, now).receipt(status, w.key, false, s.incarnation)
}

// checkAppend holds the refusals of a write that its producer rules let pass.
// nil on a closed stream means the idempotent close.
func (st *state) checkAppend(s *stream, w *write) *answer {
	if s.closed {
		if w.closeOnly && w.key == nil {
			return nil
		}
		return refuse(http.StatusConflict, "STREAM_CLOSED", fmt.Sprintf("stream '%s' is closed", s.id)).
			flag(hClosed, true).setOffset(hNextOffset, s.tail())
	}
	if w.fault != nil {
		return w.fault
	}
	if len(w.payload) == 0 && !w.closes {
		return refuse(http.StatusBadRequest, "EMPTY_APPEND", "an append must carry a body unless it closes the stream")
	}
	if len(w.payload) > 0 && w.media != s.media {
		return refuse(http.StatusConflict, "CONTENT_TYPE_MISMATCH",
			fmt.Sprintf("append content type '%s' does not match stream content type '%s'", w.media, s.media)).
			setOffset(hNextOffset, s.tail())
	}
	if w.seq != "" && s.lastSeq != "" && w.seq <= s.lastSeq {
		return refuse(http.StatusConflict, "STREAM_SEQ_CONFLICT",
			fmt.Sprintf("stream sequence '%s' is not greater than last sequence '%s'", w.seq, s.lastSeq)).
			set("Stream-Last-Seq", s.lastSeq).setOffset(hNextOffset, s.tail())
	}
	return st.room(len(w.payload))
}

// appended is the answer to a write without a key.
func (s *stream) appended(closes bool) *answer {
	return newAnswer(statusNoContent).setIncarnation(s.incarnation).
		setOffset(hNextOffset, s.tail()).flag(hClosed, closes)
}

func (n *Node) delete(r *request) *answer {
	want, a := precondition(r.Header)
	if a != nil {
		return a
	}
	if a := n.routeAway(r); a != nil {
		return a
	}
	st := n.cluster.state
	st.mu.Lock()
	defer st.mu.Unlock()
	s, a := st.lookupWrite(r.target, want, n.cluster.now())
	if a != nil {
		return a
	}
	st.remove(s)
	return newAnswer(statusNoContent)
}
