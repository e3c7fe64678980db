//go:build unix

package wire

import (
	"errors"

	"golang.org/x/sys/unix"
)

// canLook says that a socket can be asked whether there is anything to read.
const canLook = true

// look is the question to the kernel, and its answer.
type look [1]unix.PollFd

// atRest reports whether a socket has nothing to read, not even its end.
func (k *look) atRest(fd uintptr) bool {
	k[0] = unix.PollFd{Fd: int32(fd), Events: unix.POLLIN} //nolint:gosec // a descriptor fits
	for {
		n, err := unix.Poll(k[:], 0)
		if !errors.Is(err, unix.EINTR) { // a signal, as Go's scheduler sends them to itself
			return n == 0 && err == nil
		}
	}
}
