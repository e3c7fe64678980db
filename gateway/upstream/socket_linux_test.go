package upstream

import (
	"net"
	"net/http"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

// socketOptions reads what the kernel has of a connection.
func socketOptions(t *testing.T, conn net.Conn) map[string]int {
	t.Helper()
	socket, ok := conn.(syscall.Conn)
	if !ok {
		t.Errorf("the connection is a %T", conn)
		return nil
	}
	raw, err := socket.SyscallConn()
	if err != nil {
		t.Error(err)
		return nil
	}
	got := map[string]int{}
	read := func(fd uintptr, name string, level, option int) {
		if got[name], err = unix.GetsockoptInt(int(fd), level, option); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := raw.Control(func(fd uintptr) {
		read(fd, "keepalive", unix.SOL_SOCKET, unix.SO_KEEPALIVE)
		read(fd, "idle s", unix.IPPROTO_TCP, unix.TCP_KEEPIDLE)
		read(fd, "interval s", unix.IPPROTO_TCP, unix.TCP_KEEPINTVL)
		read(fd, "probes", unix.IPPROTO_TCP, unix.TCP_KEEPCNT)
		read(fd, "user timeout ms", unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT)
	}); err != nil {
		t.Error(err)
	}
	return got
}

// Facts L27, L28: a user timeout of 5 s goes with a keepalive of 2 s and then 1 s,
// on requests' connections and on probes'; the third probe leaves before 5 s.
func TestSocketOptions(t *testing.T) {
	c := newCluster(t, 1)
	p := newPool(t, c.URLs()...)
	want := map[string]int{"keepalive": 1, "idle s": 2, "interval s": 1, "probes": 3, "user timeout ms": 5000}
	dials := map[string]DialFunc{"requests": p.dial, "probes": p.prober.DialContext}
	for name, dial := range dials {
		t.Run(name, func(t *testing.T) {
			conn, err := dial(t.Context(), "tcp", strings.TrimPrefix(c.URLs()[0], "http://"))
			if err != nil {
				t.Fatal(err)
			}
			got := socketOptions(t, conn)
			_ = conn.Close()
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("socket options (-want +got):\n%s", diff)
			}
			if third := 1000 * (got["idle s"] + 2*got["interval s"]); third >= got["user timeout ms"] {
				t.Errorf("the third keepalive probe leaves after %d ms, the timeout is %d ms", third, got["user timeout ms"])
			}
		})
	}
}

// Facts L26: a node that drains takes no connections, but answers a write on one
// that it has: the same client port.
func TestDrainingNodeAnswersOnKeptConnections(t *testing.T) {
	c := newCluster(t, 1)
	p := newPool(t, c.URLs()...)
	waitIdentity(t, p)
	m := Meta{Path: streamPath, Body: []byte("x")}
	// A kept connection lives for half a second only; on a machine that stands
	// still for so long there is none, which is not this test's matter.
	for range 10 {
		c.ResetRequests()
		p.mustSend(t, http.MethodPost, streamPath, m, "Content-Type", "text/plain")
		c.Node(0).Drain()
		res, err := p.send(t.Context(), http.MethodPost, streamPath, m, "Content-Type", "text/plain")
		if err == nil && res.StatusCode == http.StatusNoContent {
			seen := clientRequests(c)
			if len(seen) != 2 || seen[0].RemoteAddr != seen[1].RemoteAddr {
				t.Errorf("%d requests, from %q and then from %q", len(seen), seen[0].RemoteAddr, seen[len(seen)-1].RemoteAddr)
			}
			return
		}
		wantKind(t, err, Unreachable) // and in no way a doubt of the outcome
		c.Node(0).Restart()
		eventually(t, "the node is back", func() bool { return p.Ready() == nil })
	}
	t.Error("in ten tries no write was answered on the kept connection")
}
