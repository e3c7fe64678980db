package config

import (
	"crypto/sha256"
	"maps"
	"slices"
	"sync"
)

// Source is the operator's file with all the files that it refers to, as they were read
// last. It is safe for concurrent use.
type Source struct {
	path string
	opts Options

	mu   sync.Mutex
	read map[string]content
}

// content is what was in a file, or that it could not be read.
type content struct {
	sum    [sha256.Size]byte
	failed bool
}

func contentOf(data []byte, err error) content {
	if err != nil {
		return content{failed: true}
	}
	return content{sum: sha256.Sum256(data)}
}

// NewSource is the file at path. Nothing is read yet.
func NewSource(path string, o Options) *Source { return &Source{path: path, opts: o} }

// Load reads the file as Load does, and remembers what it has read, good or bad.
func (s *Source) Load() (*Config, error) {
	read := make(map[string]content)
	o := s.opts
	o.Seen = func(path string, data []byte, err error) { read[path] = contentOf(data, err) }
	c, err := Load(s.path, o)
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil {
		// A file that is broken before its references still has them.
		for path, was := range s.read {
			if _, ok := read[path]; !ok {
				read[path] = was
			}
		}
	}
	s.read = read
	return c, err
}

// Forget has Changed report true until the next Load: for one whose content could not be
// put in force for another reason than itself.
func (s *Source) Forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for path := range s.read {
		s.read[path] = content{}
	}
}

// Files are the paths that were read last; the first is the operator's file.
func (s *Source) Files() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	files := []string{s.path}
	for _, path := range slices.Sorted(maps.Keys(s.read)) {
		if path != s.path {
			files = append(files, path)
		}
	}
	return files
}

// Changed reads the files and reports whether any has another content than at the last
// Load. The state tells two such contents apart.
func (s *Source) Changed() (changed bool, state [sha256.Size]byte) {
	all := sha256.New()
	for _, path := range s.Files() {
		limit := int64(MaxSecret)
		if path == s.path {
			limit = MaxFile
		}
		now := contentOf(readBounded(path, limit))
		s.mu.Lock()
		changed = changed || s.read[path] != now
		s.mu.Unlock()
		all.Write(now.sum[:])
	}
	all.Sum(state[:0])
	return changed, state
}
