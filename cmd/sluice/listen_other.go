//go:build !linux

package main

import "syscall"

// clientSocket is a matter of Linux.
func clientSocket(string, string, syscall.RawConn) error { return nil }
