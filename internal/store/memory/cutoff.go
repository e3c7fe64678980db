package memory

import (
	"time"

	"sluice/internal/tenant"
)

// cutoff is what is remembered of a key that lost rights.
type cutoff struct {
	at  time.Time // no token issued at or before it lives
	set time.Time // when it was set last, for forgetting it
}

// never lies beyond the end of every token.
func never() time.Time { return time.Date(9999, 12, 31, 0, 0, 0, 0, time.UTC) }

// moved is the cutoff that follows c at that time. It lies at or behind every
// "iat" that a token made after c can have: now, or the first whole second
// after c.
func (c cutoff) moved(now time.Time) cutoff {
	at := now
	if !c.at.IsZero() {
		if next := c.at.Truncate(time.Second).Add(time.Second); next.After(at) {
			at = next
		}
	}
	return cutoff{at: at, set: now}
}

// setCutoffs gives s what it has to remember after prev, given the ids of the
// keys that lost rights. What nobody can need any more is forgotten, so that the
// map is bounded by the keys that lost rights in the last tenant.CutoffKept.
func (s *snapshot) setCutoffs(prev *snapshot, lost map[string]tenant.AccountID, now time.Time) {
	s.cutoffs = make(map[string]cutoff, len(prev.cutoffs)+len(lost))
	for id, c := range prev.cutoffs {
		if now.Before(c.set.Add(tenant.CutoffKept)) {
			s.cutoffs[id] = c
		}
	}
	for id := range lost {
		s.cutoffs[id] = s.cutoffs[id].moved(now)
	}
	for id, c := range s.cutoffs {
		if s.good[id] && !prev.good[id] { // an id that is back keeps nothing alive from before
			s.cutoffs[id] = c.moved(now)
		}
	}
}

// Cutoff is asked with ids that may be unknown: a token may outlive, by a
// restart, all that is remembered of its key. Such a token is void.
func (s *snapshot) cutoff(keyID string) time.Time {
	if !s.good[keyID] {
		return never()
	}
	return s.cutoffs[keyID].at
}

// goodIDs are the ids of keys that are not revoked.
func goodIDs(keys map[tenant.Digest]*tenant.Key) map[string]bool {
	good := make(map[string]bool, len(keys))
	for _, k := range keys {
		if k.RevokedAt.IsZero() {
			good[k.ID] = true
		}
	}
	return good
}
