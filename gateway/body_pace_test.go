package gateway

import (
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"testing"
	"time"

	"sluice/internal/bubble"
)

// timedBody is a body whose bytes come on a clock of the test's bubble, and whose
// reads end at the deadline as a connection's do.
type timedBody struct {
	http.ResponseWriter
	every    time.Duration // between two pieces
	piece    int
	left     int // bytes until the end
	silent   int // left at which nothing comes any more; -1 = never
	deadline time.Time
	next     time.Time
}

func (b *timedBody) SetReadDeadline(t time.Time) error {
	b.deadline = t
	return nil
}

func (b *timedBody) Read(p []byte) (int, error) {
	if b.left == 0 {
		return 0, io.EOF
	}
	if b.next.IsZero() {
		b.next = time.Now().Add(b.every)
	}
	wait := time.Until(b.next)
	if left := time.Until(b.deadline); !b.deadline.IsZero() && (left < wait || b.left <= b.silent) {
		time.Sleep(left)
		return 0, &net.OpError{Op: "read", Err: os.ErrDeadlineExceeded}
	}
	time.Sleep(wait)
	b.next = b.next.Add(b.every)
	n := min(len(p), b.piece, b.left)
	b.left -= n
	return n, nil
}

// readAway reads to the end, in reads as large as a piece.
func readAway(r io.Reader) error {
	b := make([]byte, 64<<10)
	for {
		if _, err := r.Read(b); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
	}
}

// Facts U12, U13: at the defaults, when a body is cut and when it never is.
func TestPace(t *testing.T) {
	const s, ms = time.Second, time.Millisecond
	tests := []struct {
		name     string
		body     timedBody
		cut      bool
		from, to time.Duration // when it ended
	}{
		{"facts U12 64 KiB/s for 128 s", timedBody{every: s / 4, piece: 16 << 10, left: 8 << 20, silent: -1}, false, 128 * s, 128 * s},
		{"the floor exactly, a KiB a second", timedBody{every: s, piece: 1024, left: 256 << 10, silent: -1}, false, 256 * s, 256 * s},
		{"all of it at once", timedBody{every: 0, piece: 64 << 10, left: 8 << 20, silent: -1}, false, 0, 0},
		{"a small one that takes its time", timedBody{every: 10 * s, piece: 1, left: 2, silent: -1}, false, 20 * s, 20 * s},
		{"a byte just before each stall", timedBody{every: 29900 * ms, piece: 30 << 10, left: 300 << 10, silent: -1}, false, 299 * s, 299 * s},
		{"facts U13 silent", timedBody{every: s, piece: 1, left: 1000, silent: 1000}, true, 30 * s, 30 * s},
		{"facts U13 trickling", timedBody{every: s, piece: 1, left: 1000, silent: -1}, true, 30 * s, 60 * s},
		{"facts U13 just below the floor", timedBody{every: s, piece: 990, left: 1 << 20, silent: -1}, true, 30 * s, 60 * s},
		{"facts U13 stops midway", timedBody{every: s, piece: 64 << 10, left: 1 << 20, silent: 512 << 10}, true, 38 * s, 38 * s},
		{"facts U13 quick, then trickling", timedBody{every: s, piece: 64 << 10, left: 1 << 20, silent: 64 << 10}, true, 30 * s, 60 * s},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				pace := Pace{}.withDefaults()
				in := &pacedReader{
					body: &tt.body, control: http.NewResponseController(&tt.body),
					stall: pace.Stall, window: pace.Window, minBytes: pace.MinBytes,
				}
				start := time.Now()
				err := readAway(in)
				if cut := errors.Is(err, errTooSlow); cut != tt.cut || (!tt.cut && err != nil) {
					t.Errorf("ended with %v, want cut %t", err, tt.cut)
				}
				if took := time.Since(start); took < tt.from || took > tt.to {
					t.Errorf("ended after %s, want %s to %s", took, tt.from, tt.to)
				}
				if in.done(); !tt.body.deadline.IsZero() {
					t.Error("a deadline stays behind")
				}
			})
		})
	}
}

// Facts B2: a refused body is given up 5 s after its last byte, and 30 s in all, however
// little comes: there is no floor for what is dropped.
func TestDrainPace(t *testing.T) {
	const s = time.Second
	tests := []struct {
		name string
		body timedBody
		cut  bool
		took time.Duration
	}{
		{"stops", timedBody{every: s, piece: 100, left: 1000, silent: 500}, true, 10 * s},
		{"never begins", timedBody{every: s, piece: 1, left: 1, silent: 1}, true, 5 * s},
		{"a chunk a second", timedBody{every: s, piece: 1, left: 1000, silent: -1}, true, 30 * s},
		{"ends in time", timedBody{every: s, piece: 1, left: 29, silent: -1}, false, 29 * s},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				pace := Pace{}.withDefaults()
				in := &pacedReader{
					body: &tt.body, control: http.NewResponseController(&tt.body),
					stall: pace.DrainStall, end: time.Now().Add(pace.DrainTotal),
				}
				start := time.Now()
				err := readAway(in)
				if cut := errors.Is(err, errTooSlow); cut != tt.cut {
					t.Errorf("ended with %v, want cut %t", err, tt.cut)
				}
				if took := time.Since(start); took != tt.took {
					t.Errorf("ended after %s, want %s", took, tt.took)
				}
			})
		})
	}
}
