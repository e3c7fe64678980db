package upstream

import (
	"errors"
	"syscall"

	"golang.org/x/sys/unix"
)

// userTimeout makes the kernel give up a connection whose bytes nobody has
// acknowledged for so long: a host that vanished is noticed without waiting for
// a timeout of a request (facts §4.3).
func userTimeout(_, _ string, c syscall.RawConn) error {
	var set error
	err := c.Control(func(fd uintptr) {
		set = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(tcpUserTimeout.Milliseconds()))
	})
	return errors.Join(err, set)
}
