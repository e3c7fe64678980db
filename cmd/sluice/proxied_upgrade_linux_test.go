package main

import (
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// H09: connections that wait for their header held up an upgrade, or got half an answer in
// it. The old process leaves them when it goes; one whose header comes while it goes has a
// whole answer, or none; and the next process takes headers as the old one did.
func TestUpgradeWhileHeadersAreAwaited(t *testing.T) {
	t.Parallel()
	const request = "GET / HTTP/1.1\r\nHost: gw\r\nConnection: close\r\n\r\n"
	e := &edge{Account: testAccount(t), Key: newTestKey(t), Reads: newTestKey(t)}
	p := startReplicaOf(t, e, edgeFile(e, []string{standIn(t)}, fmt.Sprintf("proxy_protocol: required\ntrusted_proxies: [%s]\n", balancerAddress)))
	p.awaitReady(t)
	address, v1 := strings.TrimPrefix(p.URL, "http://"), header(t, 1, "203.0.113.7:56324")
	silent, half := make([]net.Conn, 20), make([]net.Conn, 20)
	for i := range silent {
		silent[i], half[i] = opened(t, balancerAddress, address, ""), opened(t, balancerAddress, address, v1[:i+1])
	}
	if got := answered(t, opened(t, balancerAddress, address, v1+request)); !strings.HasPrefix(got, "HTTP/1.1 404 ") {
		t.Fatalf("before: %q", got)
	}
	pid := p.cmd.Process.Pid
	must(t, syscall.Kill(pid, syscall.SIGUSR2))
	eventually(t, "the next one has taken over", func() bool { return p.lines(t, `"another process has taken over"`) == 1 })
	next, err := strconv.Atoi(tookOver.FindStringSubmatch(p.logged(t))[1])
	must(t, err)
	t.Cleanup(func() { _ = syscall.Kill(next, syscall.SIGKILL) })
	for i, conn := range half {
		_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
		_, _ = io.WriteString(conn, v1[i+1:]+request) // it may be closed by now
		if got := answered(t, conn); got != "" && !strings.HasPrefix(got, "HTTP/1.1 404 ") {
			t.Errorf("a header that ends in the upgrade: %q", got)
		}
	}
	eventually(t, "the process before has ended", func() bool { return !runs(pid) })
	for _, conn := range silent {
		_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
		if got := answered(t, conn); got != "" {
			t.Errorf("a silent one was answered: %q", got)
		}
	}
	if got := answered(t, opened(t, balancerAddress, address, v1+request)); !strings.HasPrefix(got, "HTTP/1.1 404 ") {
		t.Errorf("after: %q", got)
	}
	if got := answered(t, opened(t, strangerAddress, address, v1+request)); got != "" {
		t.Errorf("a stranger, after: %q", got)
	}
	must(t, syscall.Kill(next, syscall.SIGTERM))
	eventually(t, "it has ended", func() bool { return !runs(next) })
}
