package ursulatest

import (
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"net/http"
	"sync"
	"time"
)

// state is what the nodes of a cluster share. Every field, and every field of
// its streams, is guarded by mu; bytes once stored never change, so readers may
// keep slices of them.
type state struct {
	mu      sync.Mutex
	streams map[string]*stream
	buckets map[string]bool // buckets that ever held a stream
	stored  int             // bytes of all streams and snapshots
}

// stream is one stream of bytes. data holds the offsets [retained, tail).
type stream struct {
	id, media   string
	incarnation uint64
	retained    uint64
	data        []byte
	closed      bool
	lastSeq     string
	life        lifetime
	touched     int64 // Unix milliseconds of the last renewal of a TTL
	snapshot    *snapshot
	producers   map[string]*producer
	floor       uint64 // highest epoch of a forgotten producer, plus one
	changed     chan struct{}
}

// snapshot is the latest published snapshot of a stream.
type snapshot struct {
	offset uint64
	media  string
	body   []byte
	digest string // BLAKE3 hex over type and body
}

func newState() *state {
	return &state{streams: make(map[string]*stream), buckets: make(map[string]bool)}
}

func (s *stream) tail() uint64 { return s.retained + uint64(len(s.data)) }

// wake lets live reads look again.
func (s *stream) wake() {
	close(s.changed)
	s.changed = make(chan struct{})
}

func (s *stream) expired(now time.Time) bool {
	ms := now.UnixMilli()
	if s.life.expiresAt != nil {
		return ms >= *s.life.expiresAt
	}
	return s.life.ttl != nil && *s.life.ttl < 1<<50 && ms >= s.touched+int64(*s.life.ttl)*1000
}

// renew moves the expiry of a stream with a TTL: a write always, a read once a
// quarter of the TTL passed.
func (s *stream) renew(now time.Time, write bool) {
	ms := now.UnixMilli()
	if s.life.ttl == nil || *s.life.ttl >= 1<<50 {
		return
	}
	if write || ms-s.touched >= int64(*s.life.ttl)*250 {
		s.touched = max(s.touched, ms)
	}
}

// newIncarnation makes a token as the node issues them: 2^52 to 2^53-1.
func newIncarnation() uint64 {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails (crypto/rand)
	return 1<<52 | binary.LittleEndian.Uint64(b[:])>>12
}

// remove forgets a stream and ends the live reads on it.
func (st *state) remove(s *stream) {
	st.stored -= len(s.data)
	if s.snapshot != nil {
		st.stored -= len(s.snapshot.body)
	}
	delete(st.streams, s.id)
	s.wake()
}

// find returns the live stream of a route, removing it when it expired.
func (st *state) find(id string, now time.Time) *stream {
	s := st.streams[id]
	if s != nil && s.expired(now) {
		st.remove(s)
		return nil
	}
	return s
}

// lookup is find with the node's refusals: bad ids, then 404 (facts §1.3).
func (st *state) lookup(t target, now time.Time) (*stream, *answer) {
	if a := scope(t); a != nil {
		return nil, a
	}
	s := st.find(t.id(), now)
	if s == nil {
		return nil, st.missing(t)
	}
	return s, nil
}

// lookupWrite is lookup for a write: its precondition is decided before the
// ids, and a missing stream is its usual 404 (facts §0.15).
func (st *state) lookupWrite(t target, want uint64, now time.Time) (*stream, *answer) {
	if s := st.find(t.id(), now); s != nil && want != 0 && s.incarnation != want {
		return nil, incarnationConflict(s.incarnation)
	}
	return st.lookup(t, now)
}

func incarnationConflict(current uint64) *answer {
	return refuse(http.StatusPreconditionFailed, "INCARNATION_MISMATCH",
		"Stream-Incarnation does not match the stream").setIncarnation(current)
}

func scope(t target) *answer {
	if p := bucketProblem(t.bucket); p != "" {
		return refuse(http.StatusBadRequest, "INVALID_BUCKET_ID", p)
	}
	if p := streamProblem(t.bucket, t.stream); p != "" {
		return refuse(http.StatusBadRequest, "INVALID_STREAM_ID", p)
	}
	return nil
}

func (st *state) missing(t target) *answer {
	if !st.buckets[t.bucket] {
		return refuse(http.StatusNotFound, "BUCKET_NOT_FOUND", "the bucket does not exist")
	}
	return refuse(http.StatusNotFound, "STREAM_NOT_FOUND", "the stream does not exist")
}

// room refuses bytes beyond the bound of the stand-in with a code that proves
// that nothing applied (facts §5.3).
func (st *state) room(n int) *answer {
	if st.stored+n <= maxStoredBytes {
		return nil
	}
	return refuse(http.StatusServiceUnavailable, "COLD_BACKPRESSURE",
		"the stand-in holds as many bytes as it may").set(hRetryAfter, "1")
}

// slice is what a read of a stream saw.
type slice struct {
	offset, next uint64
	incarnation  uint64
	media        string
	data         []byte
	upToDate     bool
	closed       bool // the stream, wherever the read ended
}

// end tells where a read ended, as the ETag counts it.
func (p slice) end() byte {
	switch {
	case p.upToDate && p.closed:
		return endClosed
	case p.upToDate:
		return endOpen
	}
	return endBelow
}

const (
	endBelow byte = iota
	endOpen
	endClosed
)

// cut reads at most limit bytes from offset; 416 beyond the tail, 410 below
// the retained offset.
func (s *stream) cut(offset, limit uint64) (slice, *answer) {
	tail := s.tail()
	if offset > tail {
		return slice{}, s.beyond(offset)
	}
	if offset < s.retained {
		return slice{}, refuse(http.StatusGone, "STREAM_GONE", "the offset is below the stream's retained history").
			setOffset(hNextOffset, s.retained).setIncarnation(s.incarnation)
	}
	next := offset + min(limit, tail-offset)
	return slice{
		offset: offset, next: next, incarnation: s.incarnation, media: s.media,
		data:     s.data[offset-s.retained : next-s.retained : next-s.retained],
		upToDate: next == tail, closed: s.closed,
	}, nil
}

func (s *stream) beyond(offset uint64) *answer {
	return refuse(http.StatusRequestedRangeNotSatisfiable, "OFFSET_OUT_OF_RANGE",
		fmt.Sprintf("offset %d is beyond stream '%s' tail %d", offset, s.id, s.tail())).
		setOffset(hNextOffset, s.tail()).setIncarnation(s.incarnation)
}
