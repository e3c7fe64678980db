package gateway

import (
	"net/http"
	"time"

	"sluice/auth"
	"sluice/internal/usage"
)

// Meter counts what requests use; usage.Meter implements it. Its methods do not block.
type Meter interface {
	// Open has an answer that may go on for long asked for what it has used so far.
	Open(a *usage.Answer, u usage.Use)
	// Close counts what is left of an answer, opened or not; nothing of one that was never
	// Answered. It is called once for each that was opened.
	Close(a *usage.Answer, u usage.Use, now time.Time)
	// Refused counts a request of which nothing else is counted.
	Refused(k usage.Key, now time.Time)
}

var _ Meter = (*usage.Meter)(nil)

// usageClass is what an operation is counted as. Creates are appends, deletes are
// management, as at the peer (facts §11).
func usageClass(rt Route) usage.Class {
	switch rt.Operation {
	case Append, Create:
		return usage.Append
	case Read:
		if rt.Tail != NoTail {
			return usage.LiveRead
		}
		return usage.Read
	case Head, ReadChunk, ReadImmutableSnapshot, ReadSnapshot, Bootstrap:
		return usage.Read
	case PublishSnapshot, StagePart, DiscardParts, AdvanceRetention, Delete, ExchangeToken, Manage:
		return usage.Management
	case NoOperation, ReadKeys, ReadMetadata:
		return usage.NoClass
	default:
		return usage.NoClass
	}
}

// useOf is whose use a request is; false: nobody's. A stranger's at a public stream is
// its account's, without a name. What has not shown that it has anything to do with the
// account that it names is no use of that account: else anybody could fill its lists.
func (c *chain) useOf(s *Scope) (usage.Use, bool) {
	u := usage.Use{Key: usage.Key{Account: string(s.Route.Account), Class: usageClass(s.Route)}, Start: s.Start}
	if u.Key.Class == usage.NoClass {
		return u, false
	}
	if !s.Route.Operation.OfStream() {
		if s.Principal == nil {
			return u, false
		}
		u.Key.Account = string(s.Principal.Account)
	}
	own := s.Principal != nil && string(s.Principal.Account) == u.Key.Account
	if own && s.Standing != auth.Public {
		u.Key.Principal = c.principalOf(s.Principal)
	}
	u.RequestBytes = int64(len(s.body))
	if u.Key.Class == usage.Read || u.Key.Class == usage.LiveRead {
		u.Stream = string(s.Route.Stream)
	}
	return u, own || s.Account != nil
}

// principalOf is how a principal is called: a key by its id, and a token by the key that
// it was made from; a token of another issuer by that and its subject (facts J7).
func (c *chain) principalOf(p *auth.Principal) usage.Principal {
	if p.IsToken() && p.Issuer != c.Origin {
		return usage.Principal{Issuer: p.Issuer, Subject: p.Subject}
	}
	return usage.Principal{KeyID: p.KeyID}
}

// openUse has the meter follow an answer from when the nodes are asked for it. A write's
// is over soon.
func (c *chain) openUse(s *Scope) {
	s.handed = true
	if c.Meter == nil || s.Route.Operation.Writes() {
		return
	}
	if u, ok := c.useOf(s); ok {
		c.Meter.Open(&s.answer.use, u)
		s.metered = true
	}
}

// answered notes that a node has answered, whatever it said of the request: it did the
// work of finding that out. What it could not do for its own sake is not billed.
func (s *Scope) answered(status int) {
	if failedAtNode(status) {
		return
	}
	s.answer.use.Answered(status < http.StatusMultipleChoices || status == http.StatusNotModified)
}

func failedAtNode(status int) bool {
	return status >= http.StatusInternalServerError || status == http.StatusTooManyRequests
}

// countUse counts a request at its end.
func (c *chain) countUse(s *Scope, now time.Time) {
	if c.Meter == nil {
		return
	}
	u, ok := c.useOf(s)
	if !ok {
		return
	}
	a, status := &s.answer.use, s.answer.status
	refused := s.refused != "" || !a.Billed() && failedAtNode(status)
	// An answer of our own that is none of the refusals; and one that its client did not
	// wait for, of which the nodes may have done all.
	if !refused && (status != 0 || s.handed) {
		a.Answered(false)
	}
	if a.Billed() || s.metered {
		c.Meter.Close(a, u, now)
	}
	if refused {
		c.Meter.Refused(u.Key, now)
	}
}
