package ursulatest

import (
	"fmt"
	"net/http"
	"time"
)

// Ages at which the node forgets producers.
const (
	producerIdle  = 7 * 24 * time.Hour // forgotten at its own next write
	producerEvict = time.Hour          // may make room for a new one
)

// producer is what a stream remembers of one Producer-Id: its epoch, the claim
// (sequence 0) and the newest write.
type producer struct {
	epoch, seq    uint64
	claimDigest   string
	newestDigest  string
	start, next   uint64 // range of the newest write
	closes        bool   // the newest write closed the stream
	closed        *closedEpoch
	lowOpened     bool // opened at or below the floor of forgotten epochs
	lastSeenMilli int64
}

// closedEpoch is the epoch a claim closed, with its last applied sequence.
type closedEpoch struct{ epoch, seq uint64 }

// verdict is the decision on one keyed write.
type verdict struct {
	refusal *answer   // it must not apply
	repeat  *producer // its key applied before
	evicted bool      // of repeat: its range is no longer known
	claim   bool      // it applies and claims its epoch
	closes  *closedEpoch
	low     bool
}

// judge decides a keyed write before anything applies (facts §3.2, §5.3). Only
// writes that carry Stream-Incarnation (tokened) are bound by the floor.
func (s *stream) judge(key *producerKey, tokened bool, now time.Time) verdict {
	p := s.producers[key.id]
	if p != nil && now.UnixMilli()-p.lastSeenMilli >= producerIdle.Milliseconds() {
		s.forget(key.id)
		p = nil
	}
	if p == nil {
		return s.judgeNew(key, tokened)
	}
	climbs := key.seq == 0 && key.epoch > p.epoch && key.epoch >= s.floor
	switch {
	case tokened && p.lowOpened && s.floor > 0 && !climbs:
		return verdict{refusal: producerExpired(key, s.floor-1)}
	case key.epoch < p.epoch:
		return verdict{refusal: p.older(key)}
	case key.epoch > p.epoch && key.seq != 0:
		return verdict{refusal: refuse(http.StatusBadRequest, "INVALID_PRODUCER",
			fmt.Sprintf("producer '%s' new epoch %d must start at sequence 0", key.id, key.epoch)).
			set("Producer-Expected-Seq", "0")}
	case key.epoch > p.epoch:
		v := verdict{claim: true, low: p.lowOpened && key.epoch < s.floor}
		if !p.lowOpened {
			v.closes = &closedEpoch{p.epoch, p.seq}
		}
		return v
	}
	return p.sameEpoch(key)
}

func (s *stream) judgeNew(key *producerKey, tokened bool) verdict {
	switch {
	case tokened && key.epoch < s.floor:
		return verdict{refusal: producerExpired(key, s.floor-1)}
	case key.seq != 0:
		return verdict{refusal: seqGap(key, 0)}
	case len(s.producers) >= maxProducers:
		return verdict{refusal: refuse(http.StatusTooManyRequests, "PRODUCER_LIMIT",
			"the stream holds as many producers as it may")}
	}
	return verdict{claim: true, low: key.epoch < s.floor}
}

func (p *producer) sameEpoch(key *producerKey) verdict {
	conflict := key.seq == 0 && key.digest != p.claimDigest
	if key.seq != 0 && key.seq == p.seq {
		conflict = key.digest != p.newestDigest
	}
	switch {
	case conflict:
		return verdict{refusal: refuse(http.StatusForbidden, "PRODUCER_KEY_CONFLICT",
			fmt.Sprintf("producer '%s' epoch %d sequence %d holds a write with another identity", key.id, p.epoch, key.seq)).
			set(hProdEpoch, decimal(p.epoch)).set(hProdOutcome, "key-conflict")}
	case key.seq <= p.seq:
		return verdict{repeat: p, evicted: key.seq < p.seq}
	case key.seq != p.seq+1:
		return verdict{refusal: seqGap(key, p.seq+1)}
	}
	return verdict{}
}

func (p *producer) older(key *producerKey) *answer {
	if p.closed != nil && p.closed.epoch == key.epoch {
		a := refuse(http.StatusForbidden, "PRODUCER_EPOCH_CLOSED", "the producer's epoch is closed").
			set(hProdEpoch, decimal(p.epoch)).set(hProdOutcome, "epoch-closed;by=claim")
		return p.closed.render(a)
	}
	return refuse(http.StatusForbidden, "PRODUCER_EPOCH_STALE",
		fmt.Sprintf("producer '%s' epoch %d is stale; current epoch is %d", key.id, key.epoch, p.epoch)).
		set(hProdEpoch, decimal(p.epoch)).set(hProdOutcome, "stale-epoch")
}

func seqGap(key *producerKey, expected uint64) *answer {
	return refuse(http.StatusConflict, "PRODUCER_SEQ_CONFLICT",
		fmt.Sprintf("producer '%s' expected sequence %d, received %d", key.id, expected, key.seq)).
		set("Producer-Expected-Seq", decimal(expected)).set("Producer-Received-Seq", decimal(key.seq))
}

func producerExpired(_ *producerKey, floor uint64) *answer {
	return refuse(http.StatusForbidden, "PRODUCER_EXPIRED", "the producer's epoch is not remembered").
		set(hProdEpoch, decimal(floor)).set(hProdOutcome, "producer-expired")
}

func (c *closedEpoch) render(a *answer) *answer {
	return a.set("Producer-Closed-Epoch", decimal(c.epoch)).set("Producer-Closed-Seq", decimal(c.seq))
}

// forget retires a producer and raises the floor to its epoch.
func (s *stream) forget(id string) {
	s.floor = max(s.floor, s.producers[id].epoch+1)
	delete(s.producers, id)
}

// makeRoom forgets producers idle for an hour when the stream is full.
func (s *stream) makeRoom(now time.Time) {
	if len(s.producers) < maxProducers {
		return
	}
	for id, p := range s.producers {
		if now.UnixMilli()-p.lastSeenMilli >= producerEvict.Milliseconds() {
			s.forget(id)
		}
	}
}

// applied records a keyed write that applied and returns its producer.
func (s *stream) applied(key *producerKey, v verdict, start uint64, closes bool, now time.Time) *producer {
	p := s.producers[key.id]
	if v.claim {
		p = &producer{epoch: key.epoch, claimDigest: key.digest, closed: v.closes, lowOpened: v.low}
		s.producers[key.id] = p
	}
	p.seq, p.newestDigest = key.seq, key.digest
	p.start, p.next, p.closes = start, s.tail(), closes
	p.lastSeenMilli = now.UnixMilli()
	return p
}

// receipt is the answer to a keyed write that applied now or before.
func (p *producer) receipt(status int, key *producerKey, evicted bool, incarnation uint64) *answer {
	a := newAnswer(status).setIncarnation(incarnation).
		set(hProdEpoch, decimal(p.epoch)).set(hProdSeq, decimal(p.seq))
	if key.seq == 0 && p.closed != nil {
		p.closed.render(a)
	}
	if evicted {
		return a.set(hProdOutcome, "receipt-evicted")
	}
	return a.setOffset(hOffset, p.start).setOffset(hNextOffset, p.next).flag(hClosed, p.closes)
}
