package telemetry

import (
	"io"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// queueLines and queueBytes bound what waits to be written: some seconds of a
	// busy log, and no more memory than that.
	queueLines = 8192
	queueBytes = 8 << 20
	// batchBytes is about how much is written at once.
	batchBytes = 64 << 10
	// gatherTime is how long a line may wait for others.
	gatherTime = 5 * time.Millisecond
	// flushTime bounds how long Close waits for a reader that has stopped reading.
	flushTime = time.Second
)

// Queue writes log lines from a goroutine of its own, so that whoever reads the
// log cannot hold up the requests that it is about: a reader that stops reading,
// or a full disk, costs lines, which are counted, and nothing else. It is safe
// for concurrent use. Close ends the goroutine.
type Queue struct {
	w       io.Writer
	lines   chan []byte
	waiting atomic.Int64 // bytes
	dropped atomic.Int64
	once    sync.Once
	closing chan struct{}
	done    chan struct{}
}

// NewQueue begins to write to w.
func NewQueue(w io.Writer) *Queue {
	q := &Queue{w: w, lines: make(chan []byte, queueLines), closing: make(chan struct{}), done: make(chan struct{})}
	go q.run()
	return q
}

// Write takes a line, or drops it where too much is waiting. It never blocks and
// never fails.
func (q *Queue) Write(p []byte) (int, error) {
	if q.waiting.Add(int64(len(p))) > queueBytes {
		q.waiting.Add(-int64(len(p)))
		q.dropped.Add(1)
		return len(p), nil
	}
	// The caller uses p again.
	line := append(make([]byte, 0, len(p)), p...)
	select {
	case q.lines <- line:
	default:
		q.waiting.Add(-int64(len(p)))
		q.dropped.Add(1)
	}
	return len(p), nil
}

// Dropped is how many lines were lost: no room, or the writer failed.
func (q *Queue) Dropped() int64 { return q.dropped.Load() }

// Close writes what is waiting, for at most a second, and ends. Lines written
// afterwards are lost.
func (q *Queue) Close() {
	q.once.Do(func() { close(q.closing) })
	timer := time.NewTimer(flushTime)
	defer timer.Stop()
	select {
	case <-q.done:
	case <-timer.C:
	}
}

func (q *Queue) run() {
	defer close(q.done)
	batch := make([]byte, 0, batchBytes)
	for {
		select {
		case line := <-q.lines:
			batch = q.write(batch, line)
			q.rest()
		case <-q.closing:
			for {
				select {
				case line := <-q.lines:
					batch = q.write(batch, line)
				default:
					return
				}
			}
		}
	}
}

// rest lets lines gather, so that not each of them wakes this goroutine.
func (q *Queue) rest() {
	timer := time.NewTimer(gatherTime)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-q.closing:
	}
}

// write writes a line and what else is waiting, as one: under load a call for
// each line is what a log costs most.
func (q *Queue) write(batch, line []byte) []byte {
	batch = append(batch[:0], line...)
	lines := int64(1)
	for more := true; more && len(batch) < batchBytes; {
		select {
		case line := <-q.lines:
			batch = append(batch, line...)
			lines++
		default:
			more = false
		}
	}
	q.waiting.Add(-int64(len(batch)))
	if _, err := q.w.Write(batch); err != nil {
		q.dropped.Add(lines)
	}
	return batch
}
