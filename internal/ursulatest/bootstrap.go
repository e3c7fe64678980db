package ursulatest

import (
	"bytes"
	"net/http"
)

// bootstrap answers a stream's snapshot and what follows it in one multipart
// body (facts §1.2).
func (n *Node) bootstrap(r *request) *answer {
	query, a := parseQuery(r.query)
	if a != nil {
		return a
	}
	want, a := precondition(r.Header)
	if a != nil {
		return a
	}
	if _, ok := query["live"]; ok {
		return refuse(http.StatusBadRequest, "INVALID_QUERY", "bootstrap does not support live reads")
	}
	if a := n.routeAway(r); a != nil {
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
	start, snap := s.retained, &snapshot{media: defaultMedia}
	if s.snapshot != nil {
		start, snap = s.snapshot.offset, s.snapshot
	}
	updates, next := s.updates(start)
	boundary := boundaryToken()
	a = newAnswer(http.StatusOK).set(hContentType, "multipart/mixed; boundary="+boundary).
		setIncarnation(s.incarnation).setOffset(hNextOffset, next).
		flag(hUpToDate, next == s.tail()).flag(hClosed, s.closed && next == s.tail())
	if s.snapshot != nil {
		a.setOffset(hSnapOffset, start)
	} else {
		a.set(hSnapOffset, "-1")
	}
	var body bytes.Buffer
	part := func(media string, data []byte) {
		body.WriteString("--" + boundary + "\r\nContent-Type: " + media + "\r\n\r\n")
		body.Write(data)
		body.WriteString("\r\n")
	}
	part(snap.media, snap.body)
	for _, u := range updates {
		part(s.media, u)
	}
	body.WriteString("--" + boundary + "--\r\n")
	a.body = body.Bytes()
	return a
}

// updates are the bytes after a snapshot, at most one read's worth: one part a
// message on a JSON stream, else all or nothing.
func (s *stream) updates(start uint64) (parts [][]byte, next uint64) {
	data := s.data[start-s.retained:]
	if !isJSON(s.media) {
		if len(data) == 0 || len(data) > maxRead {
			return nil, start
		}
		return [][]byte{data}, s.tail()
	}
	size := 0
	for line := range bytes.Lines(data) {
		if size+len(line) > maxRead && size > 0 {
			break
		}
		parts = append(parts, line)
		size += len(line)
	}
	return parts, start + uint64(size)
}
