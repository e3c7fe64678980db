package gateway

import (
	"net/http"
	"net/netip"
	"strings"

	"sluice/auth"
	"sluice/internal/refusal"
)

// Management answers what is under /v1 but the token exchange. It writes the answer, or
// returns the refusal to answer with, having written no more than headers; the refusal
// wraps auth's error where a credential is not good. The principal is who asked, nil
// where that is nobody that is known. client is the address it came from.
type Management interface {
	Serve(w http.ResponseWriter, r *http.Request, client netip.Addr) (*auth.Principal, error)
	// Look says what Serve would refuse a request with, as far as its head tells, and counts
	// nothing; nil where what is stored, or the body, decides.
	Look(r *http.Request) (*auth.Principal, error)
}

// manage hands a request on to the Management API, which finds out by itself who asks.
// Bad credentials count as everywhere.
func (c *chain) manage(s *Scope, w http.ResponseWriter, r *http.Request) error {
	if c.Management == nil {
		return refusal.Because(refusal.NotFound, "There is no Management API here: accounts, streams and keys are declared by the operator.", nil)
	}
	values := r.Header["Authorization"]
	s.Credential = len(values) > 0
	w.Header().Set(requestIDHeader, s.ID)
	if s.span != nil {
		r = r.WithContext(s.span.In(r.Context())) // its calls of nodes are seen in the trace
	}
	p, err := c.Management.Serve(w, r, s.Client)
	s.Principal = p
	if err != nil {
		return c.failed(s, strings.Join(values, ","), err)
	}
	return nil
}
