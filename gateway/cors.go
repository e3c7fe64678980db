package gateway

import (
	"net/http"
	"slices"

	"github.com/rs/cors"

	"sluice/internal/refusal"
)

// corsMaxAge is for how long a browser may keep the answer to a preflight, in
// seconds (facts §9).
const corsMaxAge = 600

// crossOrigin are the rules for pages of other origins.
type crossOrigin struct {
	*cors.Cors
	all bool // every origin is listed
}

// newCrossOrigin makes the rules; nil for none. Origins are compared whole, "*" is
// all of them, and no answer ever allows a browser's own credentials (facts C3): a
// page sends its token in a header.
func newCrossOrigin(origins []string) *crossOrigin {
	if len(origins) == 0 {
		return nil
	}
	o := cors.Options{
		AllowedMethods: []string{http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodDelete},
		AllowedHeaders: []string{"*"},
		ExposedHeaders: []string{"*"},
		MaxAge:         corsMaxAge,
	}
	all := slices.Contains(origins, "*")
	if all {
		o.AllowedOrigins = []string{"*"}
	} else {
		o.AllowOriginFunc = func(origin string) bool { return slices.Contains(origins, origin) }
	}
	return &crossOrigin{Cors: cors.New(o), all: all}
}

// mark puts the headers of CORS on an answer, or answers a preflight.
func (x *crossOrigin) mark(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodOptions {
		// A page may read the refusal of a method that there is not, too; the library
		// knows listed ones only.
		read := *r
		read.Method = http.MethodGet
		r = &read
	}
	x.HandlerFunc(w, r)
	if x.all && r.Method != http.MethodOptions {
		// What is the same for every origin may be cached as one (facts C5).
		w.Header().Del("Vary")
	}
}

// cors answers preflights, the same for every path, and puts the headers of CORS
// on every other answer, refusals too (M06): a page could not read why it was
// refused.
func (c *chain) cors(next handler) handler {
	if c.crossOrigin == nil {
		return next
	}
	return func(s *Scope, w http.ResponseWriter, r *http.Request) error {
		if len(r.Header["Origin"]) > 1 {
			return refusal.Because(refusal.InvalidRequest, "There is more than one Origin header: send one.", nil)
		}
		if r.Method != http.MethodOptions || r.Header.Get("Access-Control-Request-Method") == "" {
			c.crossOrigin.mark(w, r)
			return next(s, w, r)
		}
		if !c.crossOrigin.OriginAllowed(r) {
			w.Header().Set("Vary", "Origin")
			return refusal.Because(refusal.Forbidden, "Pages of this origin may not use this gateway: its operator lists the origins that may.", nil)
		}
		w.Header().Set("Cache-Control", "no-store")
		w.Header().Set(requestIDHeader, s.ID)
		c.crossOrigin.mark(w, r)
		return nil
	}
}
