//go:build unix

package main

import "syscall"

// descriptors is how many files and sockets the process may have open; 0: it cannot be
// told. Go has raised it to the hard limit.
func descriptors() uint64 {
	var limit syscall.Rlimit
	if syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit) != nil {
		return 0
	}
	return uint64(limit.Cur) //nolint:unconvert,nolintlint // it is signed on some systems
}
