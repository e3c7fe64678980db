package main

import (
	"errors"
	"syscall"

	"golang.org/x/sys/unix"
)

// clientTimeout makes the kernel give up a client's connection whose bytes nobody
// has acknowledged for so long. What is accepted has the listener's options.
func clientTimeout(_, _ string, c syscall.RawConn) error {
	var set error
	err := c.Control(func(fd uintptr) {
		set = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(clientUserTimeout.Milliseconds()))
	})
	return errors.Join(err, set)
}
