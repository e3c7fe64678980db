package main

import (
	"context"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"

	"sluice/config"
	"sluice/internal/syncbuf"
	"sluice/internal/telemetry"
)

// watched is a file that is watched, and what was loaded of it.
type watched struct {
	dir    string
	source *config.Source
	loads  chan load
	log    *syncbuf.Buffer
}

// load is what one reload came to: the regions of the file's text and of its secret.
type load struct {
	region, token string
	err           error
}

// watchedText is a file whose region and secret tell it from others.
func watchedText(region string) string {
	return "origin: https://a.example\nursula: {nodes: [\"http://127.0.0.1:1\"]}\nregion: " + region + "\nadmin: {token: \"file:secrets/token\"}\n"
}

func put(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	writeFile(t, path, text)
}

func must(t *testing.T, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

// watchFile watches dir/conf/sluice.yaml, which lay has put there. change may alter what
// the watch is made of.
func watchFile(t *testing.T, lay func(t *testing.T, dir string), change func(*watch)) *watched {
	t.Helper()
	wd, w := unwatched(t, lay)
	if change != nil {
		change(w)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		w.run(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		<-done
	})
	return wd
}

// unwatched is watchFile with a watch that does not run.
func unwatched(t *testing.T, lay func(t *testing.T, dir string)) (*watched, *watch) {
	t.Helper()
	wd := &watched{dir: filepath.Join(t.TempDir(), "conf"), loads: make(chan load, 100), log: &syncbuf.Buffer{}}
	put(t, filepath.Join(wd.dir, "secrets/token"), "one")
	lay(t, wd.dir)
	wd.source = config.NewSource(filepath.Join(wd.dir, "sluice.yaml"), config.Options{})
	if _, err := wd.source.Load(); err != nil {
		t.Fatal(err)
	}
	w := &watch{
		source: wd.source, log: telemetry.NewLogger(wd.log, zap.NewAtomicLevel()), enabled: func() bool { return true },
		settle: 50 * time.Millisecond, poll: time.Hour,
		reload: func(context.Context) error {
			c, err := wd.source.Load()
			if err != nil {
				wd.loads <- load{err: err}
				return err
			}
			wd.loads <- load{c.Region, c.Admin.Token.Reveal(), nil}
			return nil
		},
	}
	return wd, w
}

// next waits for the next load.
func (wd *watched) next(t *testing.T) load {
	t.Helper()
	select {
	case l := <-wd.loads:
		return l
	case <-time.After(20 * time.Second):
		t.Fatalf("nothing was loaded\n%s", wd.log)
		return load{}
	}
}

// comes waits until that was loaded, and fails where something else was.
func (wd *watched) comes(t *testing.T, region, token string) {
	t.Helper()
	if l := wd.next(t); l.err != nil || l.region != region || l.token != token {
		t.Fatalf("loaded %+v, want %s and %s", l, region, token)
	}
}

func plainFile(t *testing.T, dir string) {
	t.Helper()
	put(t, filepath.Join(dir, "sluice.yaml"), watchedText("r1"))
}

// mounted lays the files as Kubernetes mounts a ConfigMap: the names are links over
// ..data, which is a link itself, to the folder of this version.
func mounted(t *testing.T, dir string) {
	t.Helper()
	must(t, os.RemoveAll(filepath.Join(dir, "secrets")))
	mapVersion(t, dir, "..v1", "r1", "one")
	must(t, os.Symlink("..v1", filepath.Join(dir, "..data")),
		os.Symlink("..data/sluice.yaml", filepath.Join(dir, "sluice.yaml")), os.Symlink("..data/secrets", filepath.Join(dir, "secrets")))
}

func mapVersion(t *testing.T, dir, name, region, token string) {
	t.Helper()
	put(t, filepath.Join(dir, name, "sluice.yaml"), watchedText(region))
	put(t, filepath.Join(dir, name, "secrets/token"), token)
}

// remount puts another version in place of one, as the kubelet does.
func remount(t *testing.T, dir, was, name, region, token string) {
	t.Helper()
	mapVersion(t, dir, name, region, token)
	must(t, os.Symlink(name, filepath.Join(dir, "..data_tmp")), os.Rename(filepath.Join(dir, "..data_tmp"), filepath.Join(dir, "..data")),
		os.RemoveAll(filepath.Join(dir, was)))
}

// A file that was put in place of another, by an editor, by Kubernetes or by a tool, was
// not looked at any more, or from the second time on: what is watched has to be found
// anew after each change.
func TestWatchSeesEveryWayToChangeAFile(t *testing.T) {
	for name, tc := range map[string]struct {
		lay    func(t *testing.T, dir string)
		change func(t *testing.T, dir, was, now string) // from one region to the next
	}{
		"written in place": {plainFile, func(t *testing.T, dir, _, now string) {
			t.Helper()
			put(t, filepath.Join(dir, "sluice.yaml"), watchedText(now))
		}},
		"renamed over": {plainFile, func(t *testing.T, dir, _, now string) {
			t.Helper()
			put(t, filepath.Join(dir, ".sluice.yaml.tmp"), watchedText(now))
			must(t, os.Rename(filepath.Join(dir, ".sluice.yaml.tmp"), filepath.Join(dir, "sluice.yaml")))
		}},
		"an editor's backup": {plainFile, func(t *testing.T, dir, _, now string) {
			t.Helper()
			path := filepath.Join(dir, "sluice.yaml")
			must(t, os.Rename(path, path+"~"))
			put(t, path, watchedText(now))
			must(t, os.Remove(path+"~"))
		}},
		"a link's target replaced": {func(t *testing.T, dir string) {
			t.Helper()
			put(t, filepath.Join(dir, "../elsewhere/a.yaml"), watchedText("r1"))
			must(t, os.Symlink("../elsewhere/a.yaml", filepath.Join(dir, "sluice.yaml")))
		}, func(t *testing.T, dir, _, now string) {
			t.Helper()
			put(t, filepath.Join(dir, "../elsewhere/b.yaml"), watchedText(now))
			must(t, os.Rename(filepath.Join(dir, "../elsewhere/b.yaml"), filepath.Join(dir, "../elsewhere/a.yaml")))
		}},
		"a ConfigMap": {mounted, func(t *testing.T, dir, was, now string) {
			t.Helper()
			remount(t, dir, "..v"+was[1:], "..v"+now[1:], now, "one")
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			wd := watchFile(t, tc.lay, nil)
			for _, step := range [][2]string{{"r1", "r2"}, {"r2", "r3"}, {"r3", "r4"}} {
				tc.change(t, wd.dir, step[0], step[1])
				wd.comes(t, step[1], "one")
			}
		})
	}
}

// The files that secrets refer to are a part of the configuration.
func TestWatchSeesSecrets(t *testing.T) {
	t.Parallel()
	wd := watchFile(t, plainFile, nil)
	put(t, filepath.Join(wd.dir, "secrets/token"), "two")
	wd.comes(t, "r1", "two")
	// One that is not there is refused, and taken when it comes.
	must(t, os.Remove(filepath.Join(wd.dir, "secrets/token")))
	if l := wd.next(t); l.err == nil || !strings.Contains(l.err.Error(), "secrets/token") {
		t.Fatalf("%+v", l)
	}
	put(t, filepath.Join(wd.dir, "secrets/token"), "three")
	wd.comes(t, "r1", "three")

	wd = watchFile(t, mounted, nil)
	remount(t, wd.dir, "..v1", "..v2", "r1", "two")
	wd.comes(t, "r1", "two")
}

// O04: a file that is half written is refused, once, and what it becomes is taken.
func TestWatchRefusesHalfAFile(t *testing.T) {
	t.Parallel()
	wd := watchFile(t, plainFile, nil)
	path := filepath.Join(wd.dir, "sluice.yaml")
	whole := watchedText("r2")
	put(t, path, whole[:len(whole)/2])
	var invalid *config.Invalid
	if l := wd.next(t); !errors.As(l.err, &invalid) {
		t.Fatalf("%+v", l)
	}
	put(t, path, whole)
	wd.comes(t, "r2", "one")
	// Back to what was in force: that is a change too.
	put(t, path, "{")
	if l := wd.next(t); !errors.As(l.err, &invalid) {
		t.Fatalf("%+v", l)
	}
	put(t, path, whole)
	wd.comes(t, "r2", "one")
	if left := len(wd.loads); left != 0 {
		t.Errorf("%d more loads", left)
	}
}

// Only what is in the files counts, once it has been the same for a while: not that they
// were touched, written as they were, or what else is in their folders.
func TestWatchLoadsOnlyWhatHasChanged(t *testing.T) {
	t.Parallel()
	wd, w := unwatched(t, plainFile)
	path := filepath.Join(wd.dir, "sluice.yaml")
	looks := func(again bool, loads int) {
		t.Helper()
		if got := w.look(t.Context()); got != again || len(wd.loads) != loads {
			t.Fatalf("look again %t, %d loads; want %t, %d", got, len(wd.loads), again, loads)
		}
	}
	put(t, path, watchedText("r1"))
	must(t, os.Chtimes(path, time.Now(), time.Now()), os.Chmod(path, 0o400), os.Chmod(path, 0o600))
	put(t, filepath.Join(wd.dir, "other.yaml"), "x")
	looks(false, 0)
	// What somebody else has loaded, as on SIGHUP, is not loaded again.
	put(t, path, watchedText("r2"))
	if _, err := wd.source.Load(); err != nil {
		t.Fatal(err)
	}
	looks(false, 0)
	// One that is still being written is not loaded yet.
	for _, region := range []string{"r3", "r4", "r5"} {
		put(t, path, watchedText(region))
		looks(true, 0)
	}
	looks(false, 1)
	wd.comes(t, "r5", "one")
	looks(false, 0)
	// Nothing is while it is turned off; when it is turned on again, what has changed is.
	on := false
	w.enabled = func() bool { return on }
	put(t, path, watchedText("r6"))
	looks(false, 0)
	looks(false, 0)
	on = true
	looks(true, 0)
	looks(false, 1)
	wd.comes(t, "r6", "one")
}

// Where the system tells nothing, as over NFS, the content is looked at from time to time;
// and a change that could not be put in force for another reason is tried again.
func TestWatchPolls(t *testing.T) {
	t.Parallel()
	fail := make(chan error, 1)
	fail <- errors.New("the store is away")
	wd := watchFile(t, plainFile, func(w *watch) {
		w.settle, w.poll = time.Millisecond, 20*time.Millisecond
		reload := w.reload
		w.reload = func(ctx context.Context) error {
			err := reload(ctx)
			select {
			case err = <-fail:
			default:
			}
			return err
		}
	})
	// Folders that come and go take their watches with them.
	must(t, os.Rename(wd.dir, wd.dir+".old"))
	put(t, filepath.Join(wd.dir, "secrets/token"), "one")
	put(t, filepath.Join(wd.dir, "sluice.yaml"), watchedText("r2"))
	for {
		l := wd.next(t)
		if l.err == nil && l.region == "r2" {
			break
		}
	}
	wd.comes(t, "r2", "one") // again, after the failure
	if left := len(wd.loads); left != 0 {
		t.Errorf("%d more loads", left)
	}
}

// The program itself: a file that changes is in force without a signal, a bad one is
// not, and both are told.
func TestProgramWatchesItsFile(t *testing.T) {
	t.Parallel()
	e := &edge{Account: testAccount(t), Key: newTestKey(t), Reads: newTestKey(t)}
	log, err := os.CreateTemp(t.TempDir(), "log")
	if err != nil {
		t.Fatal(err)
	}
	p, path := runProcess(t, e, strings.Replace(edgeFile(e, []string{standIn(t)}, ""), "watch: false\n", "", 1), log)
	eventually(t, "the process answers", func() bool { return p.reads(t) })
	text, err := os.ReadFile(path)
	must(t, err)
	status := func(key string, want int) {
		t.Helper()
		if got := e.doAs(t, http1(), key, http.MethodGet, e.path("json"), nil).StatusCode; got != want {
			t.Errorf("status %d, want %d", got, want)
		}
	}
	counts := func(sample string) {
		t.Helper()
		eventually(t, sample, func() bool { return strings.Contains(p.admin(t, http.MethodGet, "/metrics").Text, "\n"+sample+"\n") })
	}
	must(t, os.WriteFile(path+".new", []byte(strings.Replace(string(text), "{name: reads,", "{name: reads, expires_at: 2020-01-01T00:00:00Z,", 1)), 0o600), os.Rename(path+".new", path))
	counts(`sluice_config_reloads_total{result="ok"} 1`)
	status(e.Reads, http.StatusUnauthorized)
	writeFile(t, path, "origin: [")
	counts("sluice_config_last_reload_ok 0")
	status(e.Key, http.StatusOK)
	status(e.Reads, http.StatusUnauthorized)
	writeFile(t, path, string(text))
	counts(`sluice_config_reloads_total{result="ok"} 2`)
	counts("sluice_config_last_reload_ok 1")
	status(e.Reads, http.StatusOK)
	said, err := os.ReadFile(log.Name())
	must(t, err)
	for _, line := range []string{"the configuration has changed", "reload refused", "sluice.yaml:1"} {
		if !strings.Contains(string(said), line) {
			t.Errorf("the log lacks %q", line)
		}
	}
}
