package ratelimit

import (
	"slices"
	"sync"
)

// holdKey is whose slots of which kind: keyTails or keyUploads.
type holdKey struct {
	what    string
	subject Subject
}

// hold is what this replica holds of one subject's slots. slots and bytes are the
// truth; Redis is told of them.
type hold struct {
	key     holdKey
	slots   int
	bytes   int64
	waiting []*claim // in the order they came
	queued  bool     // among those that have to be told
	urgent  bool     // and among those of them that somebody waits for
	flying  bool     // in a call
}

// ask is what a claim wants, and under which limits.
type ask struct {
	slots  int // 1, or 0 for more bytes
	bytes  int64
	limits UploadLimits
}

// claim is one request that waits for a slot, or for more bytes of one it has.
type claim struct {
	ask
	// verdict is sent to once, unless the claim is withdrawn: nil or why not.
	verdict chan error
	state   claimState
}

type claimState int

const (
	claimWaits claimState = iota
	claimGranted
	claimRefused
	claimWithdrawn
)

// holds are all slots that this replica holds, and what has to be said of them.
// A hold is in the map while it holds anything, somebody waits for it, or Redis may
// think that it holds something.
type holds struct {
	mu    sync.Mutex
	byKey map[holdKey]*hold
	// urgent are holds that somebody waits for: they go first, or thousands of tails
	// that end at once would make a quick Redis look slow. One that became urgent while
	// it was in queue stands there too, and is passed over.
	urgent, queue []*hold
	// session is who is being told; nil: nobody, since all will be told at the next
	// one's beginning.
	session *session
	wake    chan struct{} // of capacity 1: there is something to tell
	open    map[string]int
}

func newHolds() *holds {
	return &holds{byKey: make(map[holdKey]*hold), wake: make(chan struct{}, 1), open: make(map[string]int)}
}

// of finds or makes the hold. h.mu is held.
func (h *holds) of(k holdKey) *hold {
	known := h.byKey[k]
	if known == nil {
		k.subject = k.subject.own()
		known = &hold{key: k}
		h.byKey[k] = known
	}
	return known
}

// tell puts the hold into the queue, or drops it where nobody has to be told.
// h.mu is held.
func (h *holds) tell(k *hold) {
	switch {
	case h.session == nil:
		h.drop(k)
	case len(k.waiting) > 0 && !k.urgent:
		k.queued, k.urgent = true, true
		h.urgent = append(h.urgent, k)
		h.awake()
	case !k.queued:
		k.queued = true
		h.queue = append(h.queue, k)
		h.awake()
	}
}

func (h *holds) awake() {
	select {
	case h.wake <- struct{}{}:
	default:
	}
}

// drop forgets a hold that says nothing. h.mu is held.
func (h *holds) drop(k *hold) {
	if k.slots == 0 && k.bytes == 0 && len(k.waiting) == 0 && !k.queued && !k.flying {
		delete(h.byKey, k.key)
	}
}

// add changes what is held. h.mu is held.
func (h *holds) add(k *hold, slots int, bytes int64) {
	k.slots += slots
	k.bytes += bytes
	h.open[k.key.what] += slots
}

// take decides a claim by what this replica holds alone. h.mu is held.
func (h *holds) take(k *hold, c ask) error {
	switch {
	case c.slots > 0 && k.slots+c.slots > c.limits.Uploads:
		h.drop(k)
		return k.key.exhausted()
	case c.bytes > 0 && k.slots+c.slots > 1 && c.bytes > c.limits.Bytes-k.bytes:
		h.drop(k)
		return ErrUploadBytesExhausted
	}
	h.add(k, c.slots, c.bytes)
	h.tell(k)
	return nil
}

// exhausted is the error where slots ran out.
func (k holdKey) exhausted() error {
	if k.what == keyTails {
		return ErrExhausted
	}
	return ErrUploadsExhausted
}

// release gives slots and bytes back.
func (h *holds) release(key holdKey, slots int, bytes int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	k := h.of(key)
	h.add(k, -slots, -bytes)
	h.tell(k)
}

// withdraw takes a claim back. It reports false where the claim had been decided.
func (h *holds) withdraw(key holdKey, c *claim) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if c.state != claimWaits {
		return false
	}
	c.state = claimWithdrawn
	k := h.of(key)
	k.waiting = slices.DeleteFunc(k.waiting, func(o *claim) bool { return o == c })
	h.drop(k)
	return true
}

// begin makes the session the one that is told: of everything that is held, and of
// all that changes from now on. It returns how many holds there are to tell of.
func (h *holds) begin(s *session) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.session = s
	h.tellAll()
	return len(h.urgent) + len(h.queue)
}

// tellAll puts all holds into the queue. h.mu is held.
func (h *holds) tellAll() {
	for _, k := range h.byKey {
		h.tell(k)
	}
}

// refresh tells of everything once more.
func (h *holds) refresh() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.session != nil {
		h.tellAll()
	}
}

// end leaves the session, if it is the one that is told. Who waits is told by the
// session itself.
func (h *holds) end(s *session) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.session != s {
		return
	}
	h.session = nil
	for _, k := range slices.Concat(h.urgent, h.queue) {
		k.queued, k.urgent = false, false
		h.drop(k)
	}
	h.urgent, h.queue = nil, nil
}

// toldHold is what one row of a call says, and asks for.
type toldHold struct {
	hold   *hold
	tag    int
	slots  int
	bytes  int64
	ask    ask
	claims []*claim // all of which want this
}

// next takes the first hold that has to be told of; nil: there is none. h.mu is held.
func (h *holds) next() *hold {
	if len(h.urgent) > 0 {
		k := h.urgent[0]
		h.urgent = h.urgent[1:]
		return k
	}
	h.urgent = nil
	for len(h.queue) > 0 {
		k := h.queue[0]
		h.queue = h.queue[1:]
		if k.queued && !k.urgent {
			return k
		}
	}
	h.queue = nil
	return nil
}

// collect takes up to most holds from the queues.
func (h *holds) collect(names *keys, most int) []toldHold {
	h.mu.Lock()
	defer h.mu.Unlock()
	var rows []toldHold
	for len(rows) < most {
		k := h.next()
		if k == nil {
			break
		}
		k.queued, k.urgent, k.flying = false, false, true
		row := toldHold{hold: k, tag: names.tag(k.key.subject.Account), slots: k.slots, bytes: k.bytes}
		for _, c := range k.waiting {
			// An upload's bytes are for one body; tails are all alike.
			if len(row.claims) > 0 && (c.ask != row.ask || c.bytes > 0) {
				break
			}
			row.ask, row.claims = c.ask, append(row.claims, c)
		}
		rows = append(rows, row)
	}
	if len(h.urgent)+len(h.queue) > 0 {
		h.awake()
	}
	return rows
}

// apply takes the answer to a row: how many of its claims were granted, and what
// ran out.
func (h *holds) apply(row toldHold, granted int, bytesShort bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	k := row.hold
	k.flying = false
	for _, c := range row.claims {
		switch {
		case c.state != claimWaits: // withdrawn: another may have its grant
		case granted > 0:
			granted--
			h.add(k, c.slots, c.bytes)
			c.state = claimGranted
			c.verdict <- nil
		case bytesShort:
			c.state = claimRefused
			c.verdict <- ErrUploadBytesExhausted
		default:
			c.state = claimRefused
			c.verdict <- k.key.exhausted()
		}
	}
	k.waiting = slices.DeleteFunc(k.waiting, func(c *claim) bool { return c.state != claimWaits })
	// Grants that are left over have to be taken back, and who waits still be asked for.
	if granted > 0 || len(k.waiting) > 0 {
		h.tell(k)
	} else {
		h.drop(k)
	}
}

// failed notes that a row's call got no answer.
func (h *holds) failed(row toldHold) {
	h.mu.Lock()
	defer h.mu.Unlock()
	row.hold.flying = false
	h.drop(row.hold)
}

// slotsOf is what this replica holds for the key.
func (h *holds) slotsOf(k holdKey) (slots int, bytes int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if known := h.byKey[k]; known != nil {
		return known.slots, known.bytes
	}
	return 0, 0
}

func (h *holds) openOf(what string) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.open[what]
}
