package apiclient

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"sluice/internal/bubble"
)

// follow tails the rig's stream, while messages are appended one by one, each when
// the one before was told, and closes it in the end. It returns what was told.
func follow(t *testing.T, r *rig, o TailOptions, media string, messages []string) (string, error) {
	t.Helper()
	var told strings.Builder
	o.Stream = r.stream
	sent := 0
	err := r.Tail(context.Background(), o, func(e Event) error {
		told.Write(e.Data)
		switch {
		case told.Len() < len(strings.Join(messages[:sent], "")):
		case sent < len(messages):
			sent++
			if code := r.node(t, http.MethodPost, messages[sent-1], media); code != http.StatusNoContent {
				return fmt.Errorf("append: %d", code)
			}
		default:
			r.node(t, http.MethodPost, "", media, hClosed, "true")
		}
		return nil
	})
	return told.String(), err
}

// A tail tells each byte once, wherever a connection breaks, in each of its forms.
func TestTailCutAtEachByte(t *testing.T) {
	for name, tc := range map[string]struct {
		media    string
		longPoll bool
	}{
		"events of JSON":     {"application/json", false},
		"events of bytes":    {"application/octet-stream", false},
		"long-polls of JSON": {"application/json", true},
		"long-polls of text": {"text/plain", false},
	} {
		t.Run(name, func(t *testing.T) {
			messages := []string{`{"n":1}` + "\n", `{"n":2}` + "\n"}
			want := `{"n":0}` + "\n" + strings.Join(messages, "")
			if tc.media == "text/plain" { // what an event has no room for
				messages = []string{" a\r\n\n", "b\x00\xff\n"}
				want = "0\r\n" + strings.Join(messages, "")
			}
			first, _, _ := strings.Cut(want, "\n")
			for n := 0; ; n++ {
				whole := false
				bubble.Test(t, func(t *testing.T) {
					r := newRig(t, tc.media)
					r.node(t, http.MethodPost, first+"\n", tc.media)
					r.cuts = []cut{{-1, n}, {-1, n + 11}, {-1, n/2 + 300}}
					got, err := follow(t, r, TailOptions{Offset: "-1", LongPoll: tc.longPoll}, tc.media, messages)
					if err != nil || got != want {
						t.Fatalf("cut after %d: told %q, want %q; %v", n, got, want, err)
					}
					whole = r.dials == 1
				})
				if whole || t.Failed() {
					if n < 500 {
						t.Errorf("only %d bytes came", n)
					}
					return
				}
			}
		})
	}
}

// From "now" on nothing is missed, though the first try of the tail fails.
func TestTailFromNow(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		r := newRig(t, "application/json")
		r.node(t, http.MethodPost, `{"n":0}`, "application/json")
		fail := refusing(1, http.MethodGet, 503, "LATER")
		r.front = func(w http.ResponseWriter, req *http.Request, node http.Handler) {
			fail(w, req, node)
			if req.Method == http.MethodHead {
				r.node(t, http.MethodPost, `{"n":1}`, "application/json")
				r.node(t, http.MethodPost, "", "", hClosed, "true")
			}
		}
		var got string
		err := r.Tail(t.Context(), TailOptions{Stream: r.stream, Offset: "now"}, func(e Event) error {
			got += string(e.Data)
			return nil
		})
		if err != nil || got != `{"n":1}`+"\n" {
			t.Errorf("%q, %v", got, err)
		}
	})
}

// A gateway that is away for an hour is waited for, with bounded waits.
func TestTailOutlastsARestart(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		r := newRig(t, "application/json")
		var got string
		err := r.Tail(t.Context(), TailOptions{Stream: r.stream, Offset: "-1"}, func(e Event) error {
			got += string(e.Data)
			if got == "" {
				r.set(func() { r.down = true })
				r.cut()
				r.node(t, http.MethodPost, `{"n":1}`, "application/json")
				r.node(t, http.MethodPost, "", "", hClosed, "true")
				time.AfterFunc(time.Hour, func() { r.set(func() { r.down = false }) })
				return nil
			}
			return nil
		})
		if err != nil || got != `{"n":1}`+"\n" {
			t.Errorf("%q, %v", got, err)
		}
	})
}

func TestTailObeysRetryAfter(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		r := newRig(t, "application/json")
		r.node(t, http.MethodPost, `{"n":1}`, "application/json")
		r.node(t, http.MethodPost, "", "", hClosed, "true")
		r.front = refusing(3, http.MethodGet, 429, "LIVE_READS_EXHAUSTED", "Retry-After", "40")
		began, got := time.Now(), ""
		err := r.Tail(t.Context(), TailOptions{Stream: r.stream, Offset: "-1"}, func(e Event) error {
			got += string(e.Data)
			return nil
		})
		if took := time.Since(began); err != nil || got != `{"n":1}`+"\n" || took < 2*time.Minute || took > 2*time.Minute+5*time.Second {
			t.Errorf("%q, %v after %v", got, err, took)
		}
	})
}

// Refusals that stay end a tail at once, before it stood and after.
func TestTailRefused(t *testing.T) {
	for _, status := range []int{400, 401, 402, 403, 404, 410, 412, 416} {
		for _, late := range []bool{false, true} {
			bubble.Test(t, func(t *testing.T) {
				r := newRig(t, "application/json")
				r.node(t, http.MethodPost, `{"n":1}`, "application/json")
				refuse := refusing(1000, http.MethodGet, status, "NO", "X-Request-Id", "abc")
				if !late {
					r.front = refuse
				}
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				err := r.Tail(ctx, TailOptions{Stream: r.stream, Offset: "-1"}, func(Event) error {
					r.set(func() { r.front = refuse })
					r.cut()
					return nil
				})
				var e *Error
				if !errors.As(err, &e) || e.Status != status || e.Code != "NO" || e.RequestID != "abc" {
					t.Errorf("status %d, late %v: %v", status, late, err)
				}
			})
		}
	}
}

// A stream's deletion, and another one in its place, end a tail; what is there then
// is not told for what was.
func TestTailOfAStreamThatGoes(t *testing.T) {
	for name, tc := range map[string]struct {
		again    bool
		longPoll bool
		status   int
	}{
		"deleted, events":        {false, false, 404},
		"deleted, long-polls":    {false, true, 404},
		"made again, events":     {true, false, 412},
		"made again, long-polls": {true, true, 412},
	} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				r := newRig(t, "application/json")
				r.node(t, http.MethodPost, `{"n":1}`, "application/json")
				var got string
				err := r.Tail(t.Context(), TailOptions{Stream: r.stream, Offset: "-1", LongPoll: tc.longPoll}, func(e Event) error {
					got += string(e.Data)
					r.node(t, http.MethodDelete, "", "")
					if tc.again {
						r.make(t, "application/json")
						r.node(t, http.MethodPost, `{"other":1}`, "application/json")
					}
					return nil
				})
				var e *Error
				if !errors.As(err, &e) || e.Status != tc.status || got != `{"n":1}`+"\n" {
					t.Errorf("%q, %v", got, err)
				}
			})
		})
	}
}

// The event that says that the credential ended makes the tail ask again, which says
// why; where the credential is good after all, the tail goes on.
func TestTailCredentialEnds(t *testing.T) {
	for name, tc := range map[string]struct{ refused bool }{"gone": {true}, "renewed": {false}} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				r := newRig(t, "application/json")
				r.node(t, http.MethodPost, `{"n":1}`, "application/json")
				r.node(t, http.MethodPost, "", "", hClosed, "true")
				gets := 0
				r.front = func(w http.ResponseWriter, req *http.Request, node http.Handler) {
					if req.Method == http.MethodGet {
						gets++
					}
					switch {
					case req.Method == http.MethodGet && gets == 1:
						w.Header().Set("Content-Type", "text/event-stream")
						_, _ = w.Write([]byte("event: credential-expired\ndata: {\"reason\":\"credential_expired\"}\n\n"))
					case req.Method == http.MethodGet && tc.refused:
						refusing(1, http.MethodGet, 401, "CREDENTIAL_EXPIRED")(w, req, node)
					default:
						node.ServeHTTP(w, req)
					}
				}
				got := ""
				err := r.Tail(t.Context(), TailOptions{Stream: r.stream, Offset: "-1"}, func(e Event) error {
					got += string(e.Data)
					return nil
				})
				var e *Error
				if tc.refused && (!errors.As(err, &e) || e.Code != "CREDENTIAL_EXPIRED") || !tc.refused && (err != nil || got == "") {
					t.Errorf("%q, %v", got, err)
				}
			})
		})
	}
}

// What is no tail, or no event of one, is told, not printed.
func TestTailStrange(t *testing.T) {
	for name, answer := range map[string]string{
		"no offset":   "event: control\ndata: {}\n\n",
		"no JSON":     "event: control\ndata: <html>\n\n",
		"long line":   "data: " + strings.Repeat("x", maxRead) + "\n\n",
		"long event":  strings.Repeat("data: "+strings.Repeat("x", 1<<20)+"\n", 17) + "\n",
		"many events": strings.Repeat("event: data\ndata: "+strings.Repeat("x", 1<<20)+"\n\n", 17),
	} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				r := newRig(t, "application/json")
				r.front = func(w http.ResponseWriter, req *http.Request, node http.Handler) {
					if req.Method == http.MethodHead {
						node.ServeHTTP(w, req)
						return
					}
					w.Header().Set("Content-Type", "text/event-stream")
					_, _ = w.Write([]byte(answer))
				}
				err := r.Tail(t.Context(), TailOptions{Stream: r.stream, Offset: "-1"}, func(e Event) error {
					t.Errorf("told %d bytes", len(e.Data))
					return nil
				})
				var strange *StrangeError
				if !errors.As(err, &strange) {
					t.Errorf("got %v", err)
				}
			})
		})
	}
}

// A silent connection, as a machine that vanished leaves it, is opened again.
func TestTailOverASilentConnection(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		r := newRig(t, "application/json")
		r.node(t, http.MethodPost, `{"n":1}`, "application/json")
		gets := 0
		r.front = func(w http.ResponseWriter, req *http.Request, node http.Handler) {
			if gets++; gets == 2 { // after the HEAD
				<-req.Context().Done()
				r.node(t, http.MethodPost, "", "", hClosed, "true")
				return
			}
			node.ServeHTTP(w, req)
		}
		began, got := time.Now(), ""
		err := r.Tail(t.Context(), TailOptions{Stream: r.stream, Offset: "-1"}, func(e Event) error {
			got += string(e.Data)
			return nil
		})
		if took := time.Since(began); err != nil || got != `{"n":1}`+"\n" || took < sseQuiet || took > sseQuiet+time.Second {
			t.Errorf("%q, %v after %v", got, err, took)
		}
	})
}

// The caller's error is the tail's; so is the end of the caller's context.
func TestTailIsStopped(t *testing.T) {
	stop := errors.New("stopped")
	bubble.Test(t, func(t *testing.T) {
		r := newRig(t, "application/json")
		r.node(t, http.MethodPost, `{"n":1}`, "application/json")
		if err := r.Tail(t.Context(), TailOptions{Stream: r.stream, Offset: "-1"}, func(Event) error { return stop }); !errors.Is(err, stop) {
			t.Errorf("got %v", err)
		}
		for _, longPoll := range []bool{false, true} {
			ctx, cancel := context.WithTimeoutCause(t.Context(), time.Minute, stop)
			err := r.Tail(ctx, TailOptions{Stream: r.stream, Offset: "now", LongPoll: longPoll}, func(Event) error { return nil })
			cancel()
			if !errors.Is(err, stop) {
				t.Errorf("long-poll %v: %v", longPoll, err)
			}
		}
	})
}
