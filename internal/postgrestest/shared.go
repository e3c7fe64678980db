package postgrestest

import (
	"sync"
	"testing"
)

// template is the database that those of tests are copies of.
const template = "filled"

// Shared is one server for all tests of a package, started by the first that asks for it.
// The package has one as a variable, and its TestMain calls Close:
//
//	func TestMain(m *testing.M) {
//		code := m.Run()
//		postgres.Close()
//		os.Exit(code)
//	}
//
// The zero value is ready. Its methods are safe for concurrent use.
type Shared struct {
	// Fill, if not nil, fills the database that those of all tests are copies of, as with
	// migrations. It leaves no connection open.
	Fill func(tb testing.TB, url string)

	mu     sync.Mutex
	server *Server
	filled bool
}

// Database makes a database for one test and returns its URL, which has a password in it.
func (s *Shared) Database(tb testing.TB) string {
	tb.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.start(tb)
	if s.Fill == nil {
		return s.server.Database(tb, "")
	}
	if !s.filled {
		s.server.make(tb, template, "")
		s.Fill(tb, s.server.url(template))
		s.filled = true
	}
	return s.server.Database(tb, template)
}

// Empty makes a database that Fill has not filled.
func (s *Shared) Empty(tb testing.TB) string {
	tb.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.start(tb)
	return s.server.Database(tb, "")
}

func (s *Shared) start(tb testing.TB) {
	tb.Helper()
	if s.server == nil {
		s.server = start(tb)
	}
}

// Close ends the server, if there is one.
func (s *Shared) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.server != nil {
		_ = s.server.end() // the tests are over: nobody is left to be told
	}
}
