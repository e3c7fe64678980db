package gateway

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"sluice/internal/tenant"
)

// tailCounter is a script of a node that counts the tails that are open at it at one
// time, when each of them comes.
type tailCounter struct {
	mu   sync.Mutex
	open map[*upConn]struct{}
	most int
	all  int
}

func (n *tailCounter) script(c *upConn, _ *upRequest) {
	n.mu.Lock()
	for other := range n.open {
		// What the gateway has ended counts no more, whether or not its reader here has
		// been scheduled since.
		if other == c || ended(other.Conn) {
			delete(n.open, other)
		}
	}
	n.open[c] = struct{}{}
	n.most, n.all = max(n.most, len(n.open)), n.all+1
	n.mu.Unlock()
	c.say(sseHead + chunk("data: 1\n\n"))
	c.hold()
}

// ended reports whether the other side has ended a connection, by a look at what the
// kernel would give the next reader.
func ended(conn net.Conn) bool {
	tcp, ok := conn.(*net.TCPConn)
	if !ok {
		return false
	}
	raw, err := tcp.SyscallConn()
	if err != nil {
		return true
	}
	over := false
	err = raw.Control(func(fd uintptr) {
		n, _, err := syscall.Recvfrom(int(fd), make([]byte, 1), syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
		over = n == 0 && err == nil || err != nil && !errors.Is(err, syscall.EAGAIN)
	})
	return err != nil || over
}

// S16: clients that open tails and close them at once had more of them open at the
// node than the cap, since the slot was free before the node's tail had ended, or a
// look and a taking were two steps; and each attempt was a request that nothing held
// back. 1,000 attempts of 20 clients over both protocols, at a cap of 5: never more
// than 5 at the node, no more opened than the rate lets through, no slot left.
func TestChurnNeverBeatsTheCap(t *testing.T) {
	const limit, attempts, rate, burst = 5, 1000, 100, 400
	node := &tailCounter{open: map[*upConn]struct{}{}}
	rg, _ := newUpRig(t, node.script, rigOptions{limits: func(l *tenant.Limits) {
		l.OpenTails, l.RequestsPerSecond, l.Burst = limit, rate, burst
	}})
	began := time.Now()
	var opened, refused, limited atomic.Int64
	var group errgroup.Group
	group.SetLimit(20)
	clients := []*http.Client{protocols(t)["h1"], protocols(t)["h2"]}
	for i := range attempts {
		group.Go(func() error {
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			res, err := clients[i%2].Do(getOf(ctx, t, rg.URL+sseTail, rg.Keys[key]))
			if err != nil {
				return err
			}
			defer func() { _ = res.Body.Close() }()
			switch res.StatusCode {
			case http.StatusOK:
				opened.Add(1)
				_, err = res.Body.Read(make([]byte, 1))
				return err
			case http.StatusTooManyRequests:
				if res.Header.Get("RateLimit") != "" {
					limited.Add(1)
				} else {
					refused.Add(1)
				}
				return nil
			default:
				return fmt.Errorf("status %d", res.StatusCode)
			}
		})
	}
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
	took := time.Since(began)
	poll(t, "all slots", func() bool { return rg.Limits.OpenTails() == 0 })
	node.mu.Lock()
	defer node.mu.Unlock()
	if node.most > limit || int64(node.all) != opened.Load() {
		t.Errorf("%d tails at the node at one time, want at most %d; %d came, %d were answered", node.most, limit, node.all, opened.Load())
	}
	if most := burst + int64(rate*took.Seconds()) + 1; opened.Load()+refused.Load() > most {
		t.Errorf("%d attempts passed the rate in %v, want at most %d", opened.Load()+refused.Load(), took, most)
	}
	if opened.Load() < limit || refused.Load() == 0 || limited.Load() == 0 {
		t.Errorf("opened %d, refused %d for the cap and %d for the rate: the trial did not try what it is for", opened.Load(), refused.Load(), limited.Load())
	}
	t.Logf("in %v: opened %d, refused %d for the cap, %d for the rate; %d at most at one time", took, opened.Load(), refused.Load(), limited.Load(), node.most)
}
