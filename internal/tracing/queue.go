package tracing

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
)

const (
	// queueSpans bounds the spans that wait, about 2 KiB each.
	queueSpans = 2048
	// batchSpans is how many are sent at once at the most, and batchTime how long the
	// first of them waits for more. Both are the values of OpenTelemetry's own.
	batchSpans = 512
	batchTime  = 5 * time.Second
	// sendTime bounds all tries to send one batch.
	sendTime = 30 * time.Second
	// closeTime bounds what a stop does for the spans that wait.
	closeTime = 2 * time.Second
)

type counts struct {
	sent, dropped atomic.Int64
	failing       atomic.Bool
}

// queue takes spans that have ended to an exporter. It is OpenTelemetry's batch
// processor but for what that one has not: it counts what it drops, and reports to
// whom it is told to and not to a global.
type queue struct {
	exporter sdktrace.SpanExporter
	counts   *counts
	changed  func(error)

	spans   chan sdktrace.ReadOnlySpan
	ctx     context.Context // of the sending
	stop    context.CancelFunc
	once    sync.Once
	closing chan struct{}
	done    chan struct{}
}

var _ sdktrace.SpanProcessor = (*queue)(nil)

func newQueue(e sdktrace.SpanExporter, c *counts, changed func(error)) *queue {
	q := &queue{
		exporter: e, counts: c, changed: changed,
		spans: make(chan sdktrace.ReadOnlySpan, queueSpans), closing: make(chan struct{}), done: make(chan struct{}),
	}
	q.ctx, q.stop = context.WithCancel(context.Background())
	go q.run()
	return q
}

// OnStart implements sdktrace.SpanProcessor.
func (q *queue) OnStart(context.Context, sdktrace.ReadWriteSpan) {}

// OnEnd implements sdktrace.SpanProcessor. It never waits.
func (q *queue) OnEnd(s sdktrace.ReadOnlySpan) {
	select {
	case <-q.closing:
		q.counts.dropped.Add(1)
		return
	default:
	}
	select {
	case q.spans <- s:
	default:
		q.counts.dropped.Add(1)
	}
}

// ForceFlush implements sdktrace.SpanProcessor; nobody calls it.
func (q *queue) ForceFlush(context.Context) error { return nil }

// Shutdown implements sdktrace.SpanProcessor; nobody calls it, since Tracer closes.
func (q *queue) Shutdown(context.Context) error { return nil }

// close sends what waits, for closeTime at the most.
func (q *queue) close() {
	q.once.Do(func() { close(q.closing) })
	timer := time.AfterFunc(closeTime, q.stop)
	defer timer.Stop()
	<-q.done
	q.stop()
	_ = q.exporter.Shutdown(context.WithoutCancel(q.ctx)) // closes connections; waits for nothing
}

func (q *queue) run() {
	defer close(q.done)
	batch := make([]sdktrace.ReadOnlySpan, 0, batchSpans)
	for open := true; open; {
		batch, open = q.gather(batch[:0])
		q.send(batch)
	}
	for {
		batch = q.rest(batch[:0])
		if len(batch) == 0 {
			return
		}
		q.send(batch)
	}
}

// gather waits for a batch; false: there is no other one.
func (q *queue) gather(batch []sdktrace.ReadOnlySpan) ([]sdktrace.ReadOnlySpan, bool) {
	select {
	case s := <-q.spans:
		batch = append(batch, s)
	case <-q.closing:
		return batch, false
	}
	timer := time.NewTimer(batchTime)
	defer timer.Stop()
	for len(batch) < batchSpans {
		select {
		case s := <-q.spans:
			batch = append(batch, s)
		case <-timer.C:
			return batch, true
		case <-q.closing:
			return batch, false
		}
	}
	return batch, true
}

// rest takes what waits at this moment.
func (q *queue) rest(batch []sdktrace.ReadOnlySpan) []sdktrace.ReadOnlySpan {
	for len(batch) < batchSpans {
		select {
		case s := <-q.spans:
			batch = append(batch, s)
		default:
			return batch
		}
	}
	return batch
}

// send has the exporter send a batch. A stop cuts it short.
func (q *queue) send(batch []sdktrace.ReadOnlySpan) {
	if len(batch) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(q.ctx, sendTime)
	defer cancel()
	// The stop bounds what is being tried too, and lets nothing be tried again.
	err := q.exporter.ExportSpans(context.WithValue(ctx, closingKey{}, (<-chan struct{})(q.closing)), batch)
	if err != nil {
		q.counts.dropped.Add(int64(len(batch)))
	} else {
		q.counts.sent.Add(int64(len(batch)))
	}
	if was := q.counts.failing.Swap(err != nil); was != (err != nil) {
		q.changed(err)
	}
}

// closingKey is under what the uploader finds the channel that closes at a stop: the
// exporter between the two hands nothing else on.
type closingKey struct{}
