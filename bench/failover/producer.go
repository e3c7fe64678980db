package failover

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"sync/atomic"
	"time"
)

// ProducerKind says how a producer takes a failure.
type ProducerKind int

// The kinds of producers.
const (
	// Keyed repeats the same write under the same producer key until it is acknowledged.
	Keyed ProducerKind = iota
	// Proving does so too, but sends another payload under the same key as long
	// as every answer proved that nothing applied: a payload that was refused must
	// never be found in the stream.
	Proving
	// Keyless has no producer key and never repeats: it goes on with its next line.
	Keyless
)

// Producer describes one producer of a Load.
type Producer struct {
	ID   string // visible ASCII without spaces, unique in the Load
	Path string // of the stream, whose type is text/plain
	Kind ProducerKind
}

// producer is a running Producer.
type producer struct {
	Producer
	client *client
	every  time.Duration
	book   *book
	high   *atomic.Int64 // the highest acknowledged end of the stream
}

// line is the payload of an append: fixed parts, so that a stream reads as a
// list of who wrote what. version tells payloads of one sequence number apart.
func (p *producer) line(seq, version int) string {
	return fmt.Sprintf("%s %d %d\n", p.ID, seq, version)
}

// run appends at a steady rate until ctx ends, without catching up on what was
// missed; the append under way is brought to its end, as long as hard lives.
func (p *producer) run(ctx, hard context.Context) {
	defer p.client.close()
	tick := time.NewTicker(p.every)
	defer tick.Stop()
	for seq := 0; p.append(hard, seq); seq++ {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// append brings one line in; false ends the producer.
func (p *producer) append(ctx context.Context, seq int) bool {
	begun, version, sure := time.Now(), 0, true
	for {
		line := p.line(seq, version)
		a := p.send(ctx, seq, line)
		p.book.note(a.odd...)
		switch a.outcome {
		case Applied:
			p.book.acked(ack{seq, line, begun, time.Now(), a.from, a.to})
			raise(p.high, a.to)
			return true
		case Wrong:
			p.book.stop(fmt.Sprintf("append %d of %s: %s", seq, p.ID, a.label()))
			return false
		case Unknown:
			sure = false
		case Refused:
			if p.Kind == Proving && sure {
				p.book.gaveUp(line)
				version++
			}
		}
		p.book.failed(a.label())
		p.client.switchGateway()
		if !wait(ctx, max(a.retryAfter, pause)) {
			p.book.stop(fmt.Sprintf("append %d of %s was not acknowledged in time, last %s", seq, p.ID, a.label()))
			return false
		}
		if p.Kind == Keyless {
			if a.outcome == Refused {
				p.book.gaveUp(line)
			}
			return true
		}
	}
}

func (p *producer) send(ctx context.Context, seq int, line string) answer {
	header := []string{"Content-Type", "text/plain"}
	if p.Kind != Keyless {
		header = append(header, "Producer-Id", p.ID, "Producer-Epoch", "0", "Producer-Seq", strconv.Itoa(seq))
	}
	r, err := p.client.call(ctx, http.MethodPost, p.Path, line, header...)
	if err != nil {
		return none(err)
	}
	return judge(r, p.Kind != Keyless)
}

// raise sets v to at least n.
func raise(v *atomic.Int64, n int64) {
	for {
		old := v.Load()
		if n <= old || v.CompareAndSwap(old, n) {
			return
		}
	}
}
