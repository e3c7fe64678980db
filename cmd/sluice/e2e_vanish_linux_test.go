package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sluice/config"
	"sluice/gateway/upstream"
	"sluice/internal/ursulatest"
)

// vanishing are clients whose network can be taken away: no FIN, no RST, nothing is
// acknowledged any more.
type vanishing struct {
	mu    sync.Mutex
	conns []*net.TCPConn
}

// client is one of either protocol.
func (v *vanishing) client(set func(*http.Protocols)) *http.Client {
	var p http.Protocols
	set(&p)
	return &http.Client{Transport: &http.Transport{Protocols: &p, DisableCompression: true, DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := new(net.Dialer).DialContext(ctx, network, address)
		if tcp, ok := conn.(*net.TCPConn); ok {
			v.mu.Lock()
			defer v.mu.Unlock()
			v.conns = append(v.conns, tcp)
		}
		return conn, err
	}}}
}

// vanish has the kernel drop, before TCP sees it, whatever comes for the clients: a
// socket filter that lets nothing pass is a cut cable to whoever is on the other side.
func (v *vanishing) vanish(t *testing.T) {
	t.Helper()
	v.mu.Lock()
	defer v.mu.Unlock()
	nothing := []unix.SockFilter{{Code: unix.BPF_RET | unix.BPF_K, K: 0}}
	program := unix.SockFprog{Len: 1, Filter: &nothing[0]}
	for _, conn := range v.conns {
		raw, err := conn.SyscallConn()
		if err != nil {
			t.Fatal(err)
		}
		var set error
		err = raw.Control(func(fd uintptr) {
			set = unix.SetsockoptSockFprog(int(fd), unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &program)
		})
		if err := errors.Join(err, set); err != nil {
			t.Fatalf("attach a filter: %v", err)
		}
	}
}

// close ends the clients' connections, which tells nobody any more.
func (v *vanishing) close() {
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, conn := range v.conns {
		_ = conn.Close()
	}
}

// gatewayGoroutines counts those that run anything of the gateway's.
func gatewayGoroutines() int {
	stacks := make([]byte, 16<<20)
	stacks = stacks[:runtime.Stack(stacks, true)]
	n := 0
	for stack := range strings.SplitSeq(string(stacks), "\n\n") {
		if strings.Contains(stack, "sluice/gateway.(*chain)") || strings.Contains(stack, "sluice/gateway/upstream/wire.") {
			n++
		}
	}
	return n
}

// quickListener finds clients that are gone sooner than the program's own does: by the
// kernel's probes where those are asked for, else by what they do not acknowledge alone.
func quickListener(t *testing.T, probes bool) (l net.Listener, within time.Duration) {
	t.Helper()
	const userTimeout = 2 * time.Second
	lc := net.ListenConfig{
		KeepAlive:       -1,
		KeepAliveConfig: net.KeepAliveConfig{Enable: probes, Idle: time.Second, Interval: time.Second, Count: 2},
		Control:         upstream.UserTimeout(userTimeout),
	}
	l, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return l, time.Second + userTimeout
}

// S10: clients that went without a word (a phone out of reach, a laptop's lid) kept
// their tails for hours: slots, goroutines and connections to the nodes. 100 tails
// over both protocols, whose packets are dropped from one moment on: a heartbeat that
// nobody acknowledges, or where there is none the kernel's own probes, end them all.
// In the short form with a listener that waits seconds; in the long form with the
// program's own, whose values TestClientsThatAreGoneAreFound reads back.
func TestPeersVanish(t *testing.T) {
	for name, heartbeat := range map[string]time.Duration{"heartbeat": time.Second, "probes": 0} {
		t.Run(name, func(t *testing.T) {
			var listeners []net.Listener
			within := clientKeepAlive.Idle + clientUserTimeout
			if soak() {
				heartbeat *= 15 // as shipped
			} else {
				l, quick := quickListener(t, heartbeat == 0)
				listeners, within = []net.Listener{l}, quick
			}
			cluster := ursulatest.New(ursulatest.Options{})
			if err := cluster.Start(); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = cluster.Close() })
			e := &edge{Account: testAccount(t), Key: newTestKey(t), Reads: newTestKey(t)}
			e.startOn(t, edgeFile(e, cluster.URLs(), fmt.Sprintf("tails: {heartbeat: %v}\n", heartbeat)), nil, listeners)
			before := gatewayGoroutines()
			v := &vanishing{}
			t.Cleanup(v.close)
			v.openTails(t, e, 100)
			if err := cluster.WaitTails(t.Context(), 100); err != nil {
				t.Fatal(err)
			}
			if open := gatewayGoroutines() - before; open < 100 {
				t.Errorf("%d goroutines more with 100 tails open: they are not found", open)
			}
			v.vanish(t)
			gone := time.Now()
			deadline, cancel := context.WithTimeout(t.Context(), within+5*time.Second)
			defer cancel()
			if err := cluster.WaitTails(deadline, 0); err != nil {
				t.Errorf("%d tails are open at the node %v after their clients have gone", cluster.OpenTails(), time.Since(gone))
			}
			took := time.Since(gone)
			t.Logf("all were given up %v after the clients had gone", took.Round(10*time.Millisecond))
			if took < time.Second {
				t.Error("they were told: the trial did not try what it is for")
			}
			if took > within+2*time.Second {
				t.Errorf("all were given up only after %v, want %v", took, within)
			}
			eventually(t, "all slots are free", func() bool { return e.app.limits.OpenTails() == 0 })
			eventually(t, "no goroutine is left", func() bool { return gatewayGoroutines() <= before })
			eventually(t, "the lines", func() bool { return strings.Count(e.Log.String(), `"end":"client_closed"`) == 100 })
			if strings.Contains(e.Log.String(), `"level":"error"`) || strings.Contains(e.Log.String(), `"status":5`) {
				t.Errorf("an error in the log:\n%s", e.Log)
			}
		})
	}
}

// openTails opens n tails, half of them over HTTP/1.1, and reads their first event.
func (v *vanishing) openTails(t *testing.T, e *edge, n int) {
	t.Helper()
	h1 := v.client(func(p *http.Protocols) { p.SetHTTP1(true) })
	h2 := v.client(func(p *http.Protocols) { p.SetUnencryptedHTTP2(true) })
	for i := range n {
		c := h1
		if i%2 == 0 {
			c = h2
		}
		res := e.open(t.Context(), t, c, e.Key, http.MethodGet, e.path("json")+"?offset=now&live=sse", nil)
		t.Cleanup(func() { _ = res.Body.Close() })
		if res.StatusCode != http.StatusOK {
			t.Fatalf("tail %d: %d", i, res.StatusCode)
		}
		readEvent(t, bufio.NewReader(res.Body))
	}
	if len(v.conns) != n/2+1 {
		t.Errorf("%d connections, want one to each tail over HTTP/1.1 and one for the others", len(v.conns))
	}
}

// What finds clients that are gone is set on each connection that comes: the kernel's
// own values are read back.
func TestClientsThatAreGoneAreFound(t *testing.T) {
	e := &edge{Account: testAccount(t), Key: newTestKey(t), Reads: newTestKey(t)}
	c, err := config.Parse("test.yaml", []byte(edgeFile(e, []string{standIn(t)}, "")), config.Options{Grammar: grammar()})
	if err != nil {
		t.Fatal(err)
	}
	app, err := newApp(testAppOptions(c))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(app.Close)
	client, err := new(net.Dialer).DialContext(t.Context(), "tcp", app.addresses()[0])
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	conn, err := app.public[0].Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	tcp, ok := conn.(*net.TCPConn)
	if !ok {
		t.Fatalf("%T", conn)
	}
	raw, err := tcp.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]struct{ level, option, value int }{
		"keepalive":    {unix.SOL_SOCKET, unix.SO_KEEPALIVE, 1},
		"idle":         {unix.IPPROTO_TCP, unix.TCP_KEEPIDLE, 15},
		"interval":     {unix.IPPROTO_TCP, unix.TCP_KEEPINTVL, 5},
		"count":        {unix.IPPROTO_TCP, unix.TCP_KEEPCNT, 3},
		"user timeout": {unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, 30_000},
	} {
		got, failed := 0, error(nil)
		err := raw.Control(func(fd uintptr) { got, failed = unix.GetsockoptInt(int(fd), want.level, want.option) })
		if err := errors.Join(err, failed); err != nil || got != want.value {
			t.Errorf("%s: %d, %v; want %d", name, got, err, want.value)
		}
	}
}
