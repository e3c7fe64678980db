package realclients

import (
	"crypto/sha256"
	"encoding/hex"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"sluice/internal/realpart"
)

// EnvRoot names the folder that has the clients, instead of the cache; `make` sets it.
const EnvRoot = "SLUICE_CLIENTS"

// Clients are the installed clients. It holds paths only and may be copied.
type Clients struct {
	Modules string // node_modules
	Node    string // the program node
	Python  string // the program python, which imports durable_streams
}

// Find returns the clients in the very versions that tools/clients locks. Where they
// are not, it skips the test and says how to get them, or fails it where
// SLUICE_REQUIRE_PARTS=1.
func Find(tb testing.TB) Clients {
	tb.Helper()
	locks, err := readLocks()
	if err != nil {
		tb.Fatal(err)
	}
	root := os.Getenv(EnvRoot)
	if root == "" {
		root = locks.root()
	}
	const how = "; `make clients` installs them (seconds), or name their folder in " + EnvRoot
	if problem := locks.check(root); problem != "" {
		realpart.Missing(tb, "the Durable Streams clients", problem+how)
	}
	node, err := exec.LookPath("node")
	if err != nil {
		realpart.Missing(tb, "node", err.Error())
	}
	return Clients{
		Modules: filepath.Join(root, "node_modules"),
		Node:    node,
		Python:  filepath.Join(root, "venv", "bin", "python"),
	}
}

// Dir makes a folder for a test's own scripts in which node finds the installed
// packages by name, as it does beside a package.json of theirs.
func (c Clients) Dir(tb testing.TB) string {
	tb.Helper()
	dir := tb.TempDir()
	if err := os.Symlink(c.Modules, filepath.Join(dir, "node_modules")); err != nil {
		tb.Fatal(err)
	}
	return dir
}

// Chromium returns the path of the browser, a headless one of which a test drives.
func Chromium(tb testing.TB) string {
	tb.Helper()
	path, err := exec.LookPath("chromium")
	if err != nil {
		realpart.Missing(tb, "chromium", err.Error()+"; Debian's package has its name")
	}
	return path
}

// locks are the two files of tools/clients that name all versions.
type locks struct{ npm, pip []byte }

// The order is that of the Makefile, which hashes the same.
const (
	npmLock = "package-lock.json"
	pipLock = "requirements.txt"
)

func readLocks() (locks, error) {
	dir, err := os.Getwd()
	if err != nil {
		return locks{}, err
	}
	// A test runs in its package's folder, somewhere below the module's.
	for {
		npm, err := os.ReadFile(filepath.Join(dir, "tools", "clients", npmLock)) //nolint:gosec // the module's own file
		if err == nil {
			pip, err := os.ReadFile(filepath.Join(dir, "tools", "clients", pipLock)) //nolint:gosec // same
			return locks{npm, pip}, err
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return locks{}, err
		}
		dir = parent
	}
}

// root is where `make clients` installs what the files lock.
func (l locks) root() string {
	cache := os.Getenv("XDG_CACHE_HOME")
	if cache == "" {
		// Without a home there is no cache; the path that is left names what lacks.
		home, _ := os.UserHomeDir()
		cache = filepath.Join(home, ".cache")
	}
	hash := sha256.New()
	hash.Write(l.npm)
	hash.Write(l.pip)
	return filepath.Join(cache, "sluice", "clients-"+hex.EncodeToString(hash.Sum(nil))[:12])
}

// check says why root does not have what the files lock; "" = it has.
func (l locks) check(root string) string {
	for name, want := range map[string][]byte{npmLock: l.npm, pipLock: l.pip} {
		got, err := os.ReadFile(filepath.Join(root, name)) //nolint:gosec // the installed copy
		if err != nil {
			return err.Error()
		}
		if string(got) != string(want) {
			return root + " has other versions than tools/clients/" + name
		}
	}
	return ""
}
