package main

import (
	"net/http"
	"sync"
	"testing"
)

// A reload that met another was refused, and the other may have read the file
// before its last change: a key that was taken out of it went on. It waits, and
// reads the file anew.
func TestReloadsWaitForOneAnother(t *testing.T) {
	e, path, file := reloadable(t)
	var wait sync.WaitGroup
	for range 8 {
		wait.Go(func() {
			for range 10 {
				if got := e.admin(t, http.MethodPost, "/reload"); got.StatusCode != http.StatusOK {
					t.Errorf("reload: %d %s", got.StatusCode, got.Text)
				}
			}
		})
	}
	wait.Wait()
	e.app.reloading <- struct{}{} // one is under way
	done := make(chan reply, 1)
	go func() { done <- e.admin(t, http.MethodPost, "/reload") }()
	writeFile(t, path, file("log: {level: error}\n"))
	<-e.app.reloading
	want(t, <-done, http.StatusOK)
	if got := e.app.level.Level().String(); got != "error" {
		t.Errorf("the level is %s: the change was not read", got)
	}
}
