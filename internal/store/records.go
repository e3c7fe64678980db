package store

import (
	"errors"
	"time"

	"sluice/internal/tenant"
)

// Errors of a Store.
var (
	// ErrNotFound says that there is none such, surely.
	ErrNotFound = tenant.ErrNotFound
	// ErrUnavailable says that the store could not tell, or that it is not known
	// whether a change was made.
	ErrUnavailable = tenant.ErrUnavailable
	// ErrTaken says that an id, a name or a digest is somebody's already. The id of an
	// account stays taken for ever (design §1).
	ErrTaken = errors.New("taken")
	// ErrDeclared says that the operator's file states this, so that it can be changed
	// there only.
	ErrDeclared = errors.New("declared in the operator's file")
	// ErrWider says that a change of a key would let it do more than it does.
	ErrWider = errors.New("grants more than before")
	// ErrTwoSecrets says that a key has two good secrets, and that a third would end one.
	ErrTwoSecrets = errors.New("two secrets are good already")
	// ErrExpired says that a key is over, and with it whatever it would be given.
	ErrExpired = errors.New("expired")
	// ErrGone says that the thing is on its way out or ended: a stream that is being
	// deleted, a key that is revoked. An account that is deleted is not found.
	ErrGone = errors.New("gone")
)

// OwnLimits are what an account has of its own; nil takes the default of the replica
// that asks, which may change with its file.
type OwnLimits struct {
	RequestsPerSecond, Burst, OpenTails, Uploads *int
	UploadBytes, RequestBytes                    *int64
}

// Account is an account as it is stored.
type Account struct {
	ID        tenant.AccountID
	State     tenant.State
	Limits    OwnLimits
	Declared  bool
	CreatedAt time.Time
}

// AccountChange is a change of an account; nil leaves a field as it is.
type AccountChange struct {
	State *tenant.State
	// Limits edits those that the account has at the moment of the change, so that two who
	// change different ones at once lose neither. It only edits, and does not wait.
	Limits func(*OwnLimits)
}

// Key is an API key as it is stored: its rights, and what people see of it.
type Key struct {
	tenant.Key           // Digest and Hint are those of the newest secret
	LastUsedAt time.Time // to the minute; zero = never
	// OldHint is of the secret that was replaced, until OldUntil; zero = there is none.
	OldHint  string
	OldUntil time.Time
}

// KeyChange narrows a key; nil leaves a field as it is.
type KeyChange struct {
	Name      *string
	Access    *tenant.Access
	ActsAs    *tenant.ActsAs
	Streams   *tenant.StreamSet
	ExpiresAt *time.Time // the zero time = never
}

// NewSecret is what a rotation gives a key.
type NewSecret struct {
	Digest   tenant.Digest
	Hint     string
	OldUntil time.Time // until when the one that it replaces is good
	// EndOlder ends the older one at once where two are good already.
	EndOlder bool
}

// StreamState is how far the two systems that hold a stream are.
type StreamState string

// The states of a stream. A name is free again only when its row is gone.
const (
	Creating StreamState = "creating" // wanted; Ursula may have it or not
	Live     StreamState = "active"   // Ursula has it
	Deleting StreamState = "deleting" // not wanted; Ursula may have it or not
)

// Stream is a stream as it is stored.
type Stream struct {
	tenant.Stream
	// ID is of this stream and no other that ever had its name.
	ID          string
	State       StreamState
	Region      string
	Incarnation string // as Ursula says it; empty while it has not
	CreatedAt   time.Time
	ExpiresAt   time.Time // zero = never
	// TTL is after how many seconds without use Ursula lets it go; 0 = never.
	// One of no time at all is OverAtOnce.
	TTL int64
	// Protocol says that a client made it at its own URL: Ursula ends it, and nobody but
	// the client may make it.
	Protocol bool
	// Attempts rises with each request that a client makes for it at its own URL, and each
	// answer to one that others were begun after. Unanswered counts those requests that may
	// still take effect, or have done so unknown to us.
	Attempts, Unanswered int64
	// Doomed is what such a request was to delete, and may have: an incarnation, or Whatever
	// comes up under the name.
	Doomed string
	// MadeBy is who sent the last PUT, DoomedBy who the last DELETE that may have deleted it,
	// as package store writes an Author.
	MadeBy, DoomedBy string
	// BusyUntil is the time until which a request of whoever works on the stream may
	// still reach a node: before that nobody else may say what became of it. It is given
	// by the clock of the caller, and read by that of the store.
	BusyUntil time.Time
}

// Whatever is all incarnations of a Doomed stream.
const Whatever = "*"

// OverAtOnce is the TTL of a stream that Ursula lets go as soon as it has it.
const OverAtOnce = -1

// Page is a part of a list, in the order of ids or names.
type Page struct {
	After  string // the last of the page before; empty = from the beginning
	Prefix string // of the name; not for keys
	Limit  int    // at least 1
}

// Declaration is what the operator's file states. A key's ID is "{account}/{name}"; where
// it takes the place of one that people made, that one's id stays.
type Declaration struct {
	Accounts []Account
	Streams  []tenant.Stream
	Keys     []tenant.Key
}

// Change is an entry of the log of changes.
type Change struct {
	Revision int64
	tenant.Change
}

// Cutoff is what tokens made from a key are held to (tenant.Directory).
type Cutoff struct {
	KeyID string
	// At is the time at or before which no token that lives was issued. While no good key
	// has the id it is the year 9999.
	At  time.Time
	Set time.Time // when it was set last
}
