package store

import (
	"context"
	"time"

	"sluice/internal/tenant"
)

const streamColumns = `id, account, name, content_type, public, declared, state, region, incarnation, created_at, expires_at, busy_until,
	protocol, attempts, unanswered, doomed, ttl, made_by, doomed_by`

func scanStream(r row) (Stream, error) {
	var st Stream
	var created, expires, busy, ttl int64
	err := r.Scan(&st.ID, &st.Account, &st.Name, &st.ContentType, &st.Public, &st.Declared, &st.State, &st.Region, &st.Incarnation, &created, &expires, &busy,
		&st.Protocol, &st.Attempts, &st.Unanswered, &st.Doomed, &ttl, &st.MadeBy, &st.DoomedBy)
	st.CreatedAt, st.ExpiresAt, st.BusyUntil, st.TTL = moment(created), moment(expires), moment(busy), ttl
	return st, err
}

func stream(ctx context.Context, q querier, account tenant.AccountID, name tenant.StreamName) (Stream, error) {
	return scanStream(q.QueryRowContext(ctx, `SELECT `+streamColumns+` FROM streams WHERE account = $1 AND name = $2`, string(account), string(name)))
}

// streamOf is the stream of that id.
func streamOf(ctx context.Context, q querier, id string) (Stream, error) {
	return scanStream(q.QueryRowContext(ctx, `SELECT `+streamColumns+` FROM streams WHERE id = $1`, id))
}

// Stream looks a stream up, in whichever state. The error wraps ErrNotFound or
// ErrUnavailable.
func (s *Store) Stream(ctx context.Context, account tenant.AccountID, name tenant.StreamName) (Stream, error) {
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	st, err := stream(ctx, s.read, account, name)
	return st, failed("stream", err)
}

// Streams lists an account's streams, in whichever state, in the order of their names.
// The error wraps ErrUnavailable.
func (s *Store) Streams(ctx context.Context, account tenant.AccountID, p Page) ([]Stream, error) {
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	after, from, to := p.bounds()
	all, err := list(ctx, s.read, scanStream,
		`SELECT `+streamColumns+` FROM streams WHERE account = $1 AND name > $2 AND name >= $3 AND name < $4 ORDER BY name LIMIT $5`,
		string(account), after, from, to, p.Limit)
	return all, failed("streams", err)
}

// CreateStream notes that a stream is wanted, as Creating. st.ID is given by the caller;
// st.BusyUntil is for the first request to a node. The error wraps ErrTaken, where the one
// of that name is on its way out too, ErrNotFound (the account) or ErrUnavailable.
func (s *Store) CreateStream(ctx context.Context, by Author, st Stream) error {
	return s.change(ctx, "create a stream", callTime, by, func(ctx context.Context, c *change) error {
		if _, err := account(ctx, c.tx, st.Account); err != nil {
			return err
		}
		st.State, st.Declared = Creating, false
		c.record(StreamCreate, st.Account, string(st.Name), made(st.facts()))
		return c.insertStream(ctx, st)
	})
}

func (c *change) insertStream(ctx context.Context, st Stream) error {
	if st.CreatedAt.IsZero() {
		st.CreatedAt = c.now
	}
	busy, err := c.s.onSharedClock(ctx, c.tx, st.BusyUntil)
	if err != nil {
		return err
	}
	c.tellStream(st)
	return run(ctx, c.tx, `INSERT INTO streams (`+streamColumns+`) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19)`,
		st.ID, string(st.Account), string(st.Name), st.ContentType, st.Public, st.Declared, string(st.State), st.Region, st.Incarnation,
		micros(st.CreatedAt), micros(st.ExpiresAt), micros(busy), st.Protocol, st.Attempts, st.Unanswered, st.Doomed, st.TTL, st.MadeBy, st.DoomedBy)
}

// onSharedClock is the time of the store's clock at which it is that time here.
func (s *Store) onSharedClock(ctx context.Context, q querier, t time.Time) (time.Time, error) {
	left := t.Sub(s.now())
	if t.IsZero() || left <= 0 {
		return time.Time{}, nil
	}
	now, err := s.clock(ctx, q)
	return now.Add(left), err
}

func (c *change) tellStream(st Stream) {
	c.tell(tenant.Change{Kind: tenant.StreamChanged, Account: st.Account, Stream: st.Name})
}

// SetPublic makes a stream public or private. The error wraps ErrNotFound, ErrGone,
// ErrDeclared or ErrUnavailable.
func (s *Store) SetPublic(ctx context.Context, by Author, account tenant.AccountID, name tenant.StreamName, public bool) (Stream, error) {
	var st Stream
	err := s.change(ctx, "change a stream", callTime, by, func(ctx context.Context, c *change) (err error) {
		if st, err = stream(ctx, c.tx, account, name); err != nil {
			return err
		}
		switch {
		case st.State == Deleting:
			return ErrGone
		case st.Declared:
			return ErrDeclared
		case st.Public == public:
			return nil
		}
		before := st
		st.Public = public
		c.record(StreamUpdate, account, string(name), became(before.facts(), st.facts()))
		c.tellStream(st)
		return run(ctx, c.tx, `UPDATE streams SET public = $2 WHERE id = $1`, st.ID, public)
	})
	return st, err
}

// MarkCreated says that Ursula has a stream: from Creating to Live. The error wraps
// ErrNotFound, where it is not Creating any more too, or ErrUnavailable.
func (s *Store) MarkCreated(ctx context.Context, id, incarnation string) error {
	return s.change(ctx, "mark a stream as created", callTime, BySystem(), func(ctx context.Context, c *change) error {
		st, err := streamOf(ctx, c.tx, id)
		if err != nil {
			return err
		}
		if st.State != Creating {
			return ErrNotFound
		}
		// The log says nothing of it: whoever answers requests knows no more and no less of
		// the stream than before, and would only forget what was just asked.
		return run(ctx, c.tx, `UPDATE streams SET state = 'active', incarnation = $2, busy_until = 0 WHERE id = $1`, id, incarnation)
	})
}

// DeleteStream notes that a stream is not wanted any more: Deleting. Repeating it is no
// error. The error wraps ErrNotFound, ErrDeclared or ErrUnavailable.
func (s *Store) DeleteStream(ctx context.Context, by Author, account tenant.AccountID, name tenant.StreamName) (Stream, error) {
	var st Stream
	err := s.change(ctx, "delete a stream", callTime, by, func(ctx context.Context, c *change) (err error) {
		if st, err = stream(ctx, c.tx, account, name); err != nil {
			return err
		}
		if st.Declared {
			return ErrDeclared
		}
		if st.State == Deleting {
			return nil
		}
		st.State = Deleting
		c.record(StreamDelete, account, string(name), lost(st.facts()))
		c.tellStream(st)
		return run(ctx, c.tx, `UPDATE streams SET state = 'deleting' WHERE id = $1`, st.ID)
	})
	return st, err
}

// Busy is called before each request to a node that is for a stream: whoever else would
// settle it leaves it alone until then. It moves back nothing. The error wraps ErrNotFound
// or ErrUnavailable, and the request is not to be made.
func (s *Store) Busy(ctx context.Context, id string, until time.Time) error {
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	busy, err := s.onSharedClock(ctx, s.write, until)
	if err != nil {
		return failed("keep a stream", err)
	}
	found, err := affects(ctx, s.write, `UPDATE streams SET busy_until = CASE WHEN busy_until > $2 THEN busy_until ELSE $2 END WHERE id = $1`, id, micros(busy))
	if err == nil && !found {
		err = ErrNotFound
	}
	return failed("keep a stream", err)
}

// RemoveStream frees a stream's name, once no node has the stream: of one that is Creating,
// which is a wish undone, or Deleting, of which there is a record already. Where the
// operator's file has come to state it meanwhile, a new one stands in its place, which
// Ursula has yet to be given. The error wraps ErrNotFound, where the
// stream is Live too, or ErrUnavailable.
func (s *Store) RemoveStream(ctx context.Context, id string) error {
	return s.change(ctx, "remove a stream", callTime, BySystem(), func(ctx context.Context, c *change) error {
		st, err := streamOf(ctx, c.tx, id)
		if err != nil {
			return err
		}
		switch {
		case st.State == Live:
			return ErrNotFound
		case st.State == Creating && !st.Declared && !st.Protocol:
			c.record(StreamUndo, st.Account, string(st.Name), lost(st.facts()))
		default:
			c.nothingNew()
		}
		return c.removeStream(ctx, st)
	})
}

func (c *change) removeStream(ctx context.Context, st Stream) error {
	c.tellStream(st)
	if err := run(ctx, c.tx, `DELETE FROM streams WHERE id = $1`, st.ID); err != nil || !st.Declared {
		return err
	}
	return c.declareStream(ctx, st.Stream)
}

// Learn notes the incarnation of a declared stream, which others make, where none is known
// yet. Nothing of it is in the log: no request is answered otherwise. The error wraps
// ErrNotFound, where there is nothing to learn any more too, or ErrUnavailable.
func (s *Store) Learn(ctx context.Context, id, incarnation string) error {
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	found, err := affects(ctx, s.write, `UPDATE streams SET incarnation = $2, busy_until = CASE WHEN unanswered > 0 THEN busy_until ELSE 0 END
		WHERE id = $1 AND declared AND state = 'active' AND incarnation = ''`, id, incarnation)
	if err == nil && !found {
		err = ErrNotFound
	}
	return failed("learn of a stream", err)
}

// Unsettled are up to limit streams that somebody has to settle, those that wait longest
// first, whose BusyUntil is over: Creating and Deleting ones, declared ones of which no
// incarnation is known, and those with an unanswered request. What has expired is Deleting
// from this call on, but for what Ursula lets expire by itself. The error wraps
// ErrUnavailable.
func (s *Store) Unsettled(ctx context.Context, limit int) ([]Stream, error) {
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	now, err := s.clock(ctx, s.read)
	if err != nil {
		return nil, failed("unsettled streams", err)
	}
	if err := s.expire(ctx, now, limit); err != nil {
		return nil, err
	}
	// Three parts, each with an index of its own.
	all, err := list(ctx, s.read, scanStream, `SELECT `+streamColumns+` FROM streams WHERE state <> 'active' AND busy_until <= $1
		UNION ALL SELECT `+streamColumns+` FROM streams WHERE declared AND state = 'active' AND incarnation = '' AND unanswered = 0 AND busy_until <= $1
		UNION ALL SELECT `+streamColumns+` FROM streams WHERE unanswered <> 0 AND state = 'active' AND busy_until <= $1
		ORDER BY busy_until, id LIMIT $2`, micros(now), limit)
	return all, failed("unsettled streams", err)
}

const expired = `FROM streams WHERE expires_at <> 0 AND expires_at <= $1 AND state <> 'deleting' AND NOT protocol ORDER BY expires_at LIMIT $2`

// expire has the streams that have expired be deleted, up to limit. Where there are none,
// nothing is written.
func (s *Store) expire(ctx context.Context, now time.Time, limit int) error {
	due, err := list(ctx, s.read, text, `SELECT id `+expired, micros(now), limit)
	if err != nil || len(due) == 0 {
		return failed("expired streams", err)
	}
	return s.change(ctx, "expire streams", callTime, BySystem(), func(ctx context.Context, c *change) error {
		due, err := list(ctx, c.tx, scanStream, `SELECT `+streamColumns+` `+expired, micros(now), limit)
		if err != nil {
			return err
		}
		for _, st := range due {
			c.record(StreamExpire, st.Account, string(st.Name), lost(st.facts()))
			c.tellStream(st)
			if err := run(ctx, c.tx, `UPDATE streams SET state = 'deleting' WHERE id = $1`, st.ID); err != nil {
				return err
			}
		}
		return nil
	})
}
