package gateway

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strings"
	"sync"
	"testing"
	"testing/iotest"
	"time"

	"sluice/internal/bubble"
)

// between says by the standard's own words, once more and in another way, whether
// an event stream may be cut here: behind an empty line, or before anything, where the
// last event with a name is not data, whose offset is still to come.
func between(stream string) bool {
	lines := strings.ReplaceAll(strings.ReplaceAll(stream, "\r\n", "\n"), "\r", "\n")
	if lines != "" && lines != "\n" && !strings.HasSuffix(lines, "\n\n") {
		return false
	}
	names := regexp.MustCompile(`(?m)^event(?:: ?(.*))?$`)
	last := ""
	for block := range strings.SplitSeq(lines, "\n\n") {
		if found := names.FindAllStringSubmatch(block, -1); found != nil {
			last = found[len(found)-1][1]
		}
	}
	return last != "data"
}

// shortest is the shortest part of the stream that may be cut there and has
// what was handed on already; ok is false where there is none.
func shortest(stream string, handed int) (part string, ok bool) {
	for n := handed; n <= len(stream); n++ {
		if between(stream[:n]) {
			return stream[:n], true
		}
	}
	return stream, false
}

func TestEventBoundary(t *testing.T) {
	for _, stream := range []string{
		"", "\n", "\r", "\r\n", "\n\n", "\r\r", "\r\n\r\n", "\n\r\n\r", "a", "a\n", "a\n\n", "a\r\r", "a\r\n\r\n", "a\n\r\n", "a\r\n\n", "a\r\n\r",
		"a\n\nb", "a\n\nb\n", "a\n\nb\n\n", "a\r\rb\r\r", "a\r\n\r\nb\r\n\r\n", "a\nb\n\n", ":c\n\n", "\xef\xbb\xbfa\n\n", "a\x00\n\n", "\n\na\n\n\n\nb",
		"event: data\ndata: {}\ndata:\n\n", "event: data\rdata: {}\r\rx", "event: data\n\nevent:control\n\n", "event:data\r\n\r\n:c\r\n\r\nevent: error\r\n\r\n",
		"event: data\nevent: x\n\n", "event\nevent:data\n\ndata: 1\n\nevent\n\n", "event: database and more of it\n\n", "data: event: data\n\n", "events: data\n\n",
	} {
		var e eventBoundary
		for i := range len(stream) + 1 {
			if got, want := e.boundary(), between(stream[:i]); got != want {
				t.Errorf("%q: between events %t, want %t", stream[:i], got, want)
			}
			if i < len(stream) {
				e.pass([]byte(stream[i : i+1]))
			}
		}
	}
}

var errNodeLeft = errors.New("the node's body has ended in the middle")

// nodeBody is a node's body that comes in pieces, until it is cancelled.
type nodeBody struct {
	rest     string
	piece    int
	end      error  // behind the last piece
	onRead   func() // called while a Read has its bytes already
	canceled error
}

func (n *nodeBody) Read(p []byte) (int, error) {
	if n.canceled != nil {
		return 0, n.canceled
	}
	size := copy(p, n.rest[:min(n.piece, len(n.rest))])
	n.rest = n.rest[size:]
	if n.onRead != nil {
		n.onRead()
	}
	if size == 0 {
		return 0, n.end
	}
	return size, nil
}

func (*nodeBody) Close() error { return nil }

// eventRun is one body that is ended after some of its bytes.
type eventRun struct {
	stream      string
	after       int // bytes that the client has when it is ended
	piece, room int // of the node's body, of the client's reads
	inRead      bool
	end         error
}

// run gives what the client got, how much of it was handed on before the end (-1
// where the node's came first), and how it ended.
func (e eventRun) run() (got string, handed int, err error) {
	node := &nodeBody{rest: e.stream, piece: e.piece, end: e.end}
	body := &eventBody{body: node, cancel: func(err error) { node.canceled = err }, until: func(time.Time) {}}
	defer func() { _ = body.Close() }()
	var client bytes.Buffer
	handed = -1
	end := func() {
		if handed < 0 && len(e.stream)-len(node.rest) >= e.after {
			handed = client.Len()
			body.end([]byte(credentialExpired))
		}
	}
	if e.inRead {
		node.onRead = end
	}
	buf := make([]byte, e.room)
	for err == nil {
		if !e.inRead && client.Len() >= e.after {
			end()
		}
		var n int
		n, err = body.Read(buf)
		client.Write(buf[:n])
	}
	return client.String(), handed, err
}

// check holds what the client got against what it should have.
func (e eventRun) check(t *testing.T) {
	t.Helper()
	got, handed, err := e.run()
	part, whole := "", false
	if handed >= 0 {
		part, whole = shortest(e.stream, handed)
	}
	want, wantErr := part+credentialExpired, io.EOF
	if !whole {
		want, wantErr = e.stream, e.end
	}
	if got != want || !errors.Is(err, wantErr) {
		t.Fatalf("%q ended after %d (%d handed on), pieces of %d, reads of %d, in a read %t:\n got %q, %v\nwant %q, %v",
			e.stream, e.after, handed, e.piece, e.room, e.inRead, got, err, want, wantErr)
	}
}

// Facts §6: Ursula's own gateway may put the last event inside one of the node's.
// Ended after any byte, with any line ends and in any pieces, the client gets whole
// events and then the last one, and never data whose offset it is not told: both
// published clients hand such data on at a clean end, and then ask for it again.
func TestEventBodyEndsBetweenEvents(t *testing.T) {
	events := "event: data\ndata:{\"n\":1}\ndata:\n\nevent: control\ndata: {}\n\n: hb\n\nevent: data\ndata:x\n\n"
	for _, lineEnd := range []string{"\n", "\r\n", "\r"} {
		stream := strings.ReplaceAll(events, "\n", lineEnd)
		for after := range len(stream) + 1 {
			for _, piece := range []int{1, 2, 7, len(stream)} {
				for _, room := range []int{1, 3, 64, 32 << 10} {
					for _, inRead := range []bool{false, true} {
						eventRun{stream, after, piece, room, inRead, errNodeLeft}.check(t)
					}
				}
			}
		}
	}
}

// FuzzEventBody: whatever a node sends, and however it comes, what the client gets
// is a part that ends between events and the last event, or the node's own end.
func FuzzEventBody(f *testing.F) {
	f.Add("event: data\ndata: 1\n\nevent: data\n", uint16(3), uint8(2), uint8(5), false)
	f.Add("a\r\n\r\nb\r\rc\n\n", uint16(6), uint8(1), uint8(1), true)
	f.Add("\r", uint16(0), uint8(9), uint8(2), true)
	f.Add("", uint16(0), uint8(1), uint8(1), false)
	f.Fuzz(func(t *testing.T, stream string, after uint16, piece, room uint8, inRead bool) {
		for _, end := range []error{errNodeLeft, io.EOF} {
			eventRun{stream, int(after), max(1, int(piece)), max(1, int(room)), inRead, end}.check(t)
		}
	})
}

// What is not ended is not touched, whatever the reads are like.
func TestEventBodyPasses(t *testing.T) {
	const stream = "data: 1\n\ndata: 2\r\rda"
	for name, wrap := range map[string]func(io.Reader) io.Reader{
		"as it is": func(r io.Reader) io.Reader { return r }, "a byte": iotest.OneByteReader, "half": iotest.HalfReader, "data with its end": iotest.DataErrReader,
	} {
		body := &eventBody{body: io.NopCloser(wrap(strings.NewReader(stream)))}
		if text, err := io.ReadAll(body); err != nil || string(text) != stream {
			t.Errorf("%s: %q, %v", name, text, err)
		}
		if err := body.Close(); err != nil {
			t.Errorf("%s: close: %v", name, err)
		}
	}
}

// pipeBody is an eventBody of a pipe, whose exchange is a context.
func pipeBody() (body *eventBody, node *io.PipeWriter, exchange context.Context, bounds *[]time.Time) {
	r, w := io.Pipe()
	ctx, cancel := context.WithCancelCause(context.Background())
	context.AfterFunc(ctx, func() { _ = w.CloseWithError(context.Cause(ctx)) })
	bounds = &[]time.Time{}
	var mu sync.Mutex
	body = &eventBody{body: r, cancel: cancel, until: func(at time.Time) {
		mu.Lock()
		defer mu.Unlock()
		*bounds = append(*bounds, at)
	}}
	return body, w, ctx, bounds
}

// A tail whose event does not become whole is given up after 5 s, not with a clean
// end; the client's side has a bound from the start, and none that passes it.
func TestEventBodyGivesUp(t *testing.T) {
	for _, pieces := range []int{0, 1, 4} { // that come, one a second
		t.Run(fmt.Sprint(pieces), func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				body, node, exchange, bounds := pipeBody()
				start := time.Now()
				go func() {
					_, _ = io.WriteString(node, "data: a")
					for range pieces {
						time.Sleep(time.Second)
						_, _ = io.WriteString(node, "b")
					}
				}()
				bubble.Wait()
				readN(t, body, 7)
				body.end([]byte(credentialExpired))
				body.end([]byte("again"))
				text, err := io.ReadAll(body)
				if !errors.Is(err, errEventLate) || string(text) != strings.Repeat("b", pieces) || time.Since(start) != eventTime {
					t.Errorf("%q, %v after %s", text, err, time.Since(start))
				}
				if cause := context.Cause(exchange); !errors.Is(cause, errEventLate) {
					t.Errorf("the exchange ended for %v", cause)
				}
				if len(*bounds) != 1 || !(*bounds)[0].Equal(start.Add(eventTime)) {
					t.Errorf("the client's side is bounded at %v", *bounds)
				}
				_ = body.Close()
			})
		})
	}
}

// An end that came as the request was over reached for the connection when it was
// another's: over HTTP/2 that took the process down. After Close, end touches
// nothing; nor does what an earlier one left.
func TestEventBodyLeavesTheClientAlone(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		body, _, exchange, bounds := pipeBody()
		if err := body.Close(); err != nil {
			t.Fatal(err)
		}
		body.end([]byte(credentialExpired))
		time.Sleep(2 * eventTime)
		if len(*bounds) != 0 || exchange.Err() != nil {
			t.Errorf("after Close: bounds %v, exchange %v", *bounds, context.Cause(exchange))
		}
		body, node, exchange, bounds := pipeBody()
		go func() { _, _ = io.WriteString(node, "data: a") }()
		readN(t, body, 7)
		body.end([]byte(credentialExpired))
		_ = body.Close()
		time.Sleep(2 * eventTime)
		if len(*bounds) != 1 || exchange.Err() != nil {
			t.Errorf("closed in the middle: bounds %v, exchange %v", *bounds, context.Cause(exchange))
		}
	})
}

// Ends and reads at one time: whatever comes first, the client's part ends between
// events. Run with the race detector.
func TestEventBodyConcurrently(t *testing.T) {
	const event = "event: data\ndata: 12345\n\nevent: control\ndata: {}\n\n"
	for range 200 {
		body, node, _, _ := pipeBody()
		var wait sync.WaitGroup
		wait.Go(func() {
			for {
				for _, piece := range []string{event[:9], event[9:22], event[22:25], event[25:]} {
					if _, err := io.WriteString(node, piece); err != nil {
						return
					}
				}
			}
		})
		begun := make(chan struct{})
		for range 3 {
			wait.Go(func() {
				<-begun
				body.end([]byte(credentialExpired))
			})
		}
		var client bytes.Buffer
		buf := make([]byte, 100)
		for n := 0; ; n++ {
			if n == 5 {
				close(begun)
			}
			size, err := body.Read(buf)
			client.Write(buf[:size])
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		_ = body.Close()
		wait.Wait()
		part, ok := strings.CutSuffix(client.String(), credentialExpired)
		if !ok || strings.Repeat(event, len(part)/len(event)) != part {
			t.Fatalf("the client got %q", client.String())
		}
	}
}
