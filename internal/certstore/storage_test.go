package certstore

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"sluice/internal/bubble"
)

// memory is a store that replicas of a test share.
type memory struct {
	mu     sync.Mutex
	files  map[string][]byte
	leases map[string]lease
	lost   error
}

type lease struct {
	holder string
	until  time.Time
}

func newMemory() *memory { return &memory{files: map[string][]byte{}, leases: map[string]lease{}} }

func (m *memory) Put(_ context.Context, name string, content []byte) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.files[name] = slices.Clone(content)
	return m.lost
}

func (m *memory) Get(_ context.Context, name string) ([]byte, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	content, ok := m.files[name]
	if !ok {
		return nil, fmt.Errorf("%s: %w", name, fs.ErrNotExist)
	}
	return content, m.lost
}

func (m *memory) Delete(ctx context.Context, name string) error {
	files, err := m.List(ctx, name)
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, f := range files {
		delete(m.files, f.Name)
	}
	return err
}

func (m *memory) List(_ context.Context, name string) (files []File, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, n := range slices.Sorted(maps.Keys(m.files)) {
		if n == name || name == "" || strings.HasPrefix(n, name+"/") {
			files = append(files, File{Name: n, Size: int64(len(m.files[n]))})
		}
	}
	return files, m.lost
}

func (m *memory) Hold(_ context.Context, name, holder string, life time.Duration) (bool, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := time.Now()
	if l, ok := m.leases[name]; ok && l.holder != holder && now.Before(l.until) {
		return false, m.lost
	}
	if m.lost == nil {
		m.leases[name] = lease{holder, now.Add(life)}
	}
	return m.lost == nil, m.lost
}

func (m *memory) LetGo(_ context.Context, name, holder string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.leases[name].holder == holder {
		delete(m.leases, name)
	}
	return m.lost
}

func TestStorage(t *testing.T) {
	t.Parallel()
	s, ctx := New(newMemory(), "a"), t.Context()
	for _, key := range []string{"certificates/ca/a.com/a.com.crt", "certificates/ca/a.com/a.com.key", "certificates/ca/b.com/b.com.crt", "acme/users/x.json"} {
		if err := s.Store(ctx, key, []byte(key)); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := s.Load(ctx, "acme/users/x.json"); err != nil || string(got) != "acme/users/x.json" {
		t.Errorf("%q, %v", got, err)
	}
	if _, err := s.Load(ctx, "acme/users"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a folder has content: %v", err)
	}
	for key, want := range map[string]bool{"certificates": true, "certificates/ca/a.com": true, "certificates/ca/a.com/a.com.crt": true, "certificates/ca/a": false, "none": false} {
		if s.Exists(ctx, key) != want {
			t.Errorf("%s exists: want %t", key, want)
		}
		info, err := s.Stat(ctx, key)
		if (err == nil) != want || info.IsTerminal != strings.HasSuffix(key, ".crt") || !want && !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: %+v, %v", key, info, err)
		}
	}
	list := func(path string, recursive bool, want ...string) {
		t.Helper()
		got, err := s.List(ctx, path, recursive)
		if diff := cmp.Diff(want, got); diff != "" || (err == nil) != (want != nil) {
			t.Errorf("%s: %v\n%s", path, err, diff)
		}
	}
	list("certificates/ca", false, "certificates/ca/a.com", "certificates/ca/b.com")
	list("certificates/ca/", true, "certificates/ca/a.com/a.com.crt", "certificates/ca/a.com/a.com.key", "certificates/ca/b.com/b.com.crt")
	list("", false, "acme", "certificates")
	list("none", true)
	if err := errors.Join(s.Delete(ctx, "certificates/ca/a.com"), s.Delete(ctx, "none")); err != nil {
		t.Error(err)
	}
	list("certificates", true, "certificates/ca/b.com/b.com.crt")
}

// wait lets time pass in a bubble.
func wait(t *testing.T, d time.Duration) {
	t.Helper()
	timer := time.NewTimer(d)
	defer timer.Stop()
	<-timer.C
	bubble.Wait()
}

// C01: a lock whose holder was killed was held for ever, or was lost while its holder was
// still at work.
func TestLocks(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		shared := newMemory()
		a, b := New(shared, "a"), New(shared, "b")
		ctx := t.Context()
		if err := a.Lock(ctx, "order"); err != nil {
			t.Fatal(err)
		}
		got := make(chan string, 3)
		for name, s := range map[string]*Storage{"b": b, "a again": a} {
			go func() {
				if err := s.Lock(ctx, "order"); err != nil {
					name += err.Error()
				}
				got <- name
			}()
		}
		wait(t, 10*lockLife)
		if len(got) != 0 {
			t.Fatalf("%s has it as well", <-got)
		}
		if err := a.Unlock(ctx, "order"); err != nil {
			t.Fatal(err)
		}
		first := <-got
		wait(t, 10*lockLife)
		if len(got) != 0 {
			t.Fatalf("%s and %s have it", first, <-got)
		}
		holder, other := a, b
		if first == "b" {
			holder, other = b, a
		}
		if err := holder.Unlock(ctx, "order"); err != nil {
			t.Fatal(err)
		}
		<-got
		if err := other.Unlock(ctx, "order"); err != nil {
			t.Fatal(err)
		}
		if err := other.Unlock(ctx, "order"); !errors.Is(err, errNotHeld) {
			t.Errorf("unlocked twice: %v", err)
		}
		if len(shared.leases) != 0 || len(a.locks.held) != 0 || len(b.locks.held) != 0 {
			t.Error("something is left over")
		}
	})
}

func TestLockOfAKilledReplica(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		shared := newMemory()
		shared.leases["tls/order"] = lease{"killed", time.Now().Add(lockLife)}
		began := time.Now()
		s := New(shared, "b")
		if err := s.Lock(t.Context(), "order"); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(began); took < lockLife || took > lockLife+lockPoll {
			t.Errorf("taken after %v", took)
		}
		if err := s.Unlock(t.Context(), "order"); err != nil {
			t.Error(err)
		}
	})
}

// Whoever waits may give up, and a store that is lost is not waited for.
func TestLockGivesUp(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		shared := newMemory()
		a, b := New(shared, "a"), New(shared, "b")
		if err := a.Lock(t.Context(), "order"); err != nil {
			t.Fatal(err)
		}
		for _, s := range []*Storage{a, b} {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			if err := s.Lock(ctx, "order"); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("waited: %v", err)
			}
			cancel()
		}
		shared.mu.Lock()
		shared.lost = errors.New("lost")
		shared.mu.Unlock()
		if err := b.Lock(t.Context(), "order"); !errors.Is(err, shared.lost) {
			t.Errorf("a lost store: %v", err)
		}
		if err := a.Unlock(t.Context(), "order"); !errors.Is(err, shared.lost) {
			t.Errorf("a lost store: %v", err)
		}
		shared.mu.Lock()
		shared.lost = nil
		shared.mu.Unlock()
		wait(t, lockLife)
		if err := b.Lock(t.Context(), "order"); err != nil {
			t.Error(err)
		}
		if err := b.Unlock(t.Context(), "order"); err != nil {
			t.Error(err)
		}
	})
}
