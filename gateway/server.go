package gateway

import (
	"log"
	"net/http"
	"time"
)

const (
	// headDeadline bounds how long a request's head may take to come.
	headDeadline = 10 * time.Second
	// idleDeadline bounds how long a connection may stand between requests.
	idleDeadline = 2 * time.Minute
	// goHeadSlop is what net/http adds to MaxHeaderBytes by itself.
	goHeadSlop = 4 << 10
	// maxHead bounds a request's line and headers together; over it net/http
	// answers a bare 431 (H07).
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
