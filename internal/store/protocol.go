package store

import (
	"context"
	"database/sql"
	"errors"
	"time"

	"sluice/internal/tenant"
)

// What clients do to a stream at its own URL, by PUT and DELETE. A request is an attempt,
// which is begun before any byte of it goes out and ended by its answer; one without an
// answer is for whoever settles streams. The row of an attempt says that its name is in
// play: it is there before the stream is, and goes once there surely is none.

// Outcome is what the answer to an attempt says.
type Outcome int

// The outcomes. An answer that proves none of them is not one: the attempt stays unanswered.
const (
	// Refused: the attempt did nothing, nor will it.
	Refused Outcome = iota
	// Made: Ursula has the stream, as Sight says.
	Made
	// Gone: Ursula has no such stream.
	Gone
	// Deleted: the same, since the attempt has deleted it.
	Deleted
)

// Sight is what a node has said of a stream.
type Sight struct {
	Incarnation, ContentType string
	TTL                      int64 // as a Stream's
	ExpiresAt                time.Time
}

const (
	// lookEvery is how often a stream with a TTL is looked at once its first is over: it
	// may be over soon after it was seen, and is to be missed within a minute (design §10).
	lookEvery = 45 * time.Second
	// lookAfter is for how long after its end Ursula is given to let a stream go.
	lookAfter = 2 * time.Second
)

// Begin begins an attempt. Where no stream has the name, want becomes one that is
// Creating; the answer's Attempts is the attempt's number. It is at a node until
// want.BusyUntil at the latest. want.Doomed is what a DELETE is for, and empty for a PUT.
//
// The error wraps ErrNotFound (the account), ErrGone while the stream is Deleting, ErrTaken
// while it is created otherwise, ErrDeclared where it is to be removed and the file states
// it, each but the first with the stream, or ErrUnavailable.
func (s *Store) Begin(ctx context.Context, by Author, want Stream) (Stream, error) {
	var st Stream
	err := s.change(ctx, "begin a client's change of a stream", callTime, by, func(ctx context.Context, c *change) (err error) {
		if _, err = account(ctx, c.tx, want.Account); err != nil {
			return err
		}
		st, err = stream(ctx, c.tx, want.Account, want.Name)
		switch {
		case errors.Is(err, sql.ErrNoRows):
			st = want
			st.State, st.Protocol, st.Declared, st.Attempts, st.Unanswered = Creating, true, false, 1, 1
			st.attemptBy(by)
			c.nothingNew() // until a node has answered
			return c.insertStream(ctx, st)
		case err != nil:
			return err
		}
		if err := st.refuses(want.Doomed != ""); err != nil {
			return err
		}
		busy, err := c.s.onSharedClock(ctx, c.tx, want.BusyUntil)
		if err != nil {
			return err
		}
		// A PUT may make another stream where this one may be gone, which is private before
		// a node has it, and not only once that is known.
		doubted := st.Doomed != "" || !st.ExpiresAt.IsZero() && !st.ExpiresAt.After(c.now)
		st.Attempts++
		st.Unanswered++
		st.Doomed = want.Doomed
		st.attemptBy(by)
		if st.Doomed == Whatever && st.Incarnation != "" {
			st.Doomed = st.Incarnation // and not what is made after it
		}
		if doubted && want.Doomed == "" {
			if err := c.hide(ctx, &st); err != nil {
				return err
			}
		}
		return run(ctx, c.tx, `UPDATE streams SET attempts = $2, unanswered = $3, doomed = $4, made_by = $6, doomed_by = $7,
			busy_until = CASE WHEN busy_until > $5 THEN busy_until ELSE $5 END WHERE id = $1`,
			st.ID, st.Attempts, st.Unanswered, st.Doomed, micros(busy), st.MadeBy, st.DoomedBy)
	})
	return st, err
}

// LookBegin is the error that Begin would give at this instant, with the same stream; nil
// where an attempt would begin. It changes nothing.
func (s *Store) LookBegin(ctx context.Context, account tenant.AccountID, name tenant.StreamName, remove bool) (Stream, error) {
	if _, err := s.Account(ctx, account); err != nil {
		return Stream{}, err
	}
	st, err := s.Stream(ctx, account, name)
	switch {
	case errors.Is(err, ErrNotFound):
		return Stream{}, nil
	case err != nil:
		return Stream{}, err
	}
	return st, st.refuses(remove)
}

// refuses says why no client's attempt at the stream may begin; nil where one may.
func (st *Stream) refuses(remove bool) error {
	switch {
	case st.State == Deleting:
		return ErrGone
	case st.State == Creating && !st.Protocol:
		return ErrTaken
	case remove && st.Declared:
		return ErrDeclared
	default:
		return nil
	}
}

// attemptBy notes who begins one.
func (st *Stream) attemptBy(by Author) {
	if st.Doomed != "" {
		st.DoomedBy = by.text()
	} else {
		st.MadeBy = by.text()
	}
}

// End ends an attempt by its answer. Where others were begun meanwhile, nobody knows which
// of them came last: whoever settles streams looks. by is who began it. The error wraps ErrNotFound where there
// is no such stream any more, or ErrUnavailable.
func (s *Store) End(ctx context.Context, by Author, id string, attempt int64, what Outcome, seen Sight) error {
	return s.change(ctx, "end a client's change of a stream", callTime, by, func(ctx context.Context, c *change) error {
		st, err := streamOf(ctx, c.tx, id)
		if err != nil {
			return err
		}
		alone := st.Attempts == attempt
		if err := c.answered(ctx, &st, attempt); err != nil {
			return err
		}
		if !alone && what != Refused {
			// Nor is the one that was begun last: it was under way with this one. Whichever is
			// answered last, somebody looks.
			if err := run(ctx, c.tx, `UPDATE streams SET attempts = attempts + 1 WHERE id = $1`, st.ID); err != nil {
				return err
			}
		}
		switch what {
		case Made:
			return c.made(ctx, st, seen, alone)
		case Gone, Deleted:
			return c.gone(ctx, st, alone, what == Deleted)
		case Refused:
			return c.refused(ctx, st)
		}
		return nil
	})
}

// made is an attempt that Ursula has answered with a stream. alone says that no other was
// begun since.
func (c *change) made(ctx context.Context, st Stream, seen Sight, alone bool) error {
	if st.State == Deleting {
		return nil // it is for whoever deletes it
	}
	if alone || st.Incarnation == "" || st.Incarnation == seen.Incarnation {
		if err := c.sighted(ctx, st, seen); err != nil || alone {
			return err
		}
	} else if err := c.hide(ctx, &st); err != nil { // it may be another stream already
		return err
	}
	if st.Doomed == Whatever {
		st.Doomed = "" // that was meant for what nobody answers for, and this is
	}
	return c.lookNow(ctx, st, st.Doomed)
}

// hide makes a stream private, but for one that the file states.
func (c *change) hide(ctx context.Context, st *Stream) error {
	if !st.Public || st.Declared {
		return nil
	}
	before := st.facts()
	st.Public = false
	c.record(StreamUpdate, st.Account, string(st.Name), became(before, st.facts()))
	c.tellStream(*st)
	return run(ctx, c.tx, `UPDATE streams SET public = FALSE WHERE id = $1`, st.ID)
}

// gone is an attempt that leaves no stream. While others have no answer they may still make
// one, which nobody wants: the client that deleted it has been told that it is gone. deleted
// says that there was one, also where no row had known of it.
func (c *change) gone(ctx context.Context, st Stream, alone, deleted bool) error {
	switch {
	case !alone || st.Declared && st.State == Live:
		return c.lookNow(ctx, st, st.Doomed)
	case st.Unanswered > 0:
		return c.lookNow(ctx, st, Whatever)
	case deleted || st.Incarnation != "":
		c.recordDeleted(c.by, st)
	default:
		c.nothingNew()
	}
	return c.removeStream(ctx, st)
}

// refused is an attempt that did nothing.
func (c *change) refused(ctx context.Context, st Stream) error {
	if st.DoomedBy == c.by.text() {
		st.DoomedBy = ""
		if err := run(ctx, c.tx, `UPDATE streams SET doomed_by = '' WHERE id = $1`, st.ID); err != nil {
			return err
		}
	}
	switch {
	case st.State == Creating && st.Attempts == 1: // no other was ever begun
		c.nothingNew()
		return c.removeStream(ctx, st)
	case st.Doomed == Whatever:
		return c.lookNow(ctx, st, Whatever)
	default:
		return nil
	}
}

// lookNow has whoever settles streams look at one, once all its attempts are over. Who may
// have deleted it is not forgotten until then.
func (c *change) lookNow(ctx context.Context, st Stream, doomed string) error {
	return run(ctx, c.tx, `UPDATE streams SET look_at = $2, doomed = $3, doomed_by = $4 WHERE id = $1`, st.ID, micros(c.now), doomed, st.DoomedBy)
}

// answered takes an attempt off those that may take effect, unless that is settled.
func (c *change) answered(ctx context.Context, st *Stream, attempt int64) error {
	updated, err := list(ctx, c.tx, scanStream, `UPDATE streams SET unanswered = unanswered - 1,
		doomed = CASE WHEN attempts = $2 THEN '' ELSE doomed END,
		busy_until = CASE WHEN unanswered > 1 THEN busy_until ELSE 0 END
		WHERE id = $1 AND settled < $2 AND unanswered > 0 RETURNING `+streamColumns, st.ID, attempt)
	if len(updated) > 0 {
		*st = updated[0]
	}
	return err
}

// Saw notes what a node said of a stream when it was asked: nil that there is none, which
// removes it, but for one that the file states. st is as it was before that; where a client
// has begun an attempt since, nothing is noted. settled says that no attempt begun before
// can take effect any more. The error wraps ErrNotFound, where st is not as it was too, or
// ErrUnavailable.
func (s *Store) Saw(ctx context.Context, st Stream, seen *Sight, settled bool) error {
	return s.change(ctx, "note what a node has of a stream", callTime, BySystem(), func(ctx context.Context, c *change) error {
		now, err := streamOf(ctx, c.tx, st.ID)
		if err != nil {
			return err
		}
		if now.changed(st) {
			return ErrNotFound
		}
		if settled {
			err := run(ctx, c.tx, `UPDATE streams SET unanswered = 0, settled = attempts, busy_until = 0, doomed = '' WHERE id = $1`, st.ID)
			if err != nil {
				return err
			}
		}
		switch {
		case seen != nil:
			c.by = authorOf(now.MadeBy) // if it is new
			return c.sighted(ctx, now, *seen)
		case now.Declared && now.State == Live:
			return run(ctx, c.tx, `UPDATE streams SET look_at = 0 WHERE id = $1`, st.ID)
		case now.Incarnation == "":
			c.nothingNew()
		default:
			c.recordEnd(now)
		}
		return c.removeStream(ctx, now)
	})
}

// Condemn makes a stream Deleting whose deletion by a client has no answer. st is as in
// Saw, and so is the error.
func (s *Store) Condemn(ctx context.Context, st Stream) error {
	return s.change(ctx, "delete a stream for a client", callTime, BySystem(), func(ctx context.Context, c *change) error {
		now, err := streamOf(ctx, c.tx, st.ID)
		if err != nil {
			return err
		}
		if now.changed(st) || now.Declared {
			return ErrNotFound
		}
		c.recordDeleted(authorOf(now.DoomedBy), now)
		c.tellStream(now)
		return run(ctx, c.tx, `UPDATE streams SET state = 'deleting' WHERE id = $1`, st.ID)
	})
}

// recordDeleted records that a stream is deleted, and first that it was made where that is
// only known by this.
func (c *change) recordDeleted(by Author, st Stream) {
	if st.Incarnation == "" && st.MadeBy != "" {
		c.recordBy(authorOf(st.MadeBy), StreamCreate, st.Account, string(st.Name), made(st.facts()))
	}
	c.recordBy(by, StreamDelete, st.Account, string(st.Name), lost(st.facts()))
}

// recordEnd records that a stream is gone: by a DELETE without an answer where there was
// one, else Ursula has let it go.
func (c *change) recordEnd(st Stream) {
	action := StreamDelete
	if st.DoomedBy == "" {
		action = StreamExpire
	}
	c.recordBy(authorOf(st.DoomedBy), action, st.Account, string(st.Name), lost(st.facts()))
}

// changed reports whether something happened to a stream since it was as before.
func (st Stream) changed(before Stream) bool {
	return st.Attempts != before.Attempts || st.Unanswered != before.Unanswered || st.State != before.State || st.Incarnation != before.Incarnation
}

// sighted makes a stream what a node has said it is. Under another incarnation it is
// another stream, made by a client, and so it is private.
func (c *change) sighted(ctx context.Context, st Stream, seen Sight) error {
	anew := st.Incarnation != seen.Incarnation
	switch {
	case st.Declared:
		return run(ctx, c.tx, `UPDATE streams SET state = 'active', protocol = FALSE, incarnation = $2, look_at = 0 WHERE id = $1`, st.ID, seen.Incarnation)
	case anew && st.Incarnation != "":
		c.recordEnd(st)
		st.Protocol, st.CreatedAt = true, c.now
		if st.Public {
			st.Public = false
			c.tellStream(st)
		}
	case !st.Protocol:
		return run(ctx, c.tx, `UPDATE streams SET look_at = 0 WHERE id = $1`, st.ID)
	}
	st.ContentType, st.ExpiresAt, st.TTL = seen.ContentType, seen.ExpiresAt, seen.TTL
	if anew {
		c.record(StreamCreate, st.Account, string(st.Name), made(st.facts()))
	}
	look := time.Time{}
	switch {
	case !seen.ExpiresAt.IsZero():
		look = later(seen.ExpiresAt, c.now).Add(lookAfter)
	case seen.TTL != 0 && anew:
		look = c.now.Add(life(seen.TTL) + lookAfter)
	case seen.TTL != 0:
		look = c.now.Add(min(lookEvery, life(seen.TTL)+lookAfter))
	}
	return run(ctx, c.tx, `UPDATE streams SET state = 'active', protocol = $2, incarnation = $3, content_type = $4, public = $5,
		created_at = $6, expires_at = $7, ttl = $8, look_at = $9, doomed_by = '' WHERE id = $1`,
		st.ID, st.Protocol, seen.Incarnation, seen.ContentType, st.Public,
		micros(st.CreatedAt), micros(seen.ExpiresAt), seen.TTL, micros(look))
}

// maxLife is the end of what is waited for, far below what a time.Duration holds.
const maxLife = 100 * 365 * 24 * time.Hour

// life is a TTL as a time.
func life(ttl int64) time.Duration {
	return time.Duration(max(0, min(ttl, int64(maxLife/time.Second)))) * time.Second
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// Looks are up to limit streams that Ursula may have let go, those that are due longest
// first. The error wraps ErrUnavailable.
func (s *Store) Looks(ctx context.Context, limit int) ([]Stream, error) {
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	all, err := list(ctx, s.read, scanStream, `SELECT `+streamColumns+` FROM streams
		WHERE look_at <> 0 AND look_at <= $1 AND state = 'active' AND unanswered = 0 AND busy_until <= $1 ORDER BY look_at, id LIMIT $2`,
		micros(s.now()), limit)
	return all, failed("streams to look at", err)
}
