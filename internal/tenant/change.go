package tenant

import "time"

// Times that bound the life of what is made from a key (design §5).
const (
	// MaxTokenLife is the longest that a Streams token lives after its "iat".
	MaxTokenLife = time.Hour
	// CutoffKept is how long a cutoff is kept at least after it was set: the
	// longest that a token made before it can live, and a margin.
	CutoffKept = MaxTokenLife + time.Minute
)

// ChangeKind says what a Change is about.
type ChangeKind int

// The kinds of change.
const (
	// KeyChanged: the key named by KeyID was revoked or removed, or grants less.
	KeyChanged ChangeKind = iota + 1
	// AccountChanged: Account has another state, or is gone.
	AccountChanged
	// StreamChanged: Stream of Account became private, or is gone.
	StreamChanged
	// SigningKeysChanged: SigningKeys gives another list.
	SigningKeysChanged
	// Everything may have changed: notifications were lost, or a change was too
	// large to be told one by one.
	Everything
)

// Change is an announcement that something may have changed. It says what to
// look at again, not what became of it: whoever hears it asks the Directory.
type Change struct {
	Kind    ChangeKind
	KeyID   string     // of KeyChanged
	Account AccountID  // of AccountChanged, StreamChanged and KeyChanged
	Stream  StreamName // of StreamChanged
}
