package tenant

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"time"
)

// Errors of a Directory.
var (
	// ErrNotFound says that the thing does not exist, surely.
	ErrNotFound = errors.New("not found")
	// ErrUnavailable says that the directory could not tell; it never means "no".
	ErrUnavailable = errors.New("directory unavailable")
	// ErrStale is ErrUnavailable where what was known before may not be used any more,
	// since nothing was heard of changes for too long (store.stale_for).
	ErrStale = fmt.Errorf("%w: nothing was heard of changes for too long", ErrUnavailable)
)

// State is an account's standing.
type State string

// The states of an account. Anything else is treated as revoked.
const (
	Active  State = "active"
	Unpaid  State = "unpaid"
	Revoked State = "revoked"
)

// Limits are an account's allowances over all replicas (design §6).
// Zero closes the thing limited; it never means "unlimited".
type Limits struct {
	RequestsPerSecond int   // requests a second, sustained
	Burst             int   // requests at once after a pause
	OpenTails         int   // live reads open at one time
	Uploads           int   // bodies over 1 MiB read at one time
	UploadBytes       int64 // bytes of such bodies at one time
	RequestBytes      int64 // bytes of one request's body
}

// DefaultLimits are those of design §6.
func DefaultLimits() Limits {
	return Limits{
		RequestsPerSecond: 50, Burst: 100, OpenTails: 16,
		Uploads: 8, UploadBytes: 64 << 20, RequestBytes: 8 << 20,
	}
}

// Account is a tenant. Values handed out by a Directory are shared between
// goroutines and never changed.
type Account struct {
	ID     AccountID
	State  State
	Limits Limits
}

// Stream is what the directory knows of a stream. It says what is public, not
// what exists: the node's answer decides that (design §8).
type Stream struct {
	Account     AccountID
	Name        StreamName
	ContentType string // media type the stream is created with
	Public      bool   // readable by anybody
	Declared    bool   // stated in the operator's file
}

// Access is what a credential may do.
type Access string

// Write includes reading. Anything else than these two reaches nothing.
const (
	ReadAccess  Access = "read"
	WriteAccess Access = "write"
)

// ActsAs tells who uses a key.
type ActsAs string

// An agent's key is good for the token exchange only.
const (
	User  ActsAs = "user"
	Agent ActsAs = "agent"
)

// Key is an API key as it is stored: never the key itself, only its digest.
type Key struct {
	ID        string // stable, printable, not secret
	Account   AccountID
	Name      string
	Hint      string // the key's last 4 characters, where known
	Digest    Digest
	Access    Access
	Streams   StreamSet
	ActsAs    ActsAs
	ExpiresAt time.Time // zero = never
	RevokedAt time.Time // zero = not revoked
	CreatedAt time.Time
	Declared  bool
}

// GrantsLess reports whether k grants less than old did, digests aside: another id
// or account does. Nothing is less than a revoked key.
func (k Key) GrantsLess(old Key) bool {
	switch {
	case !old.RevokedAt.IsZero():
		return false
	case !k.RevokedAt.IsZero(), k.ID != old.ID, k.Account != old.Account:
		return true
	case k.Access != old.Access && k.Access != WriteAccess:
		return true
	case k.ActsAs != old.ActsAs && k.ActsAs != User:
		return true
	case !k.ExpiresAt.IsZero() && (old.ExpiresAt.IsZero() || k.ExpiresAt.Before(old.ExpiresAt)):
		return true
	}
	return !old.Streams.Within(k.Streams)
}

// Digest is SHA-256 over a whole API key.
type Digest [sha256.Size]byte

const digestPrefix = "sha256:"

// ErrDigest says that a text is no digest.
var ErrDigest = errors.New(`bad digest: it is "sha256:" and 64 lower-case hex digits`)

// DigestOf hashes a whole key.
//
// A key fits the buffer, so that hashing one allocates nothing.
func DigestOf(key string) Digest {
	var buffer [64]byte
	return sha256.Sum256(append(buffer[:0], key...))
}

// ParseDigest reads the stored form, "sha256:" and lower-case hex.
func ParseDigest(s string) (Digest, error) {
	var d Digest
	digits, ok := strings.CutPrefix(s, digestPrefix)
	if !ok || len(digits) != hex.EncodedLen(len(d)) || strings.ToLower(digits) != digits {
		return d, ErrDigest
	}
	if _, err := hex.Decode(d[:], []byte(digits)); err != nil {
		return d, ErrDigest
	}
	return d, nil
}

// String is the stored form.
func (d Digest) String() string { return digestPrefix + hex.EncodeToString(d[:]) }

// StreamSet is the set of an account's streams that a credential reaches.
// The zero value reaches none, so a forgotten field never means "all".
type StreamSet struct {
	all      bool
	patterns []string
}

// AllStreams reaches every stream of the account.
func AllStreams() StreamSet { return StreamSet{all: true} }

// ErrStreamSet says that a list of patterns is not one.
var ErrStreamSet = errors.New("bad stream list")

// ParseStreamSet reads a list of names or patterns; a pattern has one "*", at
// its end, and covers every name that begins with what stands before it, case
// exact. An empty list is an error, never "all" (design §5).
func ParseStreamSet(patterns []string) (StreamSet, error) {
	if len(patterns) == 0 {
		return StreamSet{}, fmt.Errorf("%w: it is empty; leave it out to reach all streams", ErrStreamSet)
	}
	for i, p := range patterns {
		if err := checkPattern(p); err != nil {
			return StreamSet{}, fmt.Errorf("%w: entry %d: %w", ErrStreamSet, i+1, err)
		}
	}
	return StreamSet{patterns: append([]string(nil), patterns...)}, nil
}

func checkPattern(p string) error {
	prefix, star := strings.CutSuffix(p, "*")
	if star && prefix == "" {
		return nil
	}
	_, err := ParseStreamName(prefix)
	return err
}

// Covers reports whether the set reaches the stream of that name.
func (s StreamSet) Covers(name StreamName) bool {
	if s.all {
		return true
	}
	for _, p := range s.patterns {
		if prefix, star := strings.CutSuffix(p, "*"); star {
			if strings.HasPrefix(string(name), prefix) {
				return true
			}
		} else if p == string(name) {
			return true
		}
	}
	return false
}

// Narrowed reports whether the set is anything less than all streams.
func (s StreamSet) Narrowed() bool { return !s.all }

// Patterns lists the names and patterns; nil for all streams.
func (s StreamSet) Patterns() []string { return append([]string(nil), s.patterns...) }

// Directory answers the request path's questions from memory. All methods are
// safe for concurrent use; what they return must not be changed. The look-ups
// return ErrNotFound for what surely does not exist and ErrUnavailable when that
// cannot be told.
type Directory interface {
	Key(ctx context.Context, d Digest) (*Key, error)
	Account(ctx context.Context, id AccountID) (*Account, error)
	Stream(ctx context.Context, account AccountID, name StreamName) (*Stream, error)

	// Cutoff is the time at or before which a token made from the key of that id
	// must not have been issued; zero = none. A key that is revoked or removed,
	// or changed so that it grants less or has another digest, gets one. It is in
	// force no later than what it is set for, is kept for CutoffKept at least,
	// and never moves back.
	//
	// A key may be used right after its cutoff: a token made then is issued at
	// the first whole second after it. So a later cutoff of the same key lies a
	// second or more behind the one before. While no good key has the id, its
	// cutoff lies in the far future, so that no clock's skew lets a token live.
	// Where several replicas share a store, the cutoff of a key that lives on
	// has to allow for the skew of their clocks, up to 20 s.
	Cutoff(keyID string) time.Time

	// SigningKeys are our own keys, few: those that are published ahead, the one
	// that signs and those whose tokens may live. It is asked once a request that
	// carries a token, and gives the same slice as long as nothing changes.
	// ErrUnavailable is its only error; there may be none.
	SigningKeys(ctx context.Context) ([]SigningKey, error)

	// Watch has changed called after each change is in force, by whichever
	// goroutine made it, one or several at a time. changed must not block. The
	// returned stop ends that; a call under way may end a moment later.
	Watch(changed func(Change)) (stop func())
}
