package gateway

import (
	"bufio"
	"errors"
	"io"
	"net"
	"net/http"
	"runtime"
	"strings"
	"testing"
	"time"

	"sluice/ratelimit"
)

// S05: a tail on which nothing happened stayed silent, and middleboxes cut it. A
// comment comes each time that nothing has for a while, never inside an event, and
// is in no count of data. Over both protocols.
func TestHeartbeats(t *testing.T) {
	const one, half, rest = "event: data\ndata:1\n\n", "event: data\ndata:", "2\n\n"
	for name, client := range protocols(t) {
		t.Run(name, func(t *testing.T) {
			goOn, inside := make(chan struct{}), make(chan struct{})
			rg, _ := newUpRig(t, func(c *upConn, _ *upRequest) {
				c.say("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n" + chunk(one))
				<-goOn
				c.say(chunk(half))
				<-inside
				c.say(chunk(rest) + "0\r\n\r\n")
			}, rigOptions{change: func(o *Options) { o.Heartbeat = 50 * time.Millisecond }})
			res, cancel := rg.open(t, client, sseTail, key)
			defer cancel()
			if got := readN(t, res.Body, len(one)+4*len(heartbeat)); got != one+strings.Repeat(heartbeat, 4) {
				t.Fatalf("read %q", got)
			}
			close(goOn)
			before := noBeats(readUntil(t, res.Body, half))
			if before != half {
				t.Fatalf("read %q before the rest of the event", before)
			}
			<-time.After(200 * time.Millisecond) // time for four heartbeats
			close(inside)
			if got, err := io.ReadAll(res.Body); err != nil || !strings.HasPrefix(string(got), rest) || noBeats(string(got[len(rest):])) != "" {
				t.Errorf("the rest is %q, error %v", got, err)
			}
			line := rg.awaitLines(t, 1)[0]
			if got := line["bytes_out"]; got != float64(len(one+half+rest)) {
				t.Errorf("bytes_out %v, want %d: heartbeats are no data", got, len(one+half+rest))
			}
		})
	}
}

// noBeats takes heartbeats away from the front of a text.
func noBeats(text string) string {
	for strings.HasPrefix(text, heartbeat) {
		text = text[len(heartbeat):]
	}
	return text
}

// readUntil reads up to and with a text.
func readUntil(t *testing.T, body io.Reader, end string) string {
	t.Helper()
	var got strings.Builder
	for !strings.HasSuffix(got.String(), end) {
		got.WriteString(readN(t, body, 1))
	}
	return got.String()
}

// A long-poll's body is no stream of events: nothing is put into it.
func TestNoHeartbeatInALongPoll(t *testing.T) {
	rg, _ := newUpRig(t, func(c *upConn, _ *upRequest) {
		c.say("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n[")
		<-time.After(100 * time.Millisecond)
		c.say("]")
	}, rigOptions{change: func(o *Options) { o.Heartbeat = 10 * time.Millisecond }})
	if got := rg.Do(t, http.MethodGet, "/acme/s.priv?offset=now&live=long-poll", key, ""); got.Text != "[]" {
		t.Errorf("read %q", got.Text)
	}
}

// S09: a reader that stopped reading held its tail, its slot and what was written
// for it, for as long as it liked. Its tail is cut once a write has waited; memory
// stays where it was, the node's connection ends, and other tails go on.
func TestReaderThatStops(t *testing.T) {
	const event = "event: data\ndata:" // and a mebibyte
	large := strings.Repeat("x", 1<<20)
	for name, stopped := range map[string]bool{"stopped": true, "reading": false} {
		t.Run(name, func(t *testing.T) {
			ended := make(chan struct{})
			rg, _ := newUpRig(t, func(c *upConn, r *upRequest) {
				c.say("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
				if strings.Contains(r.Target, "quiet") {
					c.hold()
					return
				}
				defer close(ended)
				for range 50 {
					if _, err := io.WriteString(c, chunk(event+large+"\n\n")); err != nil {
						return
					}
				}
				c.say("0\r\n\r\n")
			}, rigOptions{change: func(o *Options) { o.Pace.TailWrite = 300 * time.Millisecond }})
			other, cancel := rg.open(t, client(), sseTail+"&quiet=1", key)
			defer cancel()
			var before, after runtime.MemStats
			runtime.GC()
			runtime.ReadMemStats(&before)
			conn := rg.dial(t)
			if tcp, ok := conn.(*net.TCPConn); ok && stopped {
				if err := tcp.SetReadBuffer(4 << 10); err != nil {
					t.Fatal(err)
				}
			}
			rg.write(t, conn, "GET "+sseTail+" HTTP/1.1\r\nHost: x\r\n"+bearer(rg.Keys[key])+"\r\n")
			if !stopped {
				res := nextAnswer(t, bufio.NewReader(conn), http.MethodGet)
				if n, err := io.Copy(io.Discard, res.Body); err != nil || n < 50<<20 {
					t.Errorf("a reader got %d bytes, error %v", n, err)
				}
				return
			}
			<-ended
			poll(t, "the slot given back", func() bool {
				return rg.Limits.TailsOf(ratelimit.Subject{Account: "acme"}) == 1
			})
			runtime.GC()
			runtime.ReadMemStats(&after)
			if after.HeapAlloc > before.HeapAlloc+1<<20 {
				t.Errorf("%d bytes more are held", after.HeapAlloc-before.HeapAlloc)
			}
			rg.awaitCount(t, `sluice_answers_ended_total{end="stalled"} 1`)
			if err := peek(other.Body); !errors.Is(err, errStillOpen) {
				t.Errorf("the other tail: %v", err)
			}
		})
	}
}

var errStillOpen = errors.New("nothing came, and no end")

// peek reports whether a body has ended.
func peek(body io.Reader) error {
	done := make(chan error, 1)
	go func() {
		_, err := body.Read(make([]byte, 1))
		done <- err
	}()
	select {
	case err := <-done:
		return err
	case <-time.After(50 * time.Millisecond):
		return errStillOpen
	}
}
