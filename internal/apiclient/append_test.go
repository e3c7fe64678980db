package apiclient

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"sluice/internal/bubble"
)

// three is a source of three pieces, of piece size 16.
const three = `{"n":1}` + "\n" + `{"n":2}` + "\n" + `{"n":3}`

const threeStored = `{"n":1}` + "\n" + `{"n":2}` + "\n" + `{"n":3}` + "\n"

func appendThree(r *rig, id string) (Appended, error) {
	return r.Append(context.Background(), AppendOptions{Stream: r.stream, Source: strings.NewReader(three), ProducerID: id, PieceSize: 10})
}

// An append is stored once and whole wherever a connection breaks: at each byte of
// what goes up, and at each byte of what comes down.
func TestAppendCutAtEachByte(t *testing.T) {
	for name, at := range map[string]func(n int) cut{
		"up":   func(n int) cut { return cut{up: n, down: -1} },
		"down": func(n int) cut { return cut{up: -1, down: n} },
	} {
		t.Run(name, func(t *testing.T) {
			for n := 0; ; n++ {
				whole := false
				bubble.Test(t, func(t *testing.T) {
					r := newRig(t, "application/json")
					r.cuts = []cut{at(n), at(n), at(n + 7)}
					done, err := appendThree(r, "me")
					if err != nil {
						t.Fatalf("cut after %d: %v", n, err)
					}
					if got := r.content(t); got != threeStored {
						t.Fatalf("cut after %d: stored %q", n, got)
					}
					if diff := cmp.Diff(Appended{Messages: 3, Bytes: 21, Pieces: 3, Next: "00000000000000000024", PieceSize: 10}, done); diff != "" {
						t.Fatalf("cut after %d (-want +got):\n%s", n, diff)
					}
					whole = r.dials == 1
				})
				if whole || t.Failed() { // no cut was met any more
					if n < 200 {
						t.Errorf("only %d bytes went that way", n)
					}
					return
				}
			}
		})
	}
}

// What is told to wait waits as long as it is told, and is stored once.
func TestAppendObeysRetryAfter(t *testing.T) {
	for _, status := range []int{http.StatusTooManyRequests, http.StatusServiceUnavailable, http.StatusRequestTimeout, http.StatusBadGateway, http.StatusGatewayTimeout, http.StatusInternalServerError} {
		bubble.Test(t, func(t *testing.T) {
			r := newRig(t, "application/json")
			r.front = refusing(2, http.MethodPost, status, "LATER", "Retry-After", "7")
			began := time.Now()
			if _, err := appendThree(r, "me"); err != nil {
				t.Fatal(err)
			}
			if took := time.Since(began); took < 14*time.Second || took > 16*time.Second {
				t.Errorf("status %d: took %v, want 14 s and little more", status, took)
			}
			if got := r.content(t); got != threeStored {
				t.Errorf("stored %q", got)
			}
			if n := r.told(); len(n) != 2 || n[0].Wait < 7*time.Second {
				t.Errorf("told of %v", n)
			}
		})
	}
}

// A refusal that stays is the end, at once.
func TestAppendRefused(t *testing.T) {
	for _, status := range []int{400, 401, 402, 403, 404, 409, 410, 412, 413} {
		bubble.Test(t, func(t *testing.T) {
			r := newRig(t, "application/json")
			r.front = refusing(1, http.MethodPost, status, "NO", "X-Request-Id", "abc")
			began := time.Now()
			done, err := appendThree(r, "me")
			var e *Error
			if !errors.As(err, &e) || e.Status != status || e.Code != "NO" || e.RequestID != "abc" || done.Pieces != 0 {
				t.Errorf("status %d: %+v, %v", status, done, err)
			}
			if time.Since(began) > 0 {
				t.Errorf("status %d: waited %v", status, time.Since(began))
			}
		})
	}
}

func TestAppendToAClosedStream(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		r := newRig(t, "application/json")
		if _, err := r.CloseStream(t.Context(), r.stream); err != nil {
			t.Fatal(err)
		}
		_, err := appendThree(r, "me")
		var e *Error
		if !errors.As(err, &e) || e.Code != "STREAM_CLOSED" {
			t.Errorf("got %v", err)
		}
	})
}

// An append that was given up, or killed, is gone on with under its producer id: what
// is stored is not sent again, nothing is stored twice.
func TestAppendGoesOn(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		r := newRig(t, "text/plain")
		text := strings.Repeat("a line of text\n", 40)
		o := AppendOptions{Stream: r.stream, ProducerID: "me", PieceSize: 30}
		o.Progress = func(a Appended) {
			if a.Pieces == 15 {
				r.set(func() { r.down = true })
				r.http.CloseIdleConnections()
			}
		}
		o.Source = strings.NewReader(text)
		began := time.Now()
		done, err := r.Append(t.Context(), o)
		var gave *GaveUpError
		if !errors.As(err, &gave) || done.Pieces != 15 || done.Bytes != 450 {
			t.Fatalf("%+v, %v", done, err)
		}
		if took := time.Since(began); took > Patience || took < Patience-maxWait {
			t.Errorf("given up after %v", took)
		}
		r.set(func() { r.down, r.asked = false, nil })
		o.Progress, o.Source = nil, strings.NewReader(text)
		done, err = r.Append(t.Context(), o)
		if err != nil || done.Pieces != 20 {
			t.Fatalf("%+v, %v", done, err)
		}
		if got := r.content(t); got != text {
			t.Errorf("stored %d bytes, want %d: %q", len(got), len(text), got)
		}
		// HEAD, the first piece, the newest one, and the five that are left.
		if n := len(r.requests()); n != 8 {
			t.Errorf("%d requests: %q", n, r.requests())
		}
	})
}

// Going on with another text is found out, not mixed in.
func TestAppendGoesOnWithAnotherText(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		for i, text := range []string{"1111\n2222\n3333\n", "1x11\n2222\n3333\n", "1111\n2222\n33x3\n"} {
			r := newRig(t, "text/plain")
			o := AppendOptions{Stream: r.stream, ProducerID: "me", PieceSize: 5, Source: strings.NewReader("1111\n2222\n3333\n")}
			if _, err := r.Append(t.Context(), o); err != nil {
				t.Fatal(err)
			}
			o.Source = strings.NewReader(text)
			_, err := r.Append(t.Context(), o)
			var e *Error
			if i == 0 && err != nil || i > 0 && (!errors.As(err, &e) || e.Code != "PRODUCER_KEY_CONFLICT") {
				t.Errorf("%q: %v", text, err)
			}
		}
	})
}

// An append that was made again has another stream under its name is told so, and
// does not go on there.
func TestAppendToARecreatedStream(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		r := newRig(t, "text/plain")
		o := AppendOptions{Stream: r.stream, ProducerID: "me", PieceSize: 5, Source: strings.NewReader("1111\n2222\n3333\n")}
		o.Progress = func(a Appended) {
			if a.Pieces == 1 {
				r.node(t, http.MethodDelete, "", "")
				r.make(t, "text/plain")
			}
		}
		done, err := r.Append(t.Context(), o)
		var e *Error
		if !errors.As(err, &e) || e.Code != "PRODUCER_SEQ_CONFLICT" || done.Pieces != 1 {
			t.Errorf("%+v, %v", done, err)
		}
		if got := r.content(t); got != "" {
			t.Errorf("stored %q", got)
		}
	})
}

// An answer that proves nothing is no success.
func TestAppendUnproved(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		r := newRig(t, "text/plain")
		r.front = func(w http.ResponseWriter, req *http.Request, node http.Handler) {
			if req.Method == http.MethodPost {
				w.WriteHeader(http.StatusNoContent)
				return
			}
			node.ServeHTTP(w, req)
		}
		_, err := appendThree(r, "me")
		var strange *StrangeError
		if !errors.As(err, &strange) {
			t.Errorf("got %v", err)
		}
	})
}

func TestAppendNothing(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		for _, media := range []string{"text/plain", "application/json", "application/octet-stream"} {
			r := newRig(t, media)
			if _, err := r.Append(t.Context(), AppendOptions{Stream: r.stream, Source: strings.NewReader(""), ProducerID: "me"}); !errors.Is(err, ErrNothing) {
				t.Errorf("%s: %v", media, err)
			}
		}
	})
}

// The limit is the stream's, as HEAD says it.
func TestAppendPieceOverTheLimit(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		r := newRig(t, "text/plain")
		r.front = func(w http.ResponseWriter, req *http.Request, node http.Handler) {
			node.ServeHTTP(limited{w}, req)
		}
		text := strings.Repeat("0123456789\n", 40)
		if _, err := r.Append(t.Context(), AppendOptions{Stream: r.stream, Source: strings.NewReader(text), ProducerID: "a", PieceSize: 200}); err == nil {
			t.Error("pieces above the limit are taken")
		}
		done, err := r.Append(t.Context(), AppendOptions{Stream: r.stream, Source: strings.NewReader(text), ProducerID: "me"})
		if err != nil || done.Pieces != 5 || done.PieceSize != 100 || r.content(t) != text {
			t.Errorf("%+v, %v", done, err)
		}
	})
}

// limited says in its head that an append is of 100 bytes at most.
type limited struct{ http.ResponseWriter }

func (l limited) WriteHeader(code int) {
	if l.Header().Get(hMaxRequest) != "" {
		l.Header().Set(hMaxRequest, "100")
	}
	l.ResponseWriter.WriteHeader(code)
}

// Closing is repeated until it is known.
func TestCloseCutAtEachByte(t *testing.T) {
	for n := range 150 {
		bubble.Test(t, func(t *testing.T) {
			r := newRig(t, "text/plain")
			if r.node(t, http.MethodPost, "x", "text/plain") != http.StatusNoContent {
				t.Fatal("not appended")
			}
			r.cuts = []cut{{-1, n}, {n, -1}}
			next, err := r.CloseStream(t.Context(), r.stream)
			if err != nil || next != "00000000000000000001" {
				t.Fatalf("cut after %d: %q, %v", n, next, err)
			}
			if code := r.node(t, http.MethodPost, "y", "text/plain"); code != http.StatusConflict {
				t.Errorf("open after %d: %d", n, code)
			}
		})
	}
}

// Ctrl-C ends an append in a wait, with what ended it.
func TestAppendIsCancelled(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		r := newRig(t, "text/plain")
		r.front = refusing(1000, http.MethodPost, 503, "LATER")
		stop := fmt.Errorf("stopped")
		ctx, cancel := context.WithTimeoutCause(t.Context(), 20*time.Second, stop)
		defer cancel()
		_, err := r.Append(ctx, AppendOptions{Stream: r.stream, Source: strings.NewReader("x\n"), ProducerID: "me"})
		if !errors.Is(err, stop) {
			t.Errorf("got %v", err)
		}
	})
}
