package cli

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

// Whatever stood at --output was renamed over: a device became a file, a link was
// replaced and its target left as it was, a pipe's reader got nothing.
func TestReadToWhatIsNoFile(t *testing.T) {
	n, dir := news5(t), t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	// A pipe, by itself and through a link.
	if err := syscall.Mkfifo(at("pipe"), 0o600); err != nil {
		t.Fatal(err)
	}
	link(t, "pipe", at("to-pipe"))
	for _, name := range []string{"pipe", "to-pipe"} {
		got := make(chan string, 1)
		go func() {
			text, _ := os.ReadFile(at("pipe"))
			got <- string(text)
		}()
		code, out, errOut := command(t, n.env, "stream", "read", "acme/news", "-o", at(name))
		want(t, code, out, errOut, exitDone, "", "")
		if text := <-got; text != "hello\n" {
			t.Errorf("%s: its reader got %q", name, text)
		}
		if info, err := os.Lstat(at("pipe")); err != nil || info.Mode()&os.ModeNamedPipe == 0 {
			t.Errorf("%s: %v, %v", name, info, err)
		}
	}
	// Links: to a file, over another link and a folder that is one, to nothing yet.
	write(t, at("file"), "older")
	if err := os.Mkdir(at("deep"), 0o700); err != nil {
		t.Fatal(err)
	}
	link(t, at("deep"), at("folder"))
	link(t, "../file", at("deep/up"))
	link(t, "folder/up", at("over"))
	link(t, "new", at("to-nothing"))
	for name, target := range map[string]string{"over": "file", "folder/up": "file", "to-nothing": "new"} {
		code, out, errOut := command(t, n.env, "stream", "read", "acme/news", "-o", at(name))
		want(t, code, out, errOut, exitDone, "", "")
		if info, err := os.Lstat(at(name)); err != nil || info.Mode()&os.ModeSymlink == 0 {
			t.Errorf("%s is no link any more: %v", name, err)
		}
		if got := read(t, at(target)); got != "hello\n" {
			t.Errorf("%s: %q", target, got)
		}
		write(t, at(target), "older")
	}
	link(t, "loop", at("loop"))
	for name, says := range map[string]string{"deep": "is a directory", "deep/": "folder", "none/x": "no such file", "loop": "too many"} {
		code, out, errOut := command(t, n.env, "stream", "read", "acme/news", "-o", at("")+"/"+name)
		want(t, code, out, errOut, exitFailed, "", says)
	}
}

// A private file became one that all may read, and a file that had a part's name was
// emptied.
func TestReadKeepsModesAndNeighbours(t *testing.T) {
	n, dir := news5(t), t.TempDir()
	old := syscall.Umask(0o027)
	t.Cleanup(func() { syscall.Umask(old) })
	file := filepath.Join(dir, "out")
	for mode, wantMode := range map[os.FileMode]os.FileMode{0: 0o640, 0o600: 0o600, 0o666: 0o666, 0o755: 0o755} {
		_ = os.Remove(file)
		if mode != 0 {
			write(t, file, "older")
			if err := os.Chmod(file, mode); err != nil {
				t.Fatal(err)
			}
		}
		write(t, file+".part", "mine")
		code, out, errOut := command(t, n.env, "stream", "read", "acme/news", "-o", file)
		want(t, code, out, errOut, exitDone, "", "")
		if info, err := os.Stat(file); err != nil || info.Mode().Perm() != wantMode {
			t.Errorf("%v became %v, %v", mode, info.Mode(), err)
		}
		if read(t, file+".part") != "mine" || read(t, file) != "hello\n" {
			t.Error("another file was written")
		}
	}
	// Who may not write a file does not replace it.
	if err := os.Chmod(file, 0o400); err != nil {
		t.Fatal(err)
	}
	if os.Geteuid() != 0 {
		code, out, errOut := command(t, n.env, "stream", "read", "acme/news", "-o", file)
		want(t, code, out, errOut, exitFailed, "", "permission denied")
	}
	if got, _ := os.ReadDir(dir); len(got) != 2 {
		t.Errorf("left: %v", got)
	}
}

// news5 has a stream of five letters and a line's end.
func news5(t *testing.T) *node {
	t.Helper()
	n := newNode(t)
	n.create(t, "news", "text/plain")
	n.ask(t, "POST", "news", "text/plain", "hello\n")
	return n
}

func link(t *testing.T, to, at string) {
	t.Helper()
	if err := os.Symlink(to, at); err != nil {
		t.Fatal(err)
	}
}
