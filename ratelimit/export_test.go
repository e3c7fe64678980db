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
	for time.Now().Before(deadline) {
		if !r.holds.busy() && !r.rates.busy() {
			return true
		}
		time.Sleep(time.Millisecond)
	}
	return false
}

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
		busy := len(sh.queue) > 0
		for _, b := range sh.kept.bySubject {
			busy = busy || b.flying
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
