package manage

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"go.uber.org/zap"

	"sluice/internal/store"
	"sluice/internal/tenant"
)

// Outcomes of a step that is not done.
var (
	// errLater says that nothing is under way, and that the step may be tried again.
	errLater = errors.New("not now")
	// errUnanswered says that a PUT may still take effect.
	errUnanswered = errors.New("unanswered")
	// errSuperseded says that another wish has taken the place of this one.
	errSuperseded = errors.New("superseded")
)

// refusedError says that Ursula will not make a stream. Its row is gone.
type refusedError struct {
	status   int
	existing string // the content type of what has the name; "" = nothing has
}

func (e *refusedError) Error() string { return fmt.Sprintf("node refused it with %d", e.status) }

// create does the next step of a Creating row; nil says that it is active. Other
// errors are errLater, errUnanswered, errSuperseded, *refusedError, and the store's.
func (r *Reconciler) create(ctx context.Context, s *store.Stream) error {
	if err := r.o.Store.Busy(ctx, s.ID, r.o.Now().Add(r.o.Request+r.o.Late)); err != nil {
		if errors.Is(err, store.ErrNotFound) {
			return errSuperseded
		}
		return err
	}
	a, err := r.askNode(ctx, http.MethodPut, s, http.Header{"Content-Type": {s.ContentType}})
	// A worker that was stopped has missed its deadline, and is to look all the same at
	// what became of the row.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*r.o.Request)
	defer cancel()
	switch {
	case errors.Is(err, ErrNotApplied):
		return fmt.Errorf("%w: %w", errLater, err)
	case err != nil:
		return r.unanswered(ctx, s, err)
	case a.status == http.StatusConflict:
		return r.adopt(ctx, s)
	case a.refused():
		return r.undo(ctx, s, &refusedError{status: a.status})
	case (a.status == http.StatusCreated || a.status == http.StatusOK) && a.incarnation() != "":
		return r.made(ctx, s, a.incarnation())
	case a.provesNothingApplied():
		return fmt.Errorf("%w: %w", errLater, unexpected(http.MethodPut, a))
	default:
		return r.unanswered(ctx, s, unexpected(http.MethodPut, a))
	}
}

// unanswered leaves a row until its PUT has taken effect, or not. It takes the name where
// the row has gone: this PUT was too late.
func (r *Reconciler) unanswered(ctx context.Context, s *store.Stream, cause error) error {
	if err := r.o.Store.Busy(ctx, s.ID, r.o.Now()); errors.Is(err, store.ErrNotFound) {
		return r.orphan(ctx, s)
	}
	return fmt.Errorf("%w: %w", errUnanswered, cause)
}

// adopt decides on a stream that exists with other settings. What was made for this row
// by a PUT whose answer was lost may have been closed since, which is one too. One that
// the operator's file states is taken as it is.
func (r *Reconciler) adopt(ctx context.Context, s *store.Stream) error {
	a, err := r.askNode(ctx, http.MethodHead, s, nil)
	switch {
	case err != nil:
		return fmt.Errorf("%w: %w", errLater, err)
	case a.status != http.StatusOK || a.incarnation() == "":
		return fmt.Errorf("%w: %w", errLater, unexpected(http.MethodHead, a))
	}
	existing := a.header.Get("Content-Type")
	if s.Declared || sameType(existing, s.ContentType) {
		return r.made(ctx, s, a.incarnation())
	}
	return r.undo(ctx, s, &refusedError{status: http.StatusConflict, existing: existing})
}

// undo removes a row that Ursula will make no stream for. What the name stands for there
// is somebody else's.
func (r *Reconciler) undo(ctx context.Context, s *store.Stream, refused *refusedError) error {
	if s.Declared {
		// It goes on to be stated, so there is no end to it but in the file.
		if !r.tried(s.ID) {
			r.log(s).Warn("Ursula refuses to make a declared stream; it is tried again", zap.Int("status", refused.status))
		}
		return fmt.Errorf("%w: %w", errLater, refused)
	}
	r.log(s).Warn("Ursula refuses to make the stream; it is not created", zap.Int("status", refused.status), zap.String("existing_type", refused.existing))
	if err := r.o.Store.RemoveStream(ctx, s.ID); err != nil && !errors.Is(err, store.ErrNotFound) {
		return err
	}
	return refused
}

// made records that Ursula has the stream of a row that was Creating.
func (r *Reconciler) made(ctx context.Context, s *store.Stream, incarnation string) error {
	err := r.o.Store.MarkCreated(ctx, s.ID, incarnation)
	if err == nil {
		s.State, s.Incarnation = store.Live, incarnation
		return nil
	}
	if !errors.Is(err, store.ErrNotFound) {
		return err
	}
	now, err := r.o.Store.Stream(ctx, s.Account, s.Name)
	switch {
	case errors.Is(err, store.ErrNotFound):
		return r.orphan(ctx, s)
	case err != nil:
		return err
	case now.ID == s.ID && now.State == store.Live:
		*s = now
		return nil
	case now.ID == s.ID:
		// It is to be deleted, and no PUT is under way any more.
		s.State = now.State
		if err := r.o.Store.Leave(ctx, s.ID, r.o.Now()); err != nil {
			return err
		}
		r.Wake()
	}
	return errSuperseded
}

// orphan sees to it that what a PUT makes too late is deleted: its row has gone. The name
// is taken for a row that is expired already, unless somebody has it, whose stream it is
// then.
func (r *Reconciler) orphan(ctx context.Context, s *store.Stream) error {
	id, err := newID(r.o.Random, streamIDPrefix)
	if err != nil {
		return err
	}
	now := r.o.Now()
	stand := store.Stream{
		Stream: tenant.Stream{Account: s.Account, Name: s.Name, ContentType: s.ContentType},
		ID:     id, State: store.Creating, Region: s.Region, CreatedAt: now, ExpiresAt: now,
	}
	switch err := r.o.Store.CreateStream(ctx, store.BySystem(), stand); {
	case errors.Is(err, store.ErrNotFound):
		return r.deleteUnowned(ctx, s)
	case errors.Is(err, store.ErrTaken):
	case err != nil:
		return err
	default:
		r.log(s).Warn("a stream was made after its row had gone; it is deleted")
		r.Wake()
	}
	return errSuperseded
}

// deleteUnowned deletes a stream of an account that is deleted: nobody can make one of its
// name any more, and nobody is left to keep a row for it.
func (r *Reconciler) deleteUnowned(ctx context.Context, s *store.Stream) error {
	head, err := r.askNode(ctx, http.MethodHead, s, nil)
	if err != nil || head.gone() {
		return errors.Join(errSuperseded, err)
	}
	if head.status != http.StatusOK {
		return errors.Join(errSuperseded, unexpected(http.MethodHead, head))
	}
	a, err := r.askNode(ctx, http.MethodDelete, s, http.Header{incarnationHeader: {head.incarnation()}})
	if err == nil && a.status != http.StatusNoContent && !a.gone() {
		err = unexpected(http.MethodDelete, a)
	}
	return errors.Join(errSuperseded, err)
}

// headOf asks what Ursula has of a stream: it is there, with an incarnation, or surely gone.
// The error is errLater.
func (r *Reconciler) headOf(ctx context.Context, s *store.Stream) (nodeAnswer, error) {
	head, err := r.askNode(ctx, http.MethodHead, s, nil)
	switch {
	case err != nil:
		return head, fmt.Errorf("%w: %w", errLater, err)
	case !head.gone() && (head.status != http.StatusOK || head.incarnation() == ""):
		return head, fmt.Errorf("%w: %w", errLater, unexpected(http.MethodHead, head))
	}
	return head, nil
}

// remove does the next step of a Deleting row; nil says that the row is gone.
func (r *Reconciler) remove(ctx context.Context, s *store.Stream) error {
	head, err := r.headOf(ctx, s)
	switch {
	case err != nil:
		return err
	case head.gone():
		return r.missing(ctx, s)
	}
	// The name is still this row's, so what was seen is.
	if err := r.o.Store.Busy(ctx, s.ID, r.o.Now().Add(r.o.Request)); err != nil {
		if errors.Is(err, store.ErrNotFound) {
			return nil
		}
		return err
	}
	if s.Incarnation == "" && !s.Protocol && !sameType(head.header.Get("Content-Type"), s.ContentType) {
		r.log(s).Warn("Ursula holds a stream of another content type under the name; it stays")
		return r.freed(ctx, s)
	}
	a, err := r.askNode(ctx, http.MethodDelete, s, http.Header{incarnationHeader: {head.incarnation()}})
	switch {
	case err != nil:
		return fmt.Errorf("%w: %w", errLater, err)
	case a.status != http.StatusNoContent && !a.gone():
		return fmt.Errorf("%w: %w", errLater, unexpected(http.MethodDelete, a))
	}
	if !quiet(s) {
		r.looked(s)
		return r.lookAgain(ctx, s)
	}
	return r.freed(ctx, s)
}

// quiet reports whether no request that makes a row's stream can be under way: it was
// active, and clients have their answers.
func quiet(s *store.Stream) bool { return s.Incarnation != "" && s.Unanswered == 0 }

// missing decides what it means that Ursula has no such stream.
func (r *Reconciler) missing(ctx context.Context, s *store.Stream) error {
	if quiet(s) || r.lookedBefore(s) {
		return r.freed(ctx, s)
	}
	return r.lookAgain(ctx, s)
}

// lookAgain leaves the row until a PUT that is late has taken effect.
func (r *Reconciler) lookAgain(ctx context.Context, s *store.Stream) error {
	if err := r.o.Store.Busy(ctx, s.ID, r.o.Now().Add(r.o.Late)); err != nil && !errors.Is(err, store.ErrNotFound) {
		return err
	}
	return errUnanswered
}

func (r *Reconciler) freed(ctx context.Context, s *store.Stream) error {
	r.forget(s)
	if err := r.o.Store.RemoveStream(ctx, s.ID); err != nil && !errors.Is(err, store.ErrNotFound) {
		return err
	}
	r.log(s).Info("stream deleted")
	return nil
}

// learn notes what a declared stream is called at the node. Making it is the Keeper's.
func (r *Reconciler) learn(ctx context.Context, s *store.Stream) error {
	head, err := r.askNode(ctx, http.MethodHead, s, nil)
	switch {
	case err != nil:
		return fmt.Errorf("%w: %w", errLater, err)
	case head.status != http.StatusOK || head.incarnation() == "":
		return fmt.Errorf("%w: %w", errLater, unexpected(http.MethodHead, head))
	}
	err = r.o.Store.Learn(ctx, s.ID, head.incarnation())
	if errors.Is(err, store.ErrNotFound) {
		return errSuperseded
	}
	return err
}

// freeIn estimates when the name of a Deleting row is free. One that was active is deleted
// at once; of any other it has to be seen twice that no stream of it comes up any more
// (see the package's comment). Where another replica has looked once, it is sooner.
func (r *Reconciler) freeIn(s *store.Stream) time.Duration {
	now := r.o.Now()
	wait := r.o.Poll + max(0, s.BusyUntil.Sub(now))
	if quiet(s) {
		return wait
	}
	r.mu.Lock()
	first, ok := r.looks[lookOf(s)]
	r.mu.Unlock()
	if !ok {
		return wait + r.o.Late
	}
	return max(wait, r.o.Poll+first.Add(r.o.Late).Sub(now))
}

// lookOf names the looks at a row since the last request for it was begun.
func lookOf(s *store.Stream) string { return s.ID + "/" + strconv.FormatInt(s.Attempts, 10) }

// looked remembers that a node has answered what became of a row.
func (r *Reconciler) looked(s *store.Stream) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.looks) >= maxRemembered {
		clear(r.looks)
	}
	r.looks[lookOf(s)] = r.o.Now()
}

// lookedBefore reports whether a node has answered so long ago that what was late then has
// taken effect since; where none ever has, one has now.
func (r *Reconciler) lookedBefore(s *store.Stream) bool {
	r.mu.Lock()
	first, ok := r.looks[lookOf(s)]
	r.mu.Unlock()
	if !ok {
		r.looked(s)
	}
	// The store's clock says when it is time to look again; ours may say a little less.
	return ok && !first.After(r.o.Now().Add(-r.o.Late*9/10))
}
