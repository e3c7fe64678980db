package wire

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"testing"
	"time"

	"sluice/internal/bubble"
)

// S05: a tail on which nothing comes is silent for its reader too, and middleboxes
// cut it. Who reads it is told each time that nothing has come for a while, and
// not while something does; what it says ends the body.
func TestIdleBodies(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		mine, theirs := net.Pipe()
		done := make(chan struct{})
		go func() {
			defer close(done)
			defer func() { _ = theirs.Close() }()
			if _, err := http.ReadRequest(bufio.NewReader(theirs)); err != nil {
				return
			}
			_, _ = io.WriteString(theirs, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
			for range 4 {
				time.Sleep(3 * time.Second)
				_, _ = io.WriteString(theirs, "1\r\nx\r\n")
			}
			_, _ = io.Copy(io.Discard, theirs)
		}()
		at := time.Now()
		var told []string
		errEnough := errors.New("enough")
		x := &Exchange{Connect: time.Second, Head: time.Second, IdleAfter: 4 * time.Second, Idle: func() error {
			told = append(told, fmt.Sprint(time.Since(at)))
			if len(told) == 3 {
				return errEnough
			}
			return nil
		}}
		c := New(Options{Address: "node:1", Idle: time.Second, MaxIdle: 1, MaxHead: 1 << 10, Dial: pipeDial(mine)})
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://node:1/", nil)
		if err != nil {
			t.Fatal(err)
		}
		res, err := x.Do(t.Context(), c, req)
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(res.Body)
		_ = res.Body.Close()
		if string(text) != "xxxx" || !errors.Is(err, errEnough) {
			t.Errorf("read %q, error %v", text, err)
		}
		if got, want := fmt.Sprint(told), "[16s 20s 24s]"; got != want {
			t.Errorf("told at %s, want %s: 4 s after the last byte, at 12 s, and every 4 s", got, want)
		}
		<-done
	})
}

func pipeDial(conn net.Conn) DialFunc {
	return func(context.Context, string, string) (net.Conn, error) { return conn, nil }
}
