package main

import (
	"context"
	"crypto/sha256"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/fsnotify/fsnotify"
	"go.uber.org/zap"

	"sluice/config"
)

const (
	// watchSettle is for how long a changed file has to be the same before it is read:
	// whoever writes it piece by piece is given that time for the next piece.
	watchSettle = 500 * time.Millisecond
	// watchPoll is how often the content is looked at whatever was heard of it: a file
	// system may tell nothing (NFS), or the kernel's limit of watches be reached.
	watchPoll = 15 * time.Second
)

// watch takes the file and those that it refers to up when their content changes. It looks
// at folders, not at files: editors and Kubernetes put another file, or another link, in
// a name's place. What an event says does not matter, only what is in the files then.
type watch struct {
	source       *config.Source
	log          *zap.Logger
	enabled      func() bool
	reload       func(ctx context.Context) error
	settle, poll time.Duration

	notify  *fsnotify.Watcher // nil where there is none
	folders map[string]bool   // that are watched
	told    bool              // that there are none
	seen    *[sha256.Size]byte
}

// run watches until ctx ends.
func (w *watch) run(ctx context.Context) {
	var events <-chan fsnotify.Event
	var faults <-chan error
	notify, err := fsnotify.NewWatcher()
	if err != nil {
		w.deaf(err)
	} else {
		defer func() { _ = notify.Close() }()
		w.notify, events, faults = notify, notify.Events, notify.Errors
	}
	w.folders = make(map[string]bool)
	w.listen()
	poll := time.NewTicker(w.poll)
	defer poll.Stop()
	settled := time.NewTimer(0) // the file may have changed since it was read
	defer settled.Stop()
	waiting := true
	for {
		select {
		case <-ctx.Done():
			return
		case <-events:
			if !waiting {
				waiting = true
				settled.Reset(w.settle)
			}
			continue
		case err := <-faults: // some events are lost; what they were of is in the files
			w.log.Debug("watching the configuration", zap.Error(err))
		case <-poll.C:
		case <-settled.C:
			waiting = false
		}
		if w.look(ctx) && !waiting {
			waiting = true
			settled.Reset(w.settle)
		}
	}
}

// look reads the files, and loads them where they are others than those in force and have
// been the same for a while. It reports whether to look again soon.
func (w *watch) look(ctx context.Context) (again bool) {
	w.listen() // first, so that what changes from here on is heard
	changed, state := w.source.Changed()
	switch {
	case !changed || !w.enabled():
		w.seen = nil
		return false
	case w.seen == nil || *w.seen != state:
		w.seen = &state
		return true
	}
	w.seen = nil
	w.log.Info("the configuration has changed: reloading it")
	var invalid *config.Invalid
	var file *fs.PathError
	if err := w.reload(ctx); err != nil && !errors.As(err, &invalid) && !errors.As(err, &file) {
		w.source.Forget() // it is not at fault itself: at the next poll
	}
	return false
}

// listen watches the folders that the files are found by now, and no others.
func (w *watch) listen() {
	if w.notify == nil {
		return
	}
	now := make(map[string]bool)
	for _, path := range w.source.Files() {
		for _, folder := range foldersOf(path) {
			now[folder] = true
		}
	}
	for folder := range w.folders {
		if !now[folder] {
			_ = w.notify.Remove(folder)
			delete(w.folders, folder)
		}
	}
	// One that was removed and made again is another folder: adding twice does no harm.
	for folder := range now {
		switch err := w.notify.Add(folder); {
		case errors.Is(err, fs.ErrNotExist): // gone since: the link is another one by now
			delete(w.folders, folder)
			continue
		case err != nil:
			w.deaf(err)
			continue
		}
		w.folders[folder] = true
	}
}

// deaf says once that changes are found later.
func (w *watch) deaf(err error) {
	if !w.told {
		w.told = true
		w.log.Warn("changes of the configuration are not told by the system: looking at it from time to time", zap.Duration("seconds", w.poll), zap.Error(err))
	}
}

// maxLinks bounds how many links a path may lead over.
const maxLinks = 40

// foldersOf are the folders whose entries decide what is found at a path: its own, and
// those of all links on the way.
func foldersOf(path string) []string {
	path, err := filepath.Abs(path)
	if err != nil {
		return nil
	}
	var folders []string
	for range maxLinks {
		folder, link, rest := firstLink(path)
		folders = append(folders, folder)
		if link == "" {
			return folders
		}
		if !filepath.IsAbs(link) {
			link = filepath.Join(folder, link)
		}
		path = filepath.Join(link, rest)
	}
	return folders
}

// firstLink is the first link on a path: the folder that it is in, where it leads to, and
// what of the path is behind it. Without one it is the path's own folder.
func firstLink(path string) (folder, link, rest string) {
	parts := strings.Split(strings.TrimPrefix(path, "/"), "/")
	folder = "/"
	for i, part := range parts {
		at := filepath.Join(folder, part)
		if link, err := os.Readlink(at); err == nil {
			return folder, link, filepath.Join(parts[i+1:]...)
		}
		if i < len(parts)-1 {
			folder = at
		}
	}
	return folder, "", ""
}
