//go:build !linux

package upstream

import (
	"syscall"
	"time"
)

// UserTimeout is a matter of Linux; elsewhere the keepalive alone finds a peer that
// vanished.
func UserTimeout(time.Duration) func(network, address string, c syscall.RawConn) error { return nil }
