package store

import (
	"context"
	"time"

	"sluice/internal/tenant"
)

// Open: migrates; error says what to do
func Open(ctx context.Context, o Options) (*Store, error) { return nil, ErrUnavailable }

// Close: see the list.
func (s *Store) Close() error { return ErrUnavailable }

// Shared: several replicas may use it (Postgres)
func (s *Store) Shared() bool { return false }

// CreateAccount: with its first key in one transaction; ErrTaken, for ids once deleted too
func (s *Store) CreateAccount(ctx context.Context, a Account, first *Key) error {
	return ErrUnavailable
}

// Account: deleted: ErrNotFound
func (s *Store) Account(ctx context.Context, id tenant.AccountID) (Account, error) {
	return Account{}, ErrUnavailable
}

// Accounts: see the list.
func (s *Store) Accounts(ctx context.Context, p Page) ([]Account, error) { return nil, ErrUnavailable }

// ChangeAccount: ErrNotFound, ErrDeclared
func (s *Store) ChangeAccount(ctx context.Context, id tenant.AccountID, c AccountChange) (Account, error) {
	return Account{}, ErrUnavailable
}

// DeleteAccount: revokes its keys, its streams become Deleting, the id stays taken; ErrNotFound, ErrDeclared
func (s *Store) DeleteAccount(ctx context.Context, id tenant.AccountID) error { return ErrUnavailable }

// CreateKey: ErrTaken (name among the account's keys that are not revoked, id, digest), ErrNotFound (account)
func (s *Store) CreateKey(ctx context.Context, k Key) error { return ErrUnavailable }

// Key: see the list.
func (s *Store) Key(ctx context.Context, account tenant.AccountID, id string) (Key, error) {
	return Key{}, ErrUnavailable
}

// KeyOf: for the request path, by either secret; an old secret's ExpiresAt is the earlier of the key's and OldUntil
func (s *Store) KeyOf(ctx context.Context, d tenant.Digest) (tenant.Key, error) {
	return tenant.Key{}, ErrUnavailable
}

// Keys: revoked ones too, in the order of ids
func (s *Store) Keys(ctx context.Context, account tenant.AccountID, p Page) ([]Key, error) {
	return nil, ErrUnavailable
}

// ChangeKey: ErrNotFound, ErrWider, ErrGone, ErrDeclared, ErrTaken
func (s *Store) ChangeKey(ctx context.Context, account tenant.AccountID, id string, c KeyChange) (Key, error) {
	return Key{}, ErrUnavailable
}

// RotateKey: at most two secrets: an older one ends now
func (s *Store) RotateKey(ctx context.Context, account tenant.AccountID, id string, d tenant.Digest, hint string, oldUntil time.Time) (Key, error) {
	return Key{}, ErrUnavailable
}

// RevokeKey: no error where it is revoked already; ErrNotFound, ErrDeclared
func (s *Store) RevokeKey(ctx context.Context, account tenant.AccountID, id string) error {
	return ErrUnavailable
}

// UseKeys: never moves back; no entry in the log of changes
func (s *Store) UseKeys(ctx context.Context, lastUsed map[string]time.Time) error {
	return ErrUnavailable
}

// CreateStream: as Creating; ErrTaken (while one of that name is Deleting too), ErrNotFound (account)
func (s *Store) CreateStream(ctx context.Context, st Stream) error { return ErrUnavailable }

// Stream: see the list.
func (s *Store) Stream(ctx context.Context, account tenant.AccountID, name tenant.StreamName) (Stream, error) {
	return Stream{}, ErrUnavailable
}

// Streams: see the list.
func (s *Store) Streams(ctx context.Context, account tenant.AccountID, p Page) ([]Stream, error) {
	return nil, ErrUnavailable
}

// SetPublic: ErrNotFound, ErrGone, ErrDeclared
func (s *Store) SetPublic(ctx context.Context, account tenant.AccountID, name tenant.StreamName, public bool) (Stream, error) {
	return Stream{}, ErrUnavailable
}

// MarkCreated: Creating → active; ErrNotFound where it is not Creating
func (s *Store) MarkCreated(ctx context.Context, id, incarnation string) error { return ErrUnavailable }

// DeleteStream: → Deleting; repeating is no error; ErrNotFound, ErrDeclared
func (s *Store) DeleteStream(ctx context.Context, account tenant.AccountID, name tenant.StreamName) (Stream, error) {
	return Stream{}, ErrUnavailable
}

// Busy: before each request to a node; ErrNotFound
func (s *Store) Busy(ctx context.Context, id string, until time.Time) error { return ErrUnavailable }

// RemoveStream: the row goes and the name is free; only of Creating and Deleting
func (s *Store) RemoveStream(ctx context.Context, id string) error { return ErrUnavailable }

// Unsettled: expired ones become Deleting first; then Creating and Deleting whose BusyUntil is over
func (s *Store) Unsettled(ctx context.Context, limit int) ([]Stream, error) {
	return nil, ErrUnavailable
}

// SigningKeys: unsealed
func (s *Store) SigningKeys(ctx context.Context) ([]tenant.SigningKey, error) {
	return nil, ErrUnavailable
}

// RotateSigningKeys: one replica at a time
func (s *Store) RotateSigningKeys(ctx context.Context, r tenant.Rotation) (changed bool, err error) {
	return false, ErrUnavailable
}

// Cutoffs: set within tenant.CutoffKept
func (s *Store) Cutoffs(ctx context.Context) ([]Cutoff, error) { return nil, ErrUnavailable }

// Declare: applies the operator's file: adds, changes and marks; what was declared before and is not any more goes (keys revoked, streams' rows go but not Ursula's data, accounts deleted only when they hold nothing managed, else they become managed). What people made is never taken over silently: a declared id, name or digest that is a managed one's becomes declared.
func (s *Store) Declare(ctx context.Context, d Declaration) error { return ErrUnavailable }

// Hold: true: holder has it for that long; on the store's clock
func (s *Store) Hold(ctx context.Context, lease, holder string, life time.Duration) (bool, error) {
	return false, ErrUnavailable
}

// LetGo: see the list.
func (s *Store) LetGo(ctx context.Context, lease, holder string) error { return ErrUnavailable }

// Revision: of the newest change
func (s *Store) Revision(ctx context.Context) (int64, error) { return 0, ErrUnavailable }

// Changes: whole is false where entries after `after` are forgotten already
func (s *Store) Changes(ctx context.Context, after int64, limit int) (list []Change, whole bool, err error) {
	return nil, false, ErrUnavailable
}

// Notified: calls wake after each change (Postgres: LISTEN; SQLite: in process) until ctx ends or the connection is lost, which is the error; call it again then
func (s *Store) Notified(ctx context.Context, wake func()) error { return ErrUnavailable }
