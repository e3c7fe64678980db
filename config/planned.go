package config

import "strings"

// PlannedKey is a key, or a value of one, that design §9 names and this
// version does not know yet.
type PlannedKey struct {
	// Path is the key's path, or "path=value". A path stands for all below it.
	Path string
	// Meanwhile says what to do and what holds without it.
	Meanwhile string
}

// Planned lists what is not built yet. Each row goes when its key comes.
func Planned() []PlannedKey {
	const fixed = "remove it. The server's own limits hold"
	return []PlannedKey{
		{"cache", "remove it. Every read goes to a node"},
		{"tails.share", "remove it. Each live read has its own read at a node"},
		{"management", "remove it. The Management API is at the origin, under /v1"},
		{"server.header_bytes", fixed},
		{"server.idle", fixed},
		{"server.tails_per_connection", fixed},
	}
}

// anyIndex turns "accounts[3].limits" into "accounts[].limits".
func anyIndex(path string) string {
	before, rest, ok := strings.Cut(path, "[")
	if !ok {
		return path
	}
	_, after, _ := strings.Cut(rest, "]")
	return before + "[]" + anyIndex(after)
}

func plannedKey(path string) (string, bool) {
	path = anyIndex(path)
	for _, p := range Planned() {
		if p.Path == path {
			return "is not built yet in this version; " + p.Meanwhile, true
		}
	}
	return "", false
}

func plannedValue(path, value string) (string, bool) {
	// A value is looked up only where the path has one, which keeps a long file fast.
	if strings.ContainsRune(path, '[') {
		return "", false
	}
	for _, p := range Planned() {
		if p.Path == path+"="+value {
			return "this value is not built yet in this version; " + p.Meanwhile, true
		}
	}
	return "", false
}
