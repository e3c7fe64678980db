package ratelimit

import "time"

// Lease is o with another heartbeat, and another time after which a replica that was
// not heard of is dead.
func (o Options) Lease(beat, dead time.Duration) Options {
	o.beatEvery, o.deadAfter = beat, dead
	return o
}

// Flush returns once Redis has been told of all slots, and of all requests where it
// can be: false after a while.
func (r *Redis) Flush() bool {
	deadline := time.Now().Add(time.Minute)
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for now := range tick.C {
		if !r.holds.busy() && !r.rates.busy() {
			return true
		}
		if now.After(deadline) {
			break
		}
	}
	return false
}

// Told reports whether Redis has been told of all slots.
func (r *Redis) Told() bool { return !r.holds.busy() }

func (h *holds) busy() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, k := range h.byKey {
		if k.queued || k.flying {
			return true
		}
	}
	return false
}

func (r *sharedRates) busy() bool {
	for i := range r.shards {
		sh := &r.shards[i]
		sh.mu.Lock()
		busy := false
		for _, b := range sh.kept.bySubject { // one that is followed has nothing to tell
			busy = busy || b.used != b.told
		}
		sh.mu.Unlock()
		if busy {
			return true
		}
	}
	return false
}

// Holds is the number of subjects that slots are kept of.
func (r *Redis) Holds() int {
	r.holds.mu.Lock()
	defer r.holds.mu.Unlock()
	return len(r.holds.byKey)
}
