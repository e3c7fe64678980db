package tls

import (
	"log"
	"net/http"
	"strings"
	"time"

	"sluice/internal/refusal"
)

// Bounds of the plain HTTP listener. What it answers is small, and so is what it takes.
const (
	redirectTime = 10 * time.Second // a whole exchange
	redirectIdle = 30 * time.Second
	redirectHead = 16 << 10 // bytes
)

// challengePath is below which an authority asks for HTTP-01 (RFC 8555 §8.3).
const challengePath = "/.well-known/acme-challenge"

// RedirectOptions say where plain HTTP is sent on to.
type RedirectOptions struct {
	Origin string // scheme, host and port; never taken from a request
	// Challenge answers a question of HTTP-01 that is open, and reports whether it was
	// one; nil = none ever is.
	Challenge func(http.ResponseWriter, *http.Request) bool
	// RequestID makes the id of a request that brings none.
	RequestID func() string
}

// NewRedirect makes the handler of the plain HTTP listener: 308 to the same target at the
// origin, which keeps the method and the body. A request that carries a credential is
// refused instead, so that its client learns that it has gone over the network in clear,
// and does not go on to do so. Challenges are answered first, and what looks like one is
// never sent on (C03). Nothing else is served.
func NewRedirect(o RedirectOptions) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Cache-Control", "no-store")
		h.Set("X-Content-Type-Options", "nosniff")
		id := r.Header.Get("X-Request-Id")
		if !refusal.WellFormedID(id) {
			id = o.RequestID()
		}
		h.Set("X-Request-Id", id)
		if strings.HasPrefix(r.URL.Path, challengePath) {
			if o.Challenge == nil || !o.Challenge(w, r) {
				refuse(w, r, refusal.New(refusal.NotFound, nil))
			}
			return
		}
		switch {
		case len(r.Header["Authorization"]) > 0 || len(r.Header["Proxy-Authorization"]) > 0:
			refuse(w, r, refusal.Because(refusal.Forbidden,
				"This request brought a credential over plain HTTP, where anybody on the way may have read it: revoke it, make another one, and send that to "+o.Origin+" only.", nil))
		case !strings.HasPrefix(r.RequestURI, "/"):
			refuse(w, r, refusal.New(refusal.InvalidRequest, nil))
		default:
			h.Set("Location", o.Origin+r.RequestURI)
			w.WriteHeader(http.StatusPermanentRedirect)
		}
	})
}

func refuse(w http.ResponseWriter, r *http.Request, why *refusal.Refusal) {
	w.Header().Set("Connection", "close") // whoever is wrong here has no reason to stay
	_ = refusal.Write(w, r.Method, why)
}

// NewRedirectServer makes the server of the plain HTTP listener: HTTP/1.1, with every
// wait bounded.
func NewRedirectServer(h http.Handler, errors *log.Logger) *http.Server {
	var protocols http.Protocols
	protocols.SetHTTP1(true)
	return &http.Server{
		Handler:                      h,
		ReadTimeout:                  redirectTime,
		WriteTimeout:                 redirectTime,
		IdleTimeout:                  redirectIdle,
		MaxHeaderBytes:               redirectHead,
		Protocols:                    &protocols,
		DisableGeneralOptionsHandler: true,
		ErrorLog:                     errors,
	}
}
