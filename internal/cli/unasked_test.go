package cli

import (
	"bufio"
	"bytes"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"testing"
)

// What a server sends after its answer stood on standard error with net/http's own words:
// "Unsolicited response received on idle HTTP channel", and its bytes.
func TestUnaskedAnswersAreNotPrinted(t *testing.T) {
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan struct{})
	t.Cleanup(func() {
		_ = l.Close()
		<-served
	})
	creating := strings.Replace(orders, "active", "creating", 1)
	bodies := []string{creating, creating, orders}
	go func() {
		defer close(served)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			// Each connection has one answer, and something after it.
			if _, err := http.ReadRequest(bufio.NewReader(c)); err == nil && len(bodies) > 0 {
				status := "200 OK"
				if len(bodies) == 3 {
					status = "201 Created"
				}
				_, _ = fmt.Fprintf(c, "HTTP/1.1 %s\r\nContent-Length: %d\r\n\r\n%sUNASKED-secret\r\n", status, len(bodies[0]), bodies[0])
				bodies = bodies[1:]
			}
			_ = c.Close()
		}
	}()
	cmd := exec.CommandContext(t.Context(), os.Args[0], "stream", "create", "orders", "--content-type", "application/json")
	cmd.Env = append(os.Environ(), asProgram+"=1", "SLUICE_URL=http://"+l.Addr().String(), "TONBO_API_KEY="+newTestKey(t))
	var out, errOut bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errOut
	if err := cmd.Run(); err != nil || !strings.Contains(out.String(), "State: active\n") || errOut.Len() > 0 {
		t.Errorf("%v, out %q, err %q", err, out.String(), errOut.String())
	}
}
