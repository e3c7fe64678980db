package store

import (
	"io"
	"time"
)

// Options say which store to open.
type Options struct {
	URL        string // "sqlite:/path/file.db" or "postgres://…"
	SealingKey []byte // 32 bytes; nil: with SQLite one is made beside the database, with Postgres an error
	Now        func() time.Time
	Random     io.Reader
}

// Store is what people manage.
type Store struct{}
