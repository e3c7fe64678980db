package replica

import (
	"context"
	"time"

	"sluice/internal/store"
	"sluice/internal/tenant"
)

// Source is what a Replica asks of the store. Every method is safe for concurrent use
// and ends soon after its ctx. An error that wraps tenant.ErrNotFound says that there is
// none such, surely; any other says nothing of what is stored.
//
// An answer is at least as new as every change in the log at the moment of the question.
type Source interface {
	// KeyOf finds a key by either of its secrets; the answer's Digest is d.
	KeyOf(ctx context.Context, d tenant.Digest) (tenant.Key, error)
	Account(ctx context.Context, id tenant.AccountID) (store.Account, error)
	Stream(ctx context.Context, account tenant.AccountID, name tenant.StreamName) (store.Stream, error)

	SigningKeys(ctx context.Context) ([]tenant.SigningKey, error)
	// RotateSigningKeys is called by every replica; one of them at a time acts.
	RotateSigningKeys(ctx context.Context, r tenant.Rotation) (changed bool, err error)
	// Cutoffs are all that were set within tenant.CutoffKept.
	Cutoffs(ctx context.Context) ([]store.Cutoff, error)

	// Revision is that of the newest change; they count up by one.
	Revision(ctx context.Context) (int64, error)
	// Changes lists the changes after a revision, oldest first, at most limit. whole is
	// false where some of them are forgotten already.
	Changes(ctx context.Context, after int64, limit int) (list []store.Change, whole bool, err error)
	// Notified calls wake after each change, until ctx ends or the connection is lost,
	// which is the error. wake does not block.
	Notified(ctx context.Context, wake func()) error

	// UseKeys writes when keys were last used, by their ids. It never moves one back.
	UseKeys(ctx context.Context, lastUsed map[string]time.Time) error
}
