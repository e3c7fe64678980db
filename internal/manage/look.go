package manage

import (
	"context"
	"errors"
	"net/http"
	"strconv"
	"time"

	"sluice/internal/store"
)

// look finds out what became of a stream that clients make and delete themselves: where an
// attempt of theirs has no answer, or where Ursula may have let the stream go. Nothing is
// made here: a PUT without the client's first body, its TTL or its closure would turn the
// client's own repeat into a 200, and lose the rest.
func (r *Reconciler) look(ctx context.Context, s *store.Stream) error {
	head, err := r.headOf(ctx, s)
	switch {
	case err != nil:
		return err
	case head.gone():
		return r.absent(ctx, s)
	case s.Doomed == store.Whatever, s.Doomed == head.incarnation():
		return r.condemn(ctx, s)
	}
	seen := sightOf(head.header)
	settled := s.Unanswered == 0 || r.lookedBefore(s)
	switch err := r.o.Store.Saw(ctx, *s, &seen, settled); {
	case errors.Is(err, store.ErrNotFound):
		return errSuperseded
	case err != nil:
		return err
	case !settled:
		return r.lookAgain(ctx, s)
	}
	r.forget(s)
	return nil
}

// absent decides what it means that Ursula has no stream of the name: its row goes, unless
// an attempt may still make it.
func (r *Reconciler) absent(ctx context.Context, s *store.Stream) error {
	if s.Unanswered > 0 && !r.lookedBefore(s) {
		return r.lookAgain(ctx, s)
	}
	switch err := r.o.Store.Saw(ctx, *s, nil, true); {
	case errors.Is(err, store.ErrNotFound):
		return errSuperseded
	case err != nil:
		return err
	}
	r.forget(s)
	r.log(s).Info("Ursula has no such stream any more")
	return nil
}

// condemn finishes what a client asked for and was not answered. From here on the name is
// taken until the stream is gone.
func (r *Reconciler) condemn(ctx context.Context, s *store.Stream) error {
	err := r.o.Store.Condemn(ctx, *s)
	if errors.Is(err, store.ErrNotFound) {
		return errSuperseded
	}
	if err != nil {
		return err
	}
	s.State = store.Deleting
	return r.remove(ctx, s)
}

// maxTTL bounds what is told of a TTL, in seconds: above it JSON's readers know no number
// from the next. A node has room for more.
const maxTTL = 1<<53 - 1

// sightOf reads what a node says of a stream.
func sightOf(h http.Header) store.Sight {
	seen := store.Sight{Incarnation: h.Get(incarnationHeader), ContentType: h.Get("Content-Type")}
	switch n, err := strconv.ParseUint(h.Get("Stream-TTL"), 10, 64); {
	case err != nil: // there is none
	case n == 0:
		seen.TTL = store.OverAtOnce
	default:
		seen.TTL = int64(min(n, maxTTL))
	}
	if t, err := time.Parse(time.RFC3339, h.Get("Stream-Expires-At")); err == nil {
		seen.ExpiresAt = t.UTC().Truncate(time.Microsecond)
	}
	return seen
}
