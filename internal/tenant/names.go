package tenant

import (
	"errors"
	"fmt"
	"strings"
)

// Bounds of the names (design §1). MaxStreamPath is Ursula's limit on
// "{bucket}/{stream}".
const (
	MinAccountID  = 4
	MaxAccountID  = 64
	MaxStreamName = 100
	MaxStreamPath = 122
	StreamPrefix  = "s."
)

// Errors of the name parsers. The wrapped text says which rule was broken and
// never repeats the input.
var (
	ErrAccountID  = errors.New("bad account id")
	ErrStreamName = errors.New("bad stream name")
)

// AccountID is the id of an account, which is Ursula's bucket: 4 to 64 of
// a-z 0-9 _ -, neither reserved nor starting with "__".
type AccountID string

// StreamName is what clients call a stream, without the "s." of its URL.
type StreamName string

// ParseAccountID checks the grammar of an account id.
// The error wraps ErrAccountID.
func ParseAccountID(s string) (AccountID, error) {
	if len(s) < MinAccountID || len(s) > MaxAccountID {
		return "", fmt.Errorf("%w: it has %d to %d characters", ErrAccountID, MinAccountID, MaxAccountID)
	}
	for i := range len(s) {
		c := s[i]
		if ('a' > c || c > 'z') && ('0' > c || c > '9') && c != '_' && c != '-' {
			return "", fmt.Errorf("%w: only a-z, 0-9, _ and - are allowed", ErrAccountID)
		}
	}
	if s == "snapshots" || s == "console" || strings.HasPrefix(s, "__") {
		return "", fmt.Errorf("%w: the name is reserved", ErrAccountID)
	}
	return AccountID(s), nil
}

// ParseStreamName checks the grammar of a stream name on its own; StreamPath
// checks its length together with the account's.
// The error wraps ErrStreamName.
func ParseStreamName(s string) (StreamName, error) {
	if s == "" || len(s) > MaxStreamName {
		return "", fmt.Errorf("%w: it has 1 to %d characters", ErrStreamName, MaxStreamName)
	}
	if !alphanumeric(s[0]) {
		return "", fmt.Errorf("%w: it begins with a letter or a digit", ErrStreamName)
	}
	for i := range len(s) {
		if !nameByte(s[i]) {
			return "", fmt.Errorf("%w: only A-Z, a-z, 0-9, '.', '_', '~' and '-' are allowed", ErrStreamName)
		}
	}
	if strings.Contains(s, "..") {
		return "", fmt.Errorf("%w: it holds no '..'", ErrStreamName)
	}
	return StreamName(s), nil
}

// CheckStreamPath reports whether the pair fits Ursula's limit on a stream's
// whole path. The error wraps ErrStreamName.
func CheckStreamPath(account AccountID, name StreamName) error {
	if len(account)+1+len(StreamPrefix)+len(name) > MaxStreamPath {
		return fmt.Errorf("%w: {account}/%s{name} has at most %d bytes", ErrStreamName, StreamPrefix, MaxStreamPath)
	}
	return nil
}

// StreamPath is the path of a stream's URL, which is also its path at a node.
func StreamPath(account AccountID, name StreamName) string {
	return "/" + string(account) + "/" + StreamPrefix + string(name)
}

func alphanumeric(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9'
}

func nameByte(c byte) bool {
	return alphanumeric(c) || c == '.' || c == '_' || c == '~' || c == '-'
}
