package store

import (
	"context"
	"time"
)

// Leave says that no request for a stream is under way any more, and that whoever settles
// streams leaves it alone until then; a time that is over is none. Other than Busy it moves
// the time back, but not while a client's own request may still take effect. The error wraps ErrNotFound or ErrUnavailable.
func (s *Store) Leave(ctx context.Context, id string, until time.Time) error {
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	busy, err := s.onSharedClock(ctx, s.write, until)
	if err != nil {
		return failed("leave a stream", err)
	}
	found, err := affects(ctx, s.write, `UPDATE streams SET busy_until = CASE WHEN unanswered > 0 AND busy_until > $2 THEN busy_until ELSE $2 END WHERE id = $1`, id, micros(busy))
	if err == nil && !found {
		err = ErrNotFound
	}
	return failed("leave a stream", err)
}
