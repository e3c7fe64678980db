//go:build !linux

package postgrestest

import "syscall"

// endWithUs does nothing: only Linux can have one process end with another.
func endWithUs(*syscall.SysProcAttr) {}
