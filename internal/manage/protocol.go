package manage

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/netip"
	"strconv"
	"time"

	"go.uber.org/zap"

	"sluice/internal/refusal"
	"sluice/internal/store"
	"sluice/internal/tenant"
)

// How long a client waits for the store: at the beginning, before it is told that the store
// is out of reach, and for what its answer says to be written down. What is not is found out
// by the Reconciler.
const (
	beginWait = 5 * time.Second
	endWait   = 2 * time.Second
)

// ProtocolOptions are the parts of a Protocol; all are needed but where it is said.
type ProtocolOptions struct {
	Streams    StreamStore
	Reconciler *Reconciler
	Log        *zap.Logger
	Now        func() time.Time // nil = time.Now
	Random     io.Reader        // of ids
	// Region is where streams are kept.
	Region string
}

// Protocol keeps the store in step with what clients do to streams at their own URL
// (streams.lifecycle: protocol). It sends nothing to a node itself. It keeps no state, and
// is safe for concurrent use.
type Protocol struct{ o ProtocolOptions }

// NewProtocol makes one.
func NewProtocol(o ProtocolOptions) *Protocol {
	if o.Now == nil {
		o.Now = time.Now
	}
	return &Protocol{o}
}

// StreamChange is a PUT or DELETE of a stream, who sends it and from where.
type StreamChange struct {
	Account tenant.AccountID
	Stream  tenant.StreamName
	// Remove says that it is a DELETE.
	Remove bool
	// ContentType and Incarnation are the request's headers; "" where it has none.
	ContentType, Incarnation string
	// Deadline is when its sender gives it up.
	Deadline time.Time

	KeyID     string
	Client    netip.Addr
	RequestID string
}

// Attempt is a change that was begun, and may go to a node. It belongs to one goroutine.
type Attempt struct {
	p      *Protocol
	by     store.Author
	row    store.Stream
	remove bool
}

// Begin writes down that a change is about to go to a node. The error is a
// *refusal.Refusal: nothing is to be sent.
func (p *Protocol) Begin(ctx context.Context, c StreamChange) (*Attempt, error) {
	id, err := newID(p.o.Random, streamIDPrefix)
	if err != nil {
		return nil, refusal.From(err)
	}
	want := store.Stream{
		Stream: tenant.Stream{Account: c.Account, Name: c.Stream, ContentType: wantedType(c.ContentType)},
		ID:     id, Region: p.o.Region, CreatedAt: p.o.Now().UTC().Truncate(time.Microsecond),
		BusyUntil: c.Deadline.Add(p.o.Reconciler.o.Late),
	}
	switch {
	case c.Remove && c.Incarnation != "":
		want.Doomed = wantedIncarnation(c.Incarnation)
	case c.Remove:
		want.Doomed = store.Whatever
	}
	ctx, cancel := context.WithTimeout(ctx, beginWait)
	defer cancel()
	by := keyAuthor(c.Account, c.KeyID, c.Client, c.RequestID)
	row, err := p.o.Streams.Begin(ctx, by, want)
	if err != nil {
		return nil, p.refuse(row, c.Remove, err)
	}
	return &Attempt{p: p, by: by, row: row, remove: c.Remove}, nil
}

// Look says what Begin would refuse a change with at this instant, and writes nothing down;
// nil where it may go to a node. The error is a *refusal.Refusal.
func (p *Protocol) Look(ctx context.Context, c StreamChange) error {
	ctx, cancel := context.WithTimeout(ctx, beginWait)
	defer cancel()
	row, err := p.o.Streams.LookBegin(ctx, c.Account, c.Stream, c.Remove)
	if err != nil {
		return p.refuse(row, c.Remove, err)
	}
	return nil
}

// wantedType is what a new row says until a node has: Ursula's own default where the
// request has no type that a row could hold.
func wantedType(text string) string {
	if len(text) > maxContentType || !mediaTypes.MatchString(text) {
		return "application/octet-stream"
	}
	return text
}

// wantedIncarnation is what a DELETE that names one itself is for. What no node issues is for
// none: a store may not take such a text, and one means something there.
func wantedIncarnation(text string) string {
	if _, err := strconv.ParseUint(text, 10, 64); err != nil {
		return noIncarnation
	}
	return text
}

// refuse says why a change may not go to a node.
func (p *Protocol) refuse(row store.Stream, remove bool, err error) error {
	switch {
	case errors.Is(err, store.ErrGone) && remove:
		return streamError(err)
	case errors.Is(err, store.ErrGone):
		wait := refusal.WholeSeconds(p.o.Reconciler.freeIn(&row))
		return refusal.Because(refusal.StreamTaken, "A stream of this name is being deleted: try again after Retry-After seconds.", err).
			With("Retry-After", strconv.Itoa(wait))
	case errors.Is(err, store.ErrTaken):
		return refusal.Because(refusal.StreamTaken, "The Management API is creating this stream: try again after Retry-After seconds.", err).
			With("Retry-After", "1")
	case errors.Is(err, store.ErrDeclared):
		return refusal.Because(refusal.Declared, "The operator's file states this stream: it is deleted there.", err)
	case errors.Is(err, store.ErrNotFound):
		return refusal.New(refusal.AccountRevoked, err)
	default:
		return refusal.Because(refusal.StoreUnavailable, "What is stored cannot be reached at the moment; nothing was applied. Try again after Retry-After seconds.", err)
	}
}

// noIncarnation is a token that Ursula never issues: they begin at 2^52.
const noIncarnation = "1"

// Incarnation is what a DELETE is to be for, so that one that is late deletes nothing that
// was made since; "" for a PUT. Where it is not known, it is one that no stream has: the
// node then says which it is, and has done nothing.
func (t *Attempt) Incarnation() string {
	switch {
	case !t.remove:
		return ""
	case t.row.Incarnation == "":
		return noIncarnation
	default:
		return t.row.Incarnation
	}
}

// End ends the attempt with a node's answer: its head, and the code of its error. What it
// cannot write down does not become the client's trouble: the Reconciler finds it out. An
// attempt that has no answer, or one that proves nothing, is not ended.
func (t *Attempt) End(ctx context.Context, status int, header http.Header, code string) {
	a := nodeAnswer{status: status, header: header, code: code}
	switch {
	case !t.remove && (status == http.StatusCreated || status == http.StatusOK) && a.incarnation() != "":
		t.end(ctx, store.Made, sightOf(header))
	case t.remove && status == http.StatusNoContent:
		t.end(ctx, store.Deleted, store.Sight{})
	case t.remove && a.gone():
		t.end(ctx, store.Gone, store.Sight{})
	case a.refused(), a.provesNothingApplied():
		t.end(ctx, store.Refused, store.Sight{})
	default:
		t.log().Debug("the answer to a client's change of a stream proves nothing", zap.Int("status", status))
	}
}

// Unsent ends the attempt where surely no node was given it.
func (t *Attempt) Unsent(ctx context.Context) { t.end(ctx, store.Refused, store.Sight{}) }

func (t *Attempt) end(ctx context.Context, what store.Outcome, seen store.Sight) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), endWait)
	defer cancel()
	err := t.p.o.Streams.End(ctx, t.by, t.row.ID, t.row.Attempts, what, seen)
	if errors.Is(err, store.ErrNotFound) {
		err = nil
		if what == store.Made {
			err = t.again(ctx, seen)
		}
	}
	if err != nil {
		t.log().Warn("a client's change of a stream is not written down; it is looked at later", zap.Error(err))
	}
}

// again makes a row for what was made so late that its row had gone.
func (t *Attempt) again(ctx context.Context, seen store.Sight) error {
	id, err := newID(t.p.o.Random, streamIDPrefix)
	if err != nil {
		return err
	}
	want := t.row
	want.ID, want.Public, want.ExpiresAt, want.TTL, want.Incarnation = id, false, time.Time{}, 0, ""
	want.Doomed, want.BusyUntil = "", t.p.o.Now().Add(t.p.o.Reconciler.o.Late)
	row, err := t.p.o.Streams.Begin(ctx, t.by, want)
	switch {
	case errors.Is(err, store.ErrNotFound):
		t.log().Debug("a stream was made for an account that is deleted", zap.Error(t.p.o.Reconciler.deleteUnowned(ctx, &want)))
		return nil
	case errors.Is(err, store.ErrGone), errors.Is(err, store.ErrTaken):
		return nil // whose row it is then sees what there is
	case err != nil:
		return err
	}
	return t.p.o.Streams.End(ctx, t.by, row.ID, row.Attempts, store.Made, seen)
}

func (t *Attempt) log() *zap.Logger { return t.p.o.Reconciler.log(&t.row) }
