package store

import (
	"database/sql"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5/pgconn"
	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"
)

// SQLSTATEs of Postgres that say something of what is stored.
const (
	pgUnique    = "23505"
	pgForeign   = "23503"
	pgCharacter = "22021" // a text that no text of Postgres can be, as with a NUL
)

// failed gives an error its place in the package's terms. What the database says of
// what is stored is said in our words, so that it has the same meaning with both.
func failed(what string, err error) error {
	if err == nil {
		return nil
	}
	for _, own := range []error{ErrNotFound, ErrTaken, ErrDeclared, ErrWider, ErrTwoSecrets, ErrExpired, ErrGone, ErrNobody, errUnrecorded, ErrUnavailable} {
		if errors.Is(err, own) {
			return fmt.Errorf("%s: %w", what, err)
		}
	}
	if own := meaning(err); own != nil {
		return fmt.Errorf("%s: %w", what, own)
	}
	return fmt.Errorf("%s: %w: %w", what, ErrUnavailable, err)
}

// meaning is nil where the database says nothing of what is stored.
func meaning(err error) error {
	if errors.Is(err, sql.ErrNoRows) {
		return ErrNotFound
	}
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok {
		switch pg.Code {
		case pgUnique:
			return ErrTaken
		case pgForeign, pgCharacter:
			return ErrNotFound
		}
	}
	if lite, ok := errors.AsType[*sqlite.Error](err); ok {
		switch lite.Code() {
		case sqlite3.SQLITE_CONSTRAINT_UNIQUE, sqlite3.SQLITE_CONSTRAINT_PRIMARYKEY:
			return ErrTaken
		case sqlite3.SQLITE_CONSTRAINT_FOREIGNKEY:
			return ErrNotFound
		}
	}
	return nil
}
