package usage

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

func aBatch(n int64) *Batch {
	return &Batch{Replica: "r", Sequence: n, Records: []Record{{Account: "acme", Class: Read, Hour: HourOf(noon), Counts: Counts{Requests: n}}}}
}

func openTestFile(t *testing.T, path string) *File {
	t.Helper()
	f, err := OpenFile(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	return f
}

func writeBatch(t *testing.T, f *File, n int64) {
	t.Helper()
	if err := f.Write(t.Context(), aBatch(n)); err != nil {
		t.Fatal(err)
	}
}

// sequences are the numbers of the lines of a file; 0 for a line that is no batch.
func sequences(t *testing.T, path string) []int64 {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if n := len(text); n > 0 && text[n-1] != '\n' {
		t.Errorf("the file ends within a line: %q", text)
	}
	var all []int64
	for line := range strings.Lines(string(text)) {
		var b Batch
		if json.Unmarshal([]byte(line), &b) != nil {
			b.Sequence = 0
		}
		all = append(all, b.Sequence)
	}
	return all
}

func wantSequences(t *testing.T, path string, want ...int64) {
	t.Helper()
	got := sequences(t, path)
	same := len(got) == len(want)
	for i := range want {
		same = same && got[i] == want[i]
	}
	if !same {
		t.Errorf("batches %v, want %v", got, want)
	}
}

// M5 of facts §13: one line a batch, for its owner to write and its group to read; another
// process begins behind.
func TestFileHasALineABatch(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "usage.jsonl")
	f := openTestFile(t, path)
	writeBatch(t, f, 1)
	writeBatch(t, f, 2)
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	f = openTestFile(t, path)
	writeBatch(t, f, 3)
	wantSequences(t, path, 1, 2, 3)
	if info, err := os.Stat(path); err != nil || info.Mode().Perm()&^0o640 != 0 {
		t.Errorf("%v %v", info.Mode(), err)
	}
}

// A process was killed within a line, and the next one's first stood on it: neither could
// be read. What is no line of ours is left as it is, in a line of its own.
func TestFileIsRepaired(t *testing.T) {
	t.Parallel()
	whole, err := aBatch(1).Line()
	if err != nil {
		t.Fatal(err)
	}
	long := `{"replica":"` + strings.Repeat("x", 200_000)
	for name, tc := range map[string]struct {
		has  string
		want []int64
	}{
		"nothing":                {"", []int64{9}},
		"whole":                  {string(whole), []int64{1, 9}},
		"torn at the first byte": {string(whole) + "{", []int64{1, 9}},
		"torn":                   {string(whole) + `{"replica":"r","seq`, []int64{1, 9}},
		"torn, alone":            {`{"replica":"r","seq`, []int64{9}},
		"torn, long":             {string(whole) + long, []int64{1, 9}},
		"without its end":        {strings.TrimSuffix(string(whole), "\n"), []int64{9}},
		"another program's":      {"hello", []int64{0, 9}},
		"another's JSON":         {`{"a":1}`, []int64{0, 9}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(t.TempDir(), "usage.jsonl")
			if err := os.WriteFile(path, []byte(tc.has), 0o600); err != nil {
				t.Fatal(err)
			}
			writeBatch(t, openTestFile(t, path), 9)
			wantSequences(t, path, tc.want...)
		})
	}
}

// A file that was rotated, by whatever means, has no line more, and none is lost.
func TestFileIsRotated(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "usage.jsonl")
	f := openTestFile(t, path)
	writeBatch(t, f, 1)
	if err := os.Rename(path, path+".1"); err != nil {
		t.Fatal(err)
	}
	writeBatch(t, f, 2)
	wantSequences(t, path, 2)
	if err := errors.Join(os.Rename(path, path+".2"), os.WriteFile(path, nil, 0o600)); err != nil {
		t.Fatal(err) // logrotate's "create"
	}
	writeBatch(t, f, 3)
	wantSequences(t, path, 3)
	if err := os.Truncate(path, 0); err != nil {
		t.Fatal(err) // logrotate's "copytruncate"
	}
	writeBatch(t, f, 4)
	wantSequences(t, path, 4)
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	writeBatch(t, f, 5)
	wantSequences(t, path, 5)
	wantSequences(t, path+".1", 1)
	wantSequences(t, path+".2", 2)
}

// Two replicas of one machine had one file, and took each other's lines for torn ones.
func TestFileIsOfOneProcess(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "usage.jsonl")
	held := openTestFile(t, path)
	if _, err := OpenFile(path); !errors.Is(err, ErrFileHeld) {
		t.Errorf("the second: %v", err)
	}
	// One that takes over waits with what it has to write.
	next, err := TakeOverFile(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = next.Close() })
	if err := next.Write(t.Context(), &Batch{Sequence: 1}); !errors.Is(err, ErrFileHeld) {
		t.Errorf("a batch of the next: %v", err)
	}
	if err := held.Close(); err != nil {
		t.Fatal(err)
	}
	writeBatch(t, next, 1)
	wantSequences(t, path, 1)
	pipe := filepath.Join(t.TempDir(), "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{pipe, "/dev/null"} {
		if _, err := OpenFile(path); !errors.Is(err, ErrNoFile) {
			t.Errorf("%s: %v", path, err)
		}
	}
	if _, err := OpenFile(filepath.Join(t.TempDir(), "none", "usage.jsonl")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a folder that is not there: %v", err)
	}
}
