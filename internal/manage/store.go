package manage

import (
	"context"
	"time"

	"sluice/internal/store"
	"sluice/internal/tenant"
)

// StreamStore keeps the rows of streams. Errors are those of package store; every
// other one wraps store.ErrUnavailable. All methods are safe for concurrent use. What
// takes an author keeps one record of the change, where there is one, with it.
type StreamStore interface {
	// CreateStream keeps a new row as Creating, busy until its BusyUntil.
	// store.ErrTaken while a row has the name, store.ErrNotFound without the account.
	CreateStream(ctx context.Context, by store.Author, s store.Stream) error
	// Stream finds a row, whatever its state; store.ErrNotFound.
	Stream(ctx context.Context, account tenant.AccountID, name tenant.StreamName) (store.Stream, error)
	Streams(ctx context.Context, account tenant.AccountID, p store.Page) ([]store.Stream, error)
	// SetPublic gives store.ErrNotFound, store.ErrGone while it is Deleting, store.ErrDeclared.
	SetPublic(ctx context.Context, by store.Author, account tenant.AccountID, name tenant.StreamName, public bool) (store.Stream, error)
	// MarkCreated makes a Creating row active; store.ErrNotFound where it is not Creating.
	MarkCreated(ctx context.Context, id, incarnation string) error
	// DeleteStream makes a row Deleting; repeating it is no error. store.ErrNotFound,
	// store.ErrDeclared.
	DeleteStream(ctx context.Context, by store.Author, account tenant.AccountID, name tenant.StreamName) (store.Stream, error)
	// Busy says until when a request for the row may take effect at a node; it moves no
	// time back. store.ErrNotFound says that the row is gone.
	Busy(ctx context.Context, id string, until time.Time) error
	// Leave says that no request is under way, and until when the row is left alone; other
	// than Busy it moves the time back.
	Leave(ctx context.Context, id string, until time.Time) error
	// RemoveStream removes a Creating or Deleting row; the name is free.
	RemoveStream(ctx context.Context, id string) error
	// Learn notes the incarnation of a declared row that has none; store.ErrNotFound where
	// there is no such row any more.
	Learn(ctx context.Context, id, incarnation string) error
	// Unsettled makes expired rows Deleting, and lists those that are not busy and are
	// Creating, Deleting, declared without an incarnation, or have an unanswered attempt.
	Unsettled(ctx context.Context, limit int) ([]store.Stream, error)
	// Begin begins a client's own attempt at a stream, and makes the row of its name where
	// there is none; want.Doomed is what a DELETE is for. The error comes with the row: store.ErrGone, store.ErrTaken,
	// store.ErrDeclared; store.ErrNotFound without the account.
	Begin(ctx context.Context, by store.Author, want store.Stream) (store.Stream, error)
	// LookBegin is the error that Begin would give now, with the row; it changes nothing.
	LookBegin(ctx context.Context, account tenant.AccountID, name tenant.StreamName, remove bool) (store.Stream, error)
	// End ends an attempt by its answer; store.ErrNotFound says that the row is gone.
	End(ctx context.Context, by store.Author, id string, attempt int64, what store.Outcome, seen store.Sight) error
	// Saw notes what a node has of a stream, nil for nothing; store.ErrNotFound where the row
	// is not as it was.
	Saw(ctx context.Context, s store.Stream, seen *store.Sight, settled bool) error
	// Condemn makes a row Deleting; store.ErrNotFound where it is not as it was.
	Condemn(ctx context.Context, s store.Stream) error
	// Looks lists rows of streams that Ursula may have let go.
	Looks(ctx context.Context, limit int) ([]store.Stream, error)
	// Hold takes or renews a lease for one holder, on the store's clock.
	Hold(ctx context.Context, lease, holder string, life time.Duration) (bool, error)
	LetGo(ctx context.Context, lease, holder string) error
}

// KeyStore keeps API keys. Errors are as in StreamStore.
type KeyStore interface {
	// CreateKey gives store.ErrTaken for the name among the account's keys that are not
	// revoked, store.ErrNotFound without the account.
	CreateKey(ctx context.Context, by store.Author, k store.Key) error
	Key(ctx context.Context, account tenant.AccountID, id string) (store.Key, error)
	Keys(ctx context.Context, account tenant.AccountID, p store.Page) ([]store.Key, error)
	// ChangeKey gives store.ErrNotFound, store.ErrWider, store.ErrGone for a revoked key,
	// store.ErrDeclared, store.ErrTaken.
	ChangeKey(ctx context.Context, by store.Author, account tenant.AccountID, id string, c store.KeyChange) (store.Key, error)
	// RotateKey gives a key a new secret. store.ErrTwoSecrets where two are good already and
	// the older is not to end; store.ErrNotFound, store.ErrGone, store.ErrExpired,
	// store.ErrDeclared.
	RotateKey(ctx context.Context, by store.Author, account tenant.AccountID, id string, to store.NewSecret) (store.Key, error)
	// RevokeKey is no error where the key is revoked already. store.ErrNotFound,
	// store.ErrDeclared.
	RevokeKey(ctx context.Context, by store.Author, account tenant.AccountID, id string) error
}

// AccountStore keeps accounts. Errors are as in StreamStore.
type AccountStore interface {
	// CreateAccount keeps an account and its first key, both or neither; store.ErrTaken
	// for ids once deleted too.
	CreateAccount(ctx context.Context, by store.Author, a store.Account, first *store.Key) error
	Account(ctx context.Context, id tenant.AccountID) (store.Account, error)
	Accounts(ctx context.Context, p store.Page) ([]store.Account, error)
	// ChangeAccount gives store.ErrNotFound, store.ErrDeclared.
	ChangeAccount(ctx context.Context, by store.Author, id tenant.AccountID, c store.AccountChange) (store.Account, error)
	// DeleteAccount revokes the account's keys and makes its streams Deleting.
	// store.ErrNotFound, store.ErrDeclared.
	DeleteAccount(ctx context.Context, by store.Author, id tenant.AccountID) error
}

// AuditStore keeps the records of changes. Errors are as in StreamStore.
type AuditStore interface {
	// Audit lists records, newest first, and says before which id the next page is; 0 = there
	// is none.
	Audit(ctx context.Context, q store.AuditQuery) (page []store.Record, next int64, err error)
	// ForgetAudit takes out up to limit records made before a time, the oldest first, and
	// returns how many.
	ForgetAudit(ctx context.Context, before time.Time, limit int) (int, error)
}

// UsageStore keeps what was used. Errors are as in StreamStore.
type UsageStore interface {
	Usage(ctx context.Context, account tenant.AccountID, q store.UsageQuery) ([]store.UsageHour, error)
	// UsageBatches lists the batches of all replicas behind a position, in the order in which
	// they were written, at most so many, and no more once they have so many bytes.
	UsageBatches(ctx context.Context, after int64, most, bytes int) ([]store.UsageBatch, error)
}
