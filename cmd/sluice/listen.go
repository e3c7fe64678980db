package main

import (
	"net"
	"time"
)

// A client that is gone without a word is found by the kernel: an idle connection
// after 15 + 3 × 5 s, one with bytes under way after clientUserTimeout (S10).
const clientUserTimeout = 30 * time.Second

var clientKeepAlive = net.KeepAliveConfig{Enable: true, Idle: 15 * time.Second, Interval: 5 * time.Second, Count: 3}

// listenConfig opens sockets for clients.
func listenConfig() *net.ListenConfig {
	return &net.ListenConfig{KeepAliveConfig: clientKeepAlive, Control: clientSocket}
}
