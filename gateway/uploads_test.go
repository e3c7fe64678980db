package gateway

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"sluice/gateway/upstream"
	"sluice/internal/tenant"
	"sluice/ratelimit"
)

const mebibyte = 1 << 20

// largeStore is a way to the nodes that takes every write, large ones only when the
// test lets go of them.
type largeStore struct {
	Upstream
	came  chan int // the size of a large one
	leave chan struct{}
}

func newLargeStore(o *Options) *largeStore {
	n := &largeStore{Upstream: o.Upstream, came: make(chan int, 64), leave: make(chan struct{}, 64)}
	o.Upstream = n
	return n
}

// Send implements Upstream.
func (n *largeStore) Send(ctx context.Context, r *http.Request, m upstream.Meta) (*http.Response, error) {
	if len(m.Body) > smallBody {
		n.came <- len(m.Body)
		select {
		case <-n.leave:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	return &http.Response{StatusCode: http.StatusNoContent, Header: http.Header{}, Body: http.NoBody, Request: r, ProtoMajor: 1, ProtoMinor: 1}, nil
}

// none wants no large body at the nodes.
func (n *largeStore) none(t *testing.T) {
	t.Helper()
	select {
	case size := <-n.came:
		t.Errorf("a body of %d bytes reached the nodes", size)
	default:
	}
}

// newUploadRig is a rig whose uploads are limited, with the nodes of a largeStore.
func newUploadRig(t *testing.T, uploads int, byteLimit int64, change func(*Options)) (*rig, *largeStore) {
	t.Helper()
	var nodes *largeStore
	rg := newRig(t, rigOptions{
		limits: func(l *tenant.Limits) { l.Uploads, l.UploadBytes = uploads, byteLimit },
		change: func(o *Options) {
			nodes = newLargeStore(o)
			if change != nil {
				change(o)
			}
		},
	})
	return rg, nodes
}

// half is an upload under way, on a connection of its own.
type half struct {
	net.Conn
	in   *bufio.Reader
	rest string // of the body, framed
}

// begin sends the head of a body of so many bytes, and the first of them. Without
// declared it is sent in one chunk.
func (rg *rig) beginBody(t *testing.T, keyName string, size, sent int, declared bool) *half {
	t.Helper()
	account, _, other := strings.Cut(keyName, ".")
	if !other {
		account = "acme"
	}
	head := "POST /" + account + "/s.priv HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n" + bearer(rg.Keys[keyName])
	body := strings.Repeat("1", size)
	h := &half{Conn: rg.dial(t), rest: body[sent:]}
	h.in = bufio.NewReader(h.Conn)
	if declared {
		head += fmt.Sprintf("Content-Length: %d\r\n\r\n", size)
	} else {
		head += fmt.Sprintf("Transfer-Encoding: chunked\r\n\r\n%x\r\n", size)
		h.rest += "\r\n0\r\n\r\n"
	}
	rg.write(t, h.Conn, head+body[:sent])
	return h
}

// finish sends what is left.
func (h *half) finish(t *testing.T, rg *rig) {
	t.Helper()
	rg.write(t, h.Conn, h.rest)
	h.rest = ""
}

// answer reads the answer.
func (h *half) answer(t *testing.T) answer {
	t.Helper()
	return readAnswer(t, h.in, http.MethodPost)
}

// postSize posts so many bytes, declared or in chunks.
func (rg *rig) postSize(t *testing.T, path, keyName string, size int, declared bool) answer {
	t.Helper()
	var in io.Reader = bytes.NewReader(bytes.Repeat([]byte("1"), size))
	if !declared {
		in = undeclared{in}
	}
	return send(t, http.MethodPost, rg.URL+path, rg.Keys[keyName], in, "Content-Type", rigType)
}

// takenUploads counts the slots that were ever taken.
type takenUploads struct {
	ratelimit.Uploads
	taken atomic.Int64
}

// AcquireUpload implements ratelimit.Uploads.
func (u *takenUploads) AcquireUpload(ctx context.Context, s ratelimit.Subject, l ratelimit.UploadLimits, bytes int64) (ratelimit.Upload, error) {
	held, err := u.Uploads.AcquireUpload(ctx, s, l, bytes)
	if err == nil {
		u.taken.Add(1)
	}
	return held, err
}

func (rg *rig) uploads() (bodies int, held int64) {
	return rg.Limits.UploadsOf(ratelimit.Subject{Account: "acme"})
}

// awaitUploads waits until acme has so many uploads under way, of so many bytes.
func (rg *rig) awaitUploads(t *testing.T, wantBodies int, wantBytes int64) {
	t.Helper()
	poll(t, fmt.Sprintf("%d uploads of %d bytes", wantBodies, wantBytes), func() bool {
		bodies, held := rg.uploads()
		return bodies == wantBodies && held == wantBytes
	})
}

// exhausted wants the refusal of an upload, with a time to come back.
func exhausted(t *testing.T, what string, res answer, code string) {
	t.Helper()
	if res.StatusCode != http.StatusTooManyRequests || res.code() != code || res.Header.Get("Retry-After") != "1" || res.Header.Get("RateLimit") != "" {
		t.Errorf("%s: got %d %s %v; want 429 %s with Retry-After: 1, and no RateLimit", what, res.StatusCode, res.Text, res.Header, code)
	}
}

// Facts U2, Q6: an account over its count of uploads is refused, and nothing of the
// body is forwarded; small bodies and other accounts go on. Facts U3: a slot is free
// once the body is whole, before the node has answered.
func TestUploadCount(t *testing.T) {
	rg, nodes := newUploadRig(t, 2, 1<<40, nil)
	first, second := rg.beginBody(t, key, 2*mebibyte, 10, true), rg.beginBody(t, key, 2*mebibyte, mebibyte+1, false)
	rg.awaitUploads(t, 2, 4*mebibyte)
	for _, declared := range []bool{true, false} {
		exhausted(t, fmt.Sprintf("a third, declared %t", declared), rg.postSize(t, "/acme/s.priv", key, mebibyte+1, declared), "UPLOADS_EXHAUSTED")
	}
	nodes.none(t)
	for i := range 16 {
		if res := rg.postSize(t, "/acme/s.priv", key, mebibyte-i, i%2 == 0); res.StatusCode != http.StatusNoContent {
			t.Errorf("small body %d: %d %s", i, res.StatusCode, res.Text)
		}
	}
	nodes.leave <- struct{}{}
	if res := rg.postSize(t, "/other/s.priv", "other.full", 2*mebibyte, true); res.StatusCode != http.StatusNoContent {
		t.Errorf("another account's: %d %s", res.StatusCode, res.Text)
	}
	<-nodes.came
	// The first is whole, and the node has it and does not answer.
	first.finish(t, rg)
	<-nodes.came
	rg.awaitUploads(t, 1, 2*mebibyte)
	third := rg.beginBody(t, key, 3*mebibyte, 10, true)
	rg.awaitUploads(t, 2, 5*mebibyte)
	for _, h := range []*half{second, third} {
		h.finish(t, rg)
		<-nodes.came
	}
	rg.awaitUploads(t, 0, 0)
	for range 3 {
		nodes.leave <- struct{}{}
	}
	for i, h := range []*half{first, second, third} {
		if res := h.answer(t); res.StatusCode != http.StatusNoContent {
			t.Errorf("upload %d: %d %s", i, res.StatusCode, res.Text)
		}
	}
}

// Facts U3: a body of undeclared length counts from when it outgrows small, by the
// room that is made for it.
func TestUploadCountsFromWhenItOutgrowsSmall(t *testing.T) {
	rg, nodes := newUploadRig(t, 1, 1<<40, nil)
	h := rg.beginBody(t, key, 5*mebibyte, mebibyte, false)
	send := func(n int) {
		rg.write(t, h.Conn, h.rest[:n])
		h.rest = h.rest[n:]
	}
	// It is small up to here, however much of it is still to come.
	poll(t, "room for a small body", func() bool { return rg.Budget.Used() == mebibyte })
	if bodies, held := rg.uploads(); bodies != 0 || held != 0 {
		t.Errorf("%d uploads of %d bytes before it outgrew small", bodies, held)
	}
	for _, step := range []struct{ more, room int }{{1, 2}, {mebibyte, 4}, {2 * mebibyte, 8}} {
		send(step.more)
		rg.awaitUploads(t, 1, int64(step.room)*mebibyte)
	}
	h.finish(t, rg)
	if size := <-nodes.came; size != 5*mebibyte {
		t.Errorf("%d bytes at the node", size)
	}
	rg.awaitUploads(t, 0, 0)
	nodes.leave <- struct{}{}
	if res := h.answer(t); res.StatusCode != http.StatusNoContent {
		t.Errorf("answer %d %s", res.StatusCode, res.Text)
	}
}

// Facts U1, Q6: an account over the bytes of its uploads is refused; the only large
// body under way has its bytes, however many; small bodies and other accounts go on.
func TestUploadBytes(t *testing.T) {
	for name, tc := range map[string]struct {
		first, more int
		passes      bool
	}{
		"up to the limit":           {2 * mebibyte, 2 * mebibyte, true},
		"a byte over the limit":     {2 * mebibyte, 2*mebibyte + 1, false},
		"beside one that is over":   {7 * mebibyte, mebibyte + 1, false},
		"one over beside a smaller": {mebibyte + 1, 7 * mebibyte, false},
	} {
		for _, declared := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, declared %t", name, declared), func(t *testing.T) {
				rg, nodes := newUploadRig(t, 100, 4*mebibyte, nil)
				first := rg.beginBody(t, key, tc.first, 10, true)
				rg.awaitUploads(t, 1, int64(tc.first))
				if tc.passes {
					nodes.leave <- struct{}{}
				}
				res := rg.postSize(t, "/acme/s.priv", key, tc.more, declared)
				if tc.passes && res.StatusCode != http.StatusNoContent {
					t.Errorf("got %d %s, want it taken", res.StatusCode, res.Text)
				}
				if !tc.passes {
					exhausted(t, "beside the first", res, "UPLOAD_BYTES_EXHAUSTED")
					nodes.none(t)
				}
				for range 2 {
					if res := rg.postSize(t, "/acme/s.priv", key, mebibyte, declared); res.StatusCode != http.StatusNoContent {
						t.Errorf("a small body: %d %s", res.StatusCode, res.Text)
					}
				}
				nodes.leave <- struct{}{}
				if res := rg.postSize(t, "/other/s.priv", "other.full", 7*mebibyte, declared); res.StatusCode != http.StatusNoContent {
					t.Errorf("another account's: %d %s", res.StatusCode, res.Text)
				}
				rg.awaitUploads(t, 1, int64(tc.first))
				nodes.leave <- struct{}{}
				first.finish(t, rg)
				if res := first.answer(t); res.StatusCode != http.StatusNoContent {
					t.Errorf("the first: %d %s", res.StatusCode, res.Text)
				}
				rg.awaitUploads(t, 0, 0)
			})
		}
	}
}

// Facts B6: what an upload is refused for, count or bytes, reaches a client that
// sends its whole body before it reads, and its connection goes on. Over both
// protocols.
func TestUploadsRefusedKeepTheConnection(t *testing.T) {
	for code, limits := range map[string]func(*tenant.Limits){
		"UPLOADS_EXHAUSTED":      func(l *tenant.Limits) { l.Uploads = 1 },
		"UPLOAD_BYTES_EXHAUSTED": func(l *tenant.Limits) { l.UploadBytes = 2 * mebibyte },
	} {
		occupied := func(t *testing.T, o *Options) {
			t.Helper()
			all := ratelimit.UploadLimits{Uploads: 1, Bytes: 1}
			if _, err := o.Uploads.AcquireUpload(t.Context(), ratelimit.Subject{Account: "acme"}, all, 2*mebibyte); err != nil {
				t.Fatal(err)
			}
		}
		const post = "POST /acme/s.priv HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nAuthorization: Bearer {full}\r\n"
		for framing, sent := range framings(`"` + strings.Repeat("x", 3*mebibyte) + `"`) {
			t.Run(code+"/"+framing, func(t *testing.T) {
				t.Parallel()
				o := rigOptions{limits: limits, change: func(o *Options) { occupied(t, o) }}
				refusedBody{post, http.StatusTooManyRequests, code, o, http.StatusOK}.run(t, sent)
			})
		}
		t.Run(code+"/HTTP2", func(t *testing.T) {
			t.Parallel()
			rg, c := newRig(t, rigOptions{limits: limits, change: func(o *Options) { occupied(t, o) }}), protocols(t)["h2"]
			for _, size := range []int{mebibyte + 1, 7 * mebibyte} {
				for _, in := range []io.Reader{bytes.NewReader(make([]byte, size)), undeclared{bytes.NewReader(make([]byte, size))}} {
					exhausted(t, fmt.Sprint(size, " bytes"), rg.post(t, c, "/acme/s.priv", key, in), code)
				}
			}
			if seen := rg.reached(); len(seen) != 0 {
				t.Errorf("the node saw %q, want nothing", seen)
			}
			poll(t, "the budget given back", func() bool { return rg.Budget.Used() == 0 })
			if bodies, held := rg.uploads(); bodies != 1 || held != 2*mebibyte {
				t.Errorf("%d uploads of %d bytes at the end, want the one that was there", bodies, held)
			}
		})
	}
}

// H12: a large upload that waits for 100 Continue and is refused was invited to send
// what nobody would take.
func TestUploadsRefusedBeforeTheyAreSent(t *testing.T) {
	for code, limits := range map[string]func(*tenant.Limits){
		"UPLOADS_EXHAUSTED":      func(l *tenant.Limits) { l.Uploads = 0 },
		"UPLOAD_BYTES_EXHAUSTED": func(l *tenant.Limits) { l.UploadBytes = 0 },
	} {
		t.Run(code, func(t *testing.T) {
			o := pace(Pace{DrainStall: 20 * time.Millisecond})
			o.limits = limits
			rg := newRig(t, o)
			conn := rg.dial(t)
			rg.write(t, conn, privHead+"Expect: 100-continue\r\nContent-Length: 2000000\r\n\r\n")
			text, err := io.ReadAll(conn)
			if err != nil || !strings.HasPrefix(string(text), "HTTP/1.1 429 ") || !strings.Contains(string(text), code) {
				t.Errorf("got %q, %v; want the refusal at once, no 100, and the end", text, err)
			}
		})
	}
}

// Facts U6: an upload that is refused for the budget gives its account's slot back
// before what is left of it has been dropped, and its share of the budget too.
func TestUploadRefusedForTheBudgetHoldsNothing(t *testing.T) {
	for _, declared := range []bool{true, false} {
		t.Run(fmt.Sprintf("declared %t", declared), func(t *testing.T) {
			rg, nodes := newUploadRig(t, 1, 1<<40, func(o *Options) {
				o.Budget, o.Pace.BudgetWait = NewBodyBudget(8*mebibyte), 500*time.Millisecond
			})
			other := &reservation{budget: rg.Options.Budget}
			if !tryResize(t, other, 6*mebibyte) {
				t.Fatal("no room for the first")
			}
			h := rg.beginBody(t, key, 3*mebibyte, mebibyte+1, declared)
			poll(t, "its slot taken, while it waits for the budget", func() bool { bodies, _ := rg.uploads(); return bodies == 1 })
			// Now it is refused, and what is left of it is waited for.
			rg.awaitUploads(t, 0, 0)
			poll(t, "its part of the budget given back", func() bool { return rg.Options.Budget.Used() == 6*mebibyte })
			h.finish(t, rg)
			if res := h.answer(t); res.StatusCode != http.StatusServiceUnavailable || res.code() != "UPLOAD_BUDGET_EXHAUSTED" || res.Close {
				t.Errorf("got %d %s, close %t", res.StatusCode, res.Text, res.Close)
			}
			nodes.none(t)
		})
	}
}
