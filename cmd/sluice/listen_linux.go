package main

import (
	"errors"
	"syscall"

	"golang.org/x/sys/unix"

	"sluice/gateway/upstream"
)

// unsentBytes is how much of an answer waits in a client's socket for room at the client.
// Without it that is up to 4 MiB, of which a third has to go before the kernel wakes who
// writes: a client that read 40 KiB a second, all along, was taken for one that read
// nothing (gateway/slowreader.go). Half of it has to go with it.
const unsentBytes = 128 << 10

// clientSocket sets the options of a listener's connections.
func clientSocket(network, address string, c syscall.RawConn) error {
	err := c.Control(func(fd uintptr) {
		// One of Multipath TCP may not have it, and does without.
		_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_NOTSENT_LOWAT, unsentBytes)
	})
	return errors.Join(err, upstream.UserTimeout(clientUserTimeout)(network, address, c))
}
