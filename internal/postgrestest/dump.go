package postgrestest

import (
	"os/exec"
	"path/filepath"
	"testing"
)

// Tool is one of PostgreSQL's own programs with its arguments, of the server's version:
// pg_dump, pg_restore, psql.
func (s *Server) Tool(tb testing.TB, name string, args ...string) *exec.Cmd {
	tb.Helper()
	cmd := exec.CommandContext(tb.Context(), filepath.Join(filepath.Dir(s.command[0]), name), args...) //nolint:gosec // of the rig
	return cmd
}
