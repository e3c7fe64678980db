package config

import "time"

// Server is the section for the public server.
type Server struct {
	// Connections that clients may have open at one time, over all addresses. One too
	// many is answered 503 and closed, or closed unread with TLS. 0: half of the
	// descriptors that the process may have open, the other half being for nodes, less
	// some that are kept for the rest (docs/operations.md). More than descriptors allow is
	// lowered to seven eighths of those that can be had.
	Connections int `yaml:"connections" default:"0" eg:"10000" min:"0" max:"1000000"`

	// Connections that one client address (IPv6: one /64) may have open; those over
	// it are closed unread. Not for the addresses in `trusted_proxies`; whom they name by
	// the PROXY protocol is counted. 0: any number.
	ConnectionsPerAddress int `yaml:"connections_per_address" default:"1024" eg:"1024" min:"0" max:"1000000"`

	// Requests with a bad credential that one client address (IPv6: one /64) may
	// make at once before it is answered 429 instead of 401; then one a second, or a
	// 60th of them, rounded down, where that is more. An expired credential is
	// counted by itself, not by its address. Good credentials from the address are
	// never held up. 0 counts none.
	FailedCredentialsPerMinute int `yaml:"failed_credentials_per_minute" default:"60" eg:"60" min:"0" max:"1000000"`

	// Bytes that the head of a request may have, its line and headers together. Over it
	// a client is answered 431. Over HTTP/2 each field counts 32 bytes more.
	HeaderBytes Bytes `yaml:"header_bytes" default:"32KiB" eg:"32KiB" min:"8KiB" max:"1MiB" restart:"true"`

	// How long a connection may stand without a request before it is closed. Above the
	// idle limit of a load balancer in front, or that one meets closed connections.
	Idle time.Duration `yaml:"idle" default:"2m" eg:"2m" min:"1s" max:"24h" restart:"true"`

	// Tails that one HTTP/2 connection may have open, of the 250 requests that it may have
	// under way: what is left is for reads and writes. Further tails are answered 429. Not
	// for the addresses in `trusted_proxies`.
	TailsPerConnection int `yaml:"tails_per_connection" default:"200" eg:"200" min:"1" max:"250"`
}
