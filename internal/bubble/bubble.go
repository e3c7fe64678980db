// Package bubble runs a test on a clock of its own. It owns how testing/synctest is
// used here, and refuses to know what is tested.
package bubble

import (
	"runtime"
	"testing"
	"testing/synctest"
)

// Test is [synctest.Test] on one processor. With more, two goroutines that meet their
// timers at one moment crash Go 1.26's race detector now and then (golang/go#78156):
// they share the bubble's own record of what happened before. In a parallel test it
// panics, since processors are the process's.
func Test(t *testing.T, f func(*testing.T)) {
	t.Helper()
	t.Setenv("SLUICE_BUBBLE", "1") // refused in a parallel test
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	synctest.Test(t, f)
}

// Wait is [synctest.Wait]: it returns when all others in the bubble wait for something.
func Wait() { synctest.Wait() }
