package store

import (
	"context"
	"time"

	"sluice/internal/tenant"
)

// clockSkew is how far the clocks of replicas may be apart (tenant.Directory.Cutoff).
const clockSkew = 20 * time.Second

// heardWithin is how long the one replica of a store of its own may take to hear of a
// change: until then it makes tokens with the old rights.
const heardWithin = 3 * time.Second

// cutoffMoves has a key's cutoff move: to the time that is wanted, or to the first whole
// second after the one before, where that lies behind it: a token made since then may
// have been issued at that second.
const cutoffMoves = `ON CONFLICT (key_id) DO UPDATE SET set_at = excluded.set_at,
	at = CASE WHEN (cutoffs.at / 1000000 + 1) * 1000000 > excluded.at THEN (cutoffs.at / 1000000 + 1) * 1000000 ELSE excluded.at END`

// cut ends the tokens that were made from a key until now. One that lives on has to be
// cut at a time that comes on each replica only after it has heard of the change.
func (c *change) cut(ctx context.Context, key string, livesOn bool) error {
	at := c.now
	switch {
	case !livesOn: // Cutoffs has it in the far future
	case c.s.shared:
		at = at.Add(clockSkew)
	default:
		at = at.Add(heardWithin)
	}
	return run(ctx, c.tx, `INSERT INTO cutoffs (key_id, at, set_at) VALUES ($1, $2, $3) `+cutoffMoves, key, micros(at), micros(c.now))
}

// Cutoffs are those that were set within tenant.CutoffKept. The error wraps
// ErrUnavailable.
func (s *Store) Cutoffs(ctx context.Context) ([]Cutoff, error) {
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	since := s.now().Add(-tenant.CutoffKept)
	if s.shared {
		since = since.Add(-clockSkew)
	}
	all, err := list(ctx, s.read, scanCutoff, `SELECT c.key_id, c.at, c.set_at, k.id IS NOT NULL
		FROM cutoffs c LEFT JOIN api_keys k ON k.id = c.key_id AND k.revoked_at = 0 WHERE c.set_at >= $1 ORDER BY c.key_id`, micros(since))
	return all, failed("cutoffs", err)
}

func scanCutoff(r row) (Cutoff, error) {
	var c Cutoff
	var at, set int64
	var good bool
	err := r.Scan(&c.KeyID, &at, &set, &good)
	c.At, c.Set = moment(at), moment(set)
	if !good {
		c.At = never()
	}
	return c, err
}

// never lies beyond the end of every token.
func never() time.Time { return time.Date(9999, 12, 31, 0, 0, 0, 0, time.UTC) }
