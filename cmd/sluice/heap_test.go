package main

import "testing"

// A live heap beyond the floor made the percentage negative, which turned the
// collector off for good: a client that sent large bodies could fill the memory.
// Below the floor the heap may grow to it, above Go's own rule holds.
func TestHeapFloor(t *testing.T) {
	const mebibyte = 1 << 20
	for _, live := range []uint64{0, 1, mebibyte, 4 * mebibyte, 31 * mebibyte, 32*mebibyte - 1, 32 * mebibyte, 63 * mebibyte, 64 * mebibyte, 65 * mebibyte, 1 << 40, 1<<63 - 1, 1<<64 - 1} {
		got := percentFor(live)
		switch {
		case got < 100 || got > 6300:
			t.Errorf("%d bytes live: %d %%", live, got)
		case live >= heapFloor/2 && got != 100:
			t.Errorf("%d bytes live: %d %%, want Go's own 100", live, got)
		case live >= mebibyte && live < heapFloor/2 && live+live*uint64(got)/100 > heapFloor:
			t.Errorf("%d bytes live: %d %% goes beyond the floor", live, got)
		}
	}
}
