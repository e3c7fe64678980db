package store

import (
	"context"
	"time"
)

// Hold takes a lease for a holder, or has it last longer where it has it: true is that
// nobody else is given it for life, counted from before the call. The store's clock
// counts, so that of the replicas does not matter. The error wraps ErrUnavailable: it is
// not known who has it.
func (s *Store) Hold(ctx context.Context, lease, holder string, life time.Duration) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	now, err := s.clock(ctx, s.write)
	if err != nil {
		return false, failed("hold a lease", err)
	}
	held, err := affects(ctx, s.write, `INSERT INTO leases (name, holder, until) VALUES ($1, $2, $3)
		ON CONFLICT (name) DO UPDATE SET holder = excluded.holder, until = excluded.until
		WHERE leases.holder = excluded.holder OR leases.until <= $4`, lease, holder, micros(now.Add(life)), micros(now))
	return held, failed("hold a lease", err)
}

// LetGo ends a lease, where that holder has it. The error wraps ErrUnavailable.
func (s *Store) LetGo(ctx context.Context, lease, holder string) error {
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	return failed("let a lease go", run(ctx, s.write, `DELETE FROM leases WHERE name = $1 AND holder = $2`, lease, holder))
}
