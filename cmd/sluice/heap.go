package main

import (
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"sync/atomic"
)

// heapFloor is how large the heap may grow before the collector runs, in bytes.
// The gateway keeps a few megabytes and makes some kilobytes a request: left to
// itself the collector would run dozens of times a second and mark the same
// objects each time, for a few megabytes less. Above the floor Go's own rule
// holds again, a heap of twice what is in use.
const heapFloor = 64 << 20

// holdHeapFloor puts the floor in force until the function it returns is called.
// GOMEMLIMIT goes before it; whoever has set GOGC has decided otherwise.
func holdHeapFloor(lookup func(string) (string, bool)) (release func()) {
	if _, set := lookup("GOGC"); set {
		return func() {}
	}
	var over atomic.Bool
	before := debug.SetGCPercent(percentFor(0))
	afterEachCollection(func() bool {
		if over.Load() {
			return false
		}
		sample := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
		metrics.Read(sample)
		debug.SetGCPercent(percentFor(sample[0].Value.Uint64()))
		return true
	})
	return func() {
		over.Store(true)
		debug.SetGCPercent(before)
	}
}

// percentFor is the GOGC that lets a heap with so many live bytes grow to the
// floor, and never less than Go's own 100.
func percentFor(live uint64) int {
	const own, least = 100, 1 << 20
	if live >= heapFloor/2 {
		return own // a negative percentage would turn the collector off
	}
	return int(heapFloor*100/max(live, least)) - 100 //nolint:gosec // at most 6,300
}

// afterEachCollection calls f after each collection for as long as it says so.
func afterEachCollection(f func() bool) {
	type sentinel struct{ _ [16]byte }
	runtime.SetFinalizer(&sentinel{}, func(*sentinel) {
		if f() {
			afterEachCollection(f)
		}
	})
}
