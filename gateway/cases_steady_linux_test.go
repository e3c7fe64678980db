package gateway

import (
	"bufio"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// U09: with two idle connections a node nearly every request made a handshake, and
// ports ran out in TIME_WAIT. 2000 requests a second to one node make next to no
// connection: for 60 s with SLUICE_SOAK=1, for 1 s without.
func TestSteadyStateMakesNoHandshakes(t *testing.T) {
	const perSecond, clients = 2000, 16
	lasts := time.Second
	if os.Getenv("SLUICE_SOAK") == "1" {
		lasts = time.Minute
	}
	rg, u := newUpRig(t, respond(whole("204 No Content", "Stream-Next-Offset: 7\r\n", "")), rigOptions{})
	node := netip.MustParseAddrPort(strings.TrimPrefix(u.URL, "http://"))
	waiting := timeWaits(t, node)
	ctx, cancel := context.WithTimeout(t.Context(), lasts)
	defer cancel()
	var done atomic.Int64
	var wait sync.WaitGroup
	transport := &http.Transport{MaxIdleConnsPerHost: clients}
	t.Cleanup(transport.CloseIdleConnections)
	for range clients {
		wait.Go(func() {
			tick := time.NewTicker(time.Second * clients / perSecond)
			defer tick.Stop()
			for {
				select {
				case <-ctx.Done():
					return
				case <-tick.C:
				}
				if status, err := rg.small(t.Context(), transport); err != nil || status != http.StatusNoContent {
					t.Errorf("status %d, %v", status, err)
					return
				}
				done.Add(1)
			}
		})
	}
	wait.Wait()
	u.mu.Lock()
	made := len(u.conns)
	u.mu.Unlock()
	left := timeWaits(t, node) - waiting
	t.Logf("%d requests in %s: %d connections, %d in TIME_WAIT", done.Load(), lasts, made, left)
	// Each client may make one, and a machine that stands still for longer than a
	// kept connection is kept may have each make another: twice a minute at the most.
	if bound := 4 * clients; made > bound || left > bound {
		t.Errorf("%d connections made, %d left in TIME_WAIT; want %d at the most", made, left, bound)
	}
	if done.Load() == 0 {
		t.Error("no request was made")
	}
}

// small makes one append.
func (rg *rig) small(ctx context.Context, transport http.RoundTripper) (int, error) {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, rg.URL+"/acme/s.priv", strings.NewReader("x"))
	if err != nil {
		return 0, err
	}
	req.Header.Set("Authorization", "Bearer "+rg.Keys[key])
	res, err := transport.RoundTrip(req)
	if err != nil {
		return 0, err
	}
	_, _ = io.Copy(io.Discard, res.Body)
	return res.StatusCode, res.Body.Close()
}

// timeWaits counts the kernel's connections to or from an address that wait out
// their TIME_WAIT, as /proc/net/tcp tells it.
func timeWaits(t *testing.T, node netip.AddrPort) int {
	t.Helper()
	f, err := os.Open("/proc/net/tcp")
	if err != nil {
		t.Skip(err)
	}
	defer func() { _ = f.Close() }()
	ip := node.Addr().As4()
	want := fmt.Sprintf("%08X:%04X", binary.NativeEndian.Uint32(ip[:]), node.Port())
	const timeWait = "06"
	n := 0
	for lines := bufio.NewScanner(f); lines.Scan(); {
		fields := strings.Fields(lines.Text())
		if len(fields) > 3 && fields[3] == timeWait && (fields[1] == want || fields[2] == want) {
			n++
		}
	}
	return n
}

// The count must be able to find one.
func TestTimeWaitsAreFound(t *testing.T) {
	var lc net.ListenConfig
	l, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	var d net.Dialer
	conn, err := d.DialContext(t.Context(), "tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	other, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	_ = conn.Close() // who closes first waits
	_, _ = io.ReadAll(other)
	_ = other.Close()
	poll(t, "a connection in TIME_WAIT", func() bool {
		return timeWaits(t, netip.MustParseAddrPort(l.Addr().String())) == 1
	})
}
