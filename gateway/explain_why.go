package gateway

import (
	"fmt"
	"net/http"
	"strings"
	"time"

	"sluice/auth"
	"sluice/internal/tenant"
)

// reason is why a step let a request pass, or had nothing to decide. It repeats what the
// step found out, and decides nothing.
type reason struct {
	text    string
	skipped bool
}

func because(format string, args ...any) reason { return reason{text: fmt.Sprintf(format, args...)} }

func skip(text string) reason { return reason{text, true} }

// passedWhy is what is to be said of a step that a request has passed.
func passedWhy(d *dryRun, name string, s *Scope, r *http.Request) reason {
	switch name {
	case stepScope:
		return d.whyClient(s, r)
	case stepCORS:
		return d.whyCORS(r)
	case stepRoute:
		return whyRoute(s.Route)
	case stepOwn:
		return skip("it is about a stream")
	case stepAuthenticate:
		return d.whyPrincipal(s.Principal)
	case stepAuthorize:
		return whyAccess(s)
	case stepAccount:
		return because("account %s is %s", s.Account.ID, s.Account.State)
	case stepLifecycle:
		return d.whyLifecycle(s)
	default:
		return d.whyAdmitted(name, s, r)
	}
}

func (d *dryRun) whyClient(s *Scope, r *http.Request) reason {
	peer := addressOf(r.RemoteAddr)
	switch {
	case s.Client != peer:
		return because("client %s, of whom the trusted proxy %s tells", s.Client, peer)
	case isTrusted(peer, d.chain.TrustedProxies):
		return because("client %s: it is in trusted_proxies, and forwards for nobody whose address is believed", peer)
	case r.Header.Get("Forwarded") != "" || r.Header.Get("X-Forwarded-For") != "":
		return because("client %s: it is not in trusted_proxies, so that what it forwards for is not believed", peer)
	default:
		return because("client %s", peer)
	}
}

func (d *dryRun) whyCORS(r *http.Request) reason {
	origin := r.Header.Get("Origin")
	switch {
	case d.chain.crossOrigin == nil:
		return skip("cors.origins is empty: no header of CORS is sent")
	case origin == "":
		return skip("no Origin: it comes from no page")
	case d.chain.crossOrigin.OriginAllowed(r):
		return because("pages of %s may read the answer", origin)
	default:
		return because("pages of %s may not read the answer: it is not in cors.origins; others are answered all the same", origin)
	}
}

func whyRoute(rt Route) reason {
	if !rt.Operation.OfStream() {
		return because("%s", rt.Operation)
	}
	kind := "a read"
	switch {
	case rt.Operation.Writes():
		kind = "a write"
	case rt.Tail != NoTail:
		kind = "a tail, " + rt.Tail.String()
	case rt.Operation.Immutable():
		kind = "a read of what never changes"
	}
	return because("%s of stream %s of account %s: %s", rt.Operation, rt.Stream, rt.Account, kind)
}

func (d *dryRun) whyPrincipal(p *auth.Principal) reason {
	if p == nil {
		return because("no credential: a stranger")
	}
	what := "key " + p.KeyID
	switch {
	case p.IsToken() && p.Issuer == d.chain.Origin:
		what = "a token of key " + p.KeyID
	case p.IsToken():
		what = "a token of issuer " + p.Issuer + " for client " + p.KeyID
	}
	reaches := "all streams"
	if p.Streams.Narrowed() {
		reaches = "streams " + strings.Join(p.Streams.Patterns(), ", ")
	}
	does := "reads"
	switch p.Access {
	case tenant.WriteAccess:
		does = "reads and writes"
	case tenant.ReadAccess:
	default:
		does = "neither reads nor writes"
	}
	text := fmt.Sprintf("%s of account %s: %s %s", what, p.Account, does, reaches)
	if !p.ExpiresAt.IsZero() {
		text += fmt.Sprintf("; expires in %v, at %s", p.ExpiresAt.Sub(d.chain.Now()).Round(time.Second), p.ExpiresAt.UTC().Format(time.RFC3339))
	}
	return because("%s", text)
}

func whyAccess(s *Scope) reason {
	if s.Standing == auth.Public {
		return because("the stream is public: anybody reads it, and is counted with the strangers")
	}
	if s.Public {
		return because("the credential reaches the stream, which is public as well")
	}
	return because("the credential reaches the stream with this operation")
}

func (d *dryRun) whyLifecycle(s *Scope) reason {
	if !changes(s.Route.Operation) {
		return skip("it makes and deletes no stream")
	}
	return because("streams.lifecycle is protocol: clients make and delete streams")
}

// whyAdmitted is of the steps by which an account's limits are held.
func (d *dryRun) whyAdmitted(name string, s *Scope, r *http.Request) reason {
	limits, of := s.Account.Limits, ""
	if s.Standing == auth.Public {
		of = " of the strangers of this account"
	}
	switch name {
	case stepSize:
		switch {
		case s.bodyDone:
			return skip("no body")
		case r.ContentLength < 0:
			return skip("the length of the body is not declared")
		}
		return because("%d of %d bytes", r.ContentLength, limits.RequestBytes)
	case stepRate:
		return because("%d requests%s are left after this one, of %d at once and %d a second", d.rate.Remaining, of, limits.Burst, limits.RequestsPerSecond)
	case stepTail:
		if s.Route.Tail == NoTail {
			return skip("no live read")
		}
		return because("%d of %d tails%s are open in this replica", d.chain.Tails.TailsOf(s.subject()), limits.OpenTails, of)
	case stepLive:
		return d.whyLive(s)
	case stepBody:
		return whyBody(s, r)
	case stepChange:
		if !changes(s.Route.Operation) {
			return skip("it makes and deletes no stream")
		}
		return because("it may be written down in the store, and then sent")
	default:
		return reason{}
	}
}

func (d *dryRun) whyLive(s *Scope) reason {
	if s.Route.Tail == NoTail {
		return skip("no live read")
	}
	ends := []string{"when its credential, its account or its stream's being public ends"}
	if s.Principal != nil && !s.Principal.ExpiresAt.IsZero() {
		ends = append(ends, "at "+s.Principal.ExpiresAt.UTC().Format(time.RFC3339))
	}
	if d.chain.TailMaxAge > 0 {
		ends = append(ends, fmt.Sprintf("after %v (tails.max_age)", d.chain.TailMaxAge))
	}
	return because("it is ended %s", strings.Join(ends, ", "))
}

func whyBody(s *Scope, r *http.Request) reason {
	switch {
	case s.bodyDone:
		return skip("no body")
	case r.ContentLength > smallBody:
		return because("over 1 MiB: one of %d uploads, of %d bytes in all", s.Account.Limits.Uploads, s.Account.Limits.UploadBytes)
	default:
		return because("there is room for it")
	}
}
