package certstore

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"time"

	"github.com/caddyserver/certmagic"
)

// File is what there is to tell of a file without its content.
type File struct {
	Name     string // a path with slashes, none at either end
	Size     int64  // bytes
	Modified time.Time
}

// Store is what keeps files, for all replicas. Every call ends by itself.
type Store interface {
	// Put keeps content under a name.
	Put(ctx context.Context, name string, content []byte) error
	// Get reads it; the error wraps fs.ErrNotExist where there is none.
	Get(ctx context.Context, name string) ([]byte, error)
	// Delete deletes the file of a name and all whose names begin with it and a slash.
	Delete(ctx context.Context, name string) error
	// List lists those; "" is all.
	List(ctx context.Context, name string) ([]File, error)
	// Hold takes a lease for a holder, or has it last longer; LetGo ends it.
	Hold(ctx context.Context, lease, holder string, life time.Duration) (bool, error)
	LetGo(ctx context.Context, lease, holder string) error
}

// Storage is what certmagic works with. It is safe for concurrent use.
type Storage struct {
	store Store
	locks locks
}

// New makes a storage. holder tells this process from all others, whatever they are.
func New(s Store, holder string) *Storage {
	return &Storage{store: s, locks: locks{store: s, holder: holder, held: make(map[string]*lock)}}
}

// Store implements certmagic.Storage.
func (s *Storage) Store(ctx context.Context, key string, value []byte) error {
	return s.store.Put(ctx, key, value)
}

// Load implements certmagic.Storage.
func (s *Storage) Load(ctx context.Context, key string) ([]byte, error) {
	return s.store.Get(ctx, key)
}

// Delete implements certmagic.Storage.
func (s *Storage) Delete(ctx context.Context, key string) error { return s.store.Delete(ctx, key) }

// Exists implements certmagic.Storage.
func (s *Storage) Exists(ctx context.Context, key string) bool {
	files, err := s.store.List(ctx, key)
	return err == nil && len(files) > 0
}

// List implements certmagic.Storage.
func (s *Storage) List(ctx context.Context, path string, recursive bool) ([]string, error) {
	path = strings.Trim(path, "/")
	files, err := s.store.List(ctx, path)
	if err != nil {
		return nil, err
	}
	var keys []string
	for _, f := range files {
		rest, found := strings.CutPrefix(f.Name, path+"/")
		if path == "" {
			rest, found = f.Name, true
		}
		if !found {
			continue // a file of that very name
		}
		if !recursive {
			rest, _, _ = strings.Cut(rest, "/")
		}
		keys = append(keys, strings.TrimPrefix(path+"/"+rest, "/"))
	}
	if len(keys) == 0 {
		return nil, fmt.Errorf("%s: %w", path, fs.ErrNotExist)
	}
	return slices.Compact(keys), nil
}

// Stat implements certmagic.Storage.
func (s *Storage) Stat(ctx context.Context, key string) (certmagic.KeyInfo, error) {
	files, err := s.store.List(ctx, key)
	if err != nil {
		return certmagic.KeyInfo{}, err
	}
	for _, f := range files {
		if f.Name == key {
			return certmagic.KeyInfo{Key: key, Modified: f.Modified, Size: f.Size, IsTerminal: true}, nil
		}
	}
	if len(files) > 0 {
		return certmagic.KeyInfo{Key: key}, nil
	}
	return certmagic.KeyInfo{}, fmt.Errorf("%s: %w", key, fs.ErrNotExist)
}

// Lock implements certmagic.Storage.
func (s *Storage) Lock(ctx context.Context, name string) error { return s.locks.lock(ctx, name) }

// Unlock implements certmagic.Storage.
func (s *Storage) Unlock(ctx context.Context, name string) error { return s.locks.unlock(ctx, name) }

var (
	_ certmagic.Storage = (*Storage)(nil)

	errNotHeld = errors.New("the lock is not held")
)
