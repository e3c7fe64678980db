package gateway

import (
	"log"
	"net/http"
	"time"
)

const (
	// headDeadline bounds how long a request's head may take to come.
	headDeadline = 10 * time.Second
	// idleDeadline bounds how long a connection may stand between requests, where
	// nobody says otherwise.
	idleDeadline = 2 * time.Minute
	// goHeadSlop is what net/http adds to MaxHeaderBytes by itself.
	goHeadSlop = 4 << 10
	// maxHead bounds a request's line and headers together, where nobody says
	// otherwise; over it is a 431 (H07).
	maxHead = 32 << 10
	// streamsPerConnection bounds the requests under way on one HTTP/2 connection.
	streamsPerConnection = 250
)

// NewServer makes a server for the handler: HTTP/1.1, and HTTP/2 beside it: by ALPN on
// connections that end TLS, with prior knowledge on others, as load balancers want it
// (design §9). A TLS handshake has headDeadline too.
//
// There is no WriteTimeout and no ReadTimeout: either would cut a live tail at
// a fixed age (S07, S08). Bodies are read under deadlines of their own.
// "OPTIONS *" goes to the handler, like everything else that parses (H18).
func NewServer(h http.Handler, errors *log.Logger) *http.Server {
	var protocols http.Protocols
	protocols.SetHTTP1(true)
	protocols.SetHTTP2(true)
	protocols.SetUnencryptedHTTP2(true)
	return &http.Server{
		Handler:                      h,
		ReadHeaderTimeout:            headDeadline,
		IdleTimeout:                  idleDeadline,
		MaxHeaderBytes:               maxHead - goHeadSlop,
		Protocols:                    &protocols,
		HTTP2:                        &http.HTTP2Config{MaxConcurrentStreams: streamsPerConnection},
		DisableGeneralOptionsHandler: true,
		ErrorLog:                     errors,
	}
}

// ServerLimits are what a server's operator may set of it.
type ServerLimits struct {
	HeaderBytes int64         // of a request's line and headers together; above 4 KiB
	Idle        time.Duration // of a connection between requests
}

// Apply sets them, before the server serves.
func (l ServerLimits) Apply(s *http.Server) {
	s.MaxHeaderBytes = int(l.HeaderBytes) - goHeadSlop
	s.IdleTimeout = l.Idle
}
