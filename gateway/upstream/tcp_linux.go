package upstream

import (
	"errors"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// UserTimeout makes the kernel give up a connection whose bytes nobody has
// acknowledged for d: a peer that vanished is noticed without waiting for a timeout of
// a request (facts §4.3). It is the Control of a dialer, or of a listener, whose
// connections have its options.
func UserTimeout(d time.Duration) func(network, address string, c syscall.RawConn) error {
	return func(_, _ string, c syscall.RawConn) error {
		var set error
		err := c.Control(func(fd uintptr) {
			set = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(d.Milliseconds()))
		})
		return errors.Join(err, set)
	}
}
