package auth

import "sluice/internal/tenant"

// Standing is the right by which an operation was let in. The two are counted
// against different allowances, so that strangers cannot lock an owner out
// (design §6). The zero value is no standing.
type Standing int

const (
	// Owner reached the stream by its own credential.
	Owner Standing = iota + 1
	// Public was let in only because the stream is public.
	Public
)

// Resource is a stream as access sees it. Whether it exists is not among what
// decides, so no answer can tell (A16); a missing stream is simply not public.
type Resource struct {
	Account tenant.AccountID
	Name    tenant.StreamName
	Public  bool
}

// Decide says whether p, or a stranger where p is nil, may write to or read
// from the stream (design §5). It is a pure function, safe for concurrent use,
// and does not allocate.
//
// The error is ErrNoCredential for a stranger and one of the reasons that wrap
// ErrForbidden for a principal; with an error there is no standing. A credential
// that does not reach a public stream still reads it, as anyone does.
func Decide(p *Principal, s Resource, write bool) (Standing, error) {
	if p == nil {
		if s.Public && !write {
			return Public, nil
		}
		return 0, ErrNoCredential
	}
	err := reach(p, s, write)
	switch {
	case err == nil:
		return Owner, nil
	case s.Public && !write:
		return Public, nil
	default:
		return 0, err
	}
}

// reach says whether p's own rights suffice, and if not, the widest reason.
func reach(p *Principal, s Resource, write bool) error {
	switch {
	case p.Account != s.Account:
		return ErrOtherAccount
	case p.Access != tenant.ReadAccess && p.Access != tenant.WriteAccess:
		return ErrNoAccess
	case !p.Streams.Covers(s.Name):
		return ErrNotAmongStreams
	case write && p.Access != tenant.WriteAccess:
		return ErrReadOnly
	}
	return nil
}
