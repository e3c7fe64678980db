package gateway

import (
	"net/http"
	"strings"
)

// authenticate finds out who asks. The header alone carries a credential: no
// query, cookie or path does (design §3).
func (c *chain) authenticate(next handler) handler {
	return func(s *Scope, w http.ResponseWriter, r *http.Request) error {
		values := r.Header["Authorization"]
		s.Credential = len(values) > 0
		step := s.span.Child("authenticate")
		p, err := c.Authenticator.Authenticate(r.Context(), values)
		step.End()
		if err != nil {
			return c.failed(s, strings.Join(values, ","), err)
		}
		s.Principal = p
		return next(s, w, r)
	}
}
