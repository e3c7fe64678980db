package ursulatest

import (
	"bytes"
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"net/http"
	"strconv"
	"strings"

	"github.com/zeebo/blake3"
)

// digest is the node's: BLAKE3 over the type, with its length, and the body.
func digest(media string, body []byte) string {
	h := blake3.New()
	_, _ = h.Write(binary.LittleEndian.AppendUint64(nil, uint64(len(media)))) // a hash never fails
	_, _ = h.Write([]byte(media))
	_, _ = h.Write(body)
	return hex.EncodeToString(h.Sum(nil))
}

// name adds which snapshot an answer speaks of.
func (s *snapshot) name(a *answer) *answer {
	return a.setOffset(hSnapOffset, s.offset).set(hSnapDigest, s.digest)
}

// pathOffset reads an offset in a path: a decimal, never -1 or now.
func pathOffset(raw, what string) (uint64, *answer) {
	v, ok := parseU64(raw)
	if !ok {
		return 0, refuse(http.StatusBadRequest, "INVALID_OFFSET", "invalid "+what+" offset")
	}
	return v, nil
}

func (n *Node) removedSnapshot(*request) *answer {
	a := refuse(http.StatusMethodNotAllowed, "UNSUPPORTED",
		"the latest-snapshot redirect was removed; read Stream-Snapshot-Offset from HEAD")
	a.header["Allow"] = []string{""}
	return a
}

func noColdStore() *answer {
	return refuse(http.StatusNotImplemented, "NO_COLD_STORE",
		"this node has no cold backend, so it takes no snapshot parts")
}

func (n *Node) stagePart(r *request) *answer {
	if _, a := pathOffset(r.offset, "snapshot"); a != nil {
		return a
	}
	if _, a := precondition(r.Header); a != nil {
		return a
	}
	return noColdStore()
}

func (n *Node) discardParts(r *request) *answer {
	if _, a := precondition(r.Header); a != nil {
		return a
	}
	return noColdStore()
}

// partsCommit refuses a commit of parts; nil for a publish whose body is the
// snapshot.
func partsCommit(h http.Header) *answer {
	malformed := func(err error) *answer {
		return refuse(http.StatusBadRequest, "INVALID_PARTS_COMMIT", "malformed parts commit: "+err.Error())
	}
	count, ok, err := single(h, hSnapParts)
	if err != nil {
		return malformed(err)
	}
	sum, hasSum, err := single(h, hSnapDigest)
	if err != nil {
		return malformed(err)
	}
	if !ok {
		return nil
	}
	v, err := canonical("stream-snapshot-parts", count)
	if err == nil && (v < 1 || v > 4096) {
		err = fmt.Errorf("stream-snapshot-parts is out of range: %d", v)
	}
	if err != nil {
		return malformed(err)
	}
	if !hasSum {
		return malformed(fmt.Errorf("stream-snapshot-digest is required here"))
	}
	if raw, err := hex.DecodeString(sum); err != nil || len(raw) != 32 || sum != strings.ToLower(sum) {
		return malformed(fmt.Errorf("stream-snapshot-digest must be 64 lowercase hex digits"))
	}
	return noColdStore()
}

// publishSnapshot answers PUT of a snapshot.
func (n *Node) publishSnapshot(r *request) *answer {
	if len(r.Header.Values("Stream-Snapshot-Match")) > 0 {
		return refuse(http.StatusBadRequest, "UNSUPPORTED", "Stream-Snapshot-Match is not supported")
	}
	offset, a := pathOffset(r.offset, "snapshot")
	if a != nil {
		return a
	}
	want, a := precondition(r.Header)
	if a != nil {
		return a
	}
	if a := partsCommit(r.Header); a != nil {
		return a
	}
	if a := n.routeBody(r); a != nil {
		return a
	}
	body, a := readBody(r)
	if a != nil {
		return a
	}
	media, _ := mediaType(r.Header)
	snap := &snapshot{offset: offset, media: media, body: body, digest: digest(media, body)}
	st := n.cluster.state
	st.mu.Lock()
	defer st.mu.Unlock()
	s, a := st.lookupWrite(r.target, want, n.cluster.now())
	if a != nil {
		return a
	}
	if a := st.publish(s, snap); a != nil {
		return a
	}
	return s.snapshot.name(newAnswer(statusNoContent)).setIncarnation(s.incarnation)
}

func (st *state) publish(s *stream, snap *snapshot) *answer {
	conflict := func() *answer {
		return refuse(http.StatusConflict, "SNAPSHOT_CONFLICT",
			"another snapshot is the latest, or the offset is beyond the tail").setOffset(hNextOffset, s.tail())
	}
	switch {
	case snap.media == "":
		return refuse(http.StatusBadRequest, "INVALID_SNAPSHOT", "the snapshot is invalid")
	case snap.offset < s.retained:
		return refuse(http.StatusGone, "STREAM_GONE", "the offset is below the stream's retained history").
			setOffset(hNextOffset, s.retained)
	case snap.offset > s.tail():
		return conflict()
	}
	if old := s.snapshot; old != nil && snap.offset <= old.offset {
		if snap.offset == old.offset && snap.digest == old.digest {
			return nil // a repeat
		}
		return old.name(conflict())
	}
	if a := s.boundary(snap.offset); a != nil {
		return a
	}
	freed := 0
	if s.snapshot != nil {
		freed = len(s.snapshot.body)
	}
	if a := st.room(len(snap.body) - freed); a != nil {
		return a
	}
	st.stored += len(snap.body) - freed
	s.snapshot = snap
	return nil
}

// boundary refuses an offset inside a message of a JSON stream.
func (s *stream) boundary(offset uint64) *answer {
	if !isJSON(s.media) || offset == s.retained || offset == s.tail() || s.data[offset-1-s.retained] == '\n' {
		return nil
	}
	return refuse(http.StatusBadRequest, "INVALID_SNAPSHOT", "the snapshot is invalid").
		setOffset(hNextOffset, s.tail())
}

// advanceRetention answers PUT of the retained offset.
func (n *Node) advanceRetention(r *request) *answer {
	offset, a := pathOffset(r.offset, "retention")
	if a != nil {
		return a
	}
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
	if offset > s.retained {
		if s.snapshot == nil || offset > s.snapshot.offset {
			return refuse(http.StatusConflict, "SNAPSHOT_CONFLICT",
				"another snapshot is the latest, or the offset is beyond the tail").setOffset(hNextOffset, s.tail())
		}
		if a := s.boundary(offset); a != nil {
			return a
		}
		// Copied, so that the dropped prefix is freed and readers keep theirs.
		kept := bytes.Clone(s.data[offset-s.retained:])
		st.stored -= len(s.data) - len(kept)
		s.data, s.retained = kept, offset
	}
	return newAnswer(statusNoContent).setOffset(hRetained, s.retained).setIncarnation(s.incarnation)
}

func (n *Node) readSnapshot(r *request) *answer {
	query, a := parseQuery(r.query)
	if a != nil {
		return a
	}
	if _, ok := query["incarnation"]; ok {
		return refuse(http.StatusBadRequest, "UNSUPPORTED", "the incarnation parameter is not supported; "+
			"an immutable snapshot read is GET {stream}/incarnation/{token}/snapshot/{offset}")
	}
	offset, a := pathOffset(r.offset, "snapshot")
	if a != nil {
		return a
	}
	want, a := precondition(r.Header)
	if a != nil {
		return a
	}
	if a := n.routeAway(r); a != nil {
		return a
	}
	return n.snapshotAnswer(r, offset, want, false)
}

// snapshotAnswer serves both snapshot resources: 404, then 416 of a range, then
// 412, then 304, then the body (facts §8).
func (n *Node) snapshotAnswer(r *request, offset, want uint64, immutable bool) *answer {
	st := n.cluster.state
	st.mu.Lock()
	defer st.mu.Unlock()
	s, a := st.lookup(r.target, n.cluster.now())
	if a != nil {
		return a
	}
	snap := s.snapshot
	if snap == nil || snap.offset != offset {
		return refuse(http.StatusNotFound, "SNAPSHOT_NOT_FOUND", "no snapshot at that offset").setIncarnation(s.incarnation)
	}
	tag := `"` + snap.digest + `"`
	dress := func(a *answer) *answer {
		a.uncompress = true
		return snap.name(a).setOffset(hNextOffset, snap.offset).setIncarnation(s.incarnation).
			flag(hUpToDate, !immutable && snap.offset == s.tail()).set(hETag, tag).set("Accept-Ranges", "bytes")
	}
	a = dress(newAnswer(http.StatusOK).set(hContentType, snap.media)).flag(hImmutable, immutable)
	a.body = snap.body
	revalidated := notModified(r, dress(newAnswer(http.StatusOK)), tag).status == http.StatusNotModified
	first, last, use, ok := byteRange(r.Header, len(snap.body))
	if use && !ok && !revalidated {
		return dress(refuse(http.StatusRequestedRangeNotSatisfiable, "RANGE_NOT_SATISFIABLE", "the range lies outside the snapshot")).
			set("Content-Range", fmt.Sprintf("bytes */%d", len(snap.body)))
	}
	if a := mismatch(want, s.incarnation); a != nil {
		return a
	}
	switch {
	case revalidated:
		a.status, a.body = http.StatusNotModified, nil
	case use:
		a.status, a.body = http.StatusPartialContent, snap.body[first:last+1]
		a.set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", first, last, len(snap.body)))
	}
	return a
}

// byteRange is the one range a snapshot read honours. use is false for the whole
// body; ok is false when the range selects nothing.
func byteRange(h http.Header, total int) (first, last int, use, ok bool) {
	value, has, err := single(h, "Range")
	if err != nil || !has || len(h.Values("If-Range")) > 0 {
		return 0, 0, false, false
	}
	unit, spec, found := strings.Cut(value, "=")
	if !found || !strings.EqualFold(strings.Trim(unit, " \t"), "bytes") {
		return 0, 0, false, false
	}
	a, b, found := strings.Cut(strings.Trim(spec, " \t"), "-")
	from, errA := position(a)
	to, errB := position(b)
	switch {
	case !found, errA != nil && a != "", errB != nil && b != "", a == "" && b == "":
		return 0, 0, false, false
	case a == "": // the last bytes
		if total == 0 && to > 0 {
			return 0, 0, false, false
		}
		if to == 0 || total == 0 {
			return 0, 0, true, false
		}
		return max(total-to, 0), total - 1, true, true
	case b == "":
		to = total - 1
	case from > to:
		return 0, 0, false, false
	}
	to = min(to, total-1)
	return from, to, true, from <= to
}

// position reads a byte position: digits only.
func position(s string) (int, error) {
	if s == "" || strings.Trim(s, "0123456789") != "" {
		return 0, strconv.ErrSyntax
	}
	return strconv.Atoi(s)
}

// boundaryToken is a multipart boundary nobody can guess.
func boundaryToken() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails (crypto/rand)
	return "ursula-bootstrap-" + hex.EncodeToString(b[:])
}
