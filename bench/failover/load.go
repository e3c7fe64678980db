package failover

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// finishWithin is the default of Options.Finish.
const finishWithin = 30 * time.Second

// readEvery is the time between two passes of a catch-up reader.
const readEvery = 50 * time.Millisecond

// ErrUnsettled says that a client had no success in the time that it had.
var ErrUnsettled = errors.New("not settled in time")

// Options describe a Load.
type Options struct {
	Gateways  []string      // origins of equal gateways; clients begin on different ones
	Key       string        // API key; "" = none is sent
	Producers []Producer    // each appends once in Every
	Every     time.Duration // more than 0
	Readers   []string      // paths of streams, each read by one catch-up reader
	Tails     []string      // paths of streams, each tailed over HTTP/1.1 and HTTP/2
	Finish    time.Duration // in which Stop must have brought in what is under way; 0 = 30 s
}

// Load is a running load. Stop ends it. Its methods are for one goroutine.
type Load struct {
	options   Options
	producers []*producer
	readers   []*reader
	tails     []*tail
	high      map[string]*atomic.Int64 // by path: the highest acknowledged end

	stopWriting, stopReading, giveUp context.CancelFunc
	writing, reading                 sync.WaitGroup
}

// Start begins a load. Everything it does ends with ctx, or with Stop.
func Start(ctx context.Context, o Options) *Load {
	if o.Finish == 0 {
		o.Finish = finishWithin
	}
	l := &Load{options: o, high: map[string]*atomic.Int64{}}
	hard, giveUp := context.WithCancel(ctx)
	reads, stopReading := context.WithCancel(hard)
	writes, stopWriting := context.WithCancel(hard)
	l.giveUp, l.stopReading, l.stopWriting = giveUp, stopReading, stopWriting
	for i, p := range o.Producers {
		w := &producer{
			Producer: p, client: newClient(o.Gateways, o.Key, false, i), every: o.Every,
			book: newBook(), high: l.highOf(p.Path),
		}
		l.producers = append(l.producers, w)
		l.writing.Go(func() { w.run(writes, hard) })
	}
	for i, path := range o.Readers {
		r := &reader{path: path, client: newClient(o.Gateways, o.Key, false, i), book: newBook(), high: l.highOf(path)}
		l.readers = append(l.readers, r)
		l.reading.Go(func() { r.run(reads) })
	}
	for i, path := range o.Tails {
		for _, http2 := range []bool{false, true} {
			t := &tail{path: path, client: newClient(o.Gateways, o.Key, http2, i), http2: http2, book: newBook(), high: l.highOf(path)}
			l.tails = append(l.tails, t)
			l.reading.Go(func() { t.run(reads) })
		}
	}
	return l
}

func (l *Load) highOf(path string) *atomic.Int64 {
	if l.high[path] == nil {
		l.high[path] = new(atomic.Int64)
	}
	return l.high[path]
}

// Settle waits until every producer has an acknowledgement for an append, and
// every reader the end of a pass, that it began after the call. It returns how
// long the last one took; the error wraps ErrUnsettled and names who had none.
func (l *Load) Settle(ctx context.Context, within time.Duration) (time.Duration, error) {
	begun := time.Now()
	late := func() []string {
		var who []string
		for _, c := range l.clients() {
			if !c.book.begunSince(begun) {
				who = append(who, c.name)
			}
		}
		return who
	}
	for {
		who := late()
		took := time.Since(begun)
		if len(who) == 0 {
			return took, nil
		}
		if took > within || !wait(ctx, 5*time.Millisecond) {
			return took, fmt.Errorf("%w: after %v without success since: %s", ErrUnsettled, took.Round(time.Millisecond), strings.Join(who, ", "))
		}
	}
}

// named is a client of a load that settles.
type named struct {
	name string
	book *book
}

func (l *Load) clients() []named {
	list := make([]named, 0, len(l.producers)+len(l.readers))
	for _, p := range l.producers {
		list = append(list, named{"producer " + p.ID, p.book})
	}
	for i, r := range l.readers {
		list = append(list, named{fmt.Sprintf("reader %d", i), r.book})
	}
	return list
}

// Stop ends the load: no further append begins, the ones under way are brought
// in, readers and tails get what is left. It returns when all clients ended.
func (l *Load) Stop(ctx context.Context) {
	defer l.giveUp()
	l.stopWriting()
	written := make(chan struct{})
	go func() {
		defer close(written)
		l.writing.Wait()
	}()
	finish, cancel := context.WithTimeout(ctx, l.options.Finish)
	defer cancel()
	select {
	case <-written:
	case <-finish.Done():
		l.giveUp()
		<-written
	}
	begun := time.Now()
	for wait(finish, 5*time.Millisecond) {
		behind := slices.ContainsFunc(l.readers, func(r *reader) bool { return !r.book.begunSince(begun) }) ||
			slices.ContainsFunc(l.tails, func(t *tail) bool { return t.behind() })
		if !behind {
			break
		}
	}
	l.stopReading()
	l.reading.Wait()
}

// Verify reads every stream whole, through each gateway in turn, and holds it
// against what was answered and what readers and tails saw. To be called after
// Stop.
func (l *Load) Verify(ctx context.Context) (Verdict, error) {
	var all Verdict
	writers := map[string]map[string]*book{}
	for _, p := range l.producers {
		if writers[p.Path] == nil {
			writers[p.Path] = map[string]*book{}
		}
		writers[p.Path][p.ID] = p.book
	}
	for path := range l.high {
		var first string
		for i := range l.options.Gateways {
			c := newClient(l.options.Gateways[i:i+1], l.options.Key, false, 0)
			content, err := whole(ctx, c, path)
			c.close()
			if err != nil {
				return all, fmt.Errorf("%s through gateway %d: %w", path, i+1, err)
			}
			if i == 0 {
				first = content
			} else if content != first {
				return all, fmt.Errorf("%s is not the same through gateway %d: %d bytes, not %d", path, i+1, len(content), len(first))
			}
		}
		all.add(verify(first, writers[path]))
		for _, r := range l.readers {
			if r.path == path && r.content.String() != first {
				r.book.note(fmt.Sprintf("saw %d bytes that are not the stream's %d", r.content.Len(), len(first)))
			}
		}
		for _, t := range l.tails {
			if t.path == path && t.content.String() != first {
				t.book.note(fmt.Sprintf("saw %d bytes that are not the stream's %d", t.content.Len(), len(first)))
			}
		}
	}
	return all, nil
}

// whole reads a stream from its start to its end. The reads are repeated as
// long as the client's timeout allows.
func whole(ctx context.Context, c *client, path string) (string, error) {
	r := &reader{path: path, client: c, book: newBook(), high: new(atomic.Int64)}
	ctx, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()
	if !r.pass(ctx) {
		return "", fmt.Errorf("%w: %s", ErrUnsettled, strings.Join(r.book.oddities("the reader"), "; "))
	}
	return r.content.String(), nil
}

// Oddities lists what the contract forbids and was seen: codes that it does not
// have, headers that must not be there or must, an empty read that does not say
// it is up to date, a tail that ended cleanly or has a gap, a client that had to
// give up. Empty = nothing.
func (l *Load) Oddities() []string {
	list := make([]string, 0, len(l.tails))
	for _, c := range l.clients() {
		list = append(list, c.book.oddities(c.name)...)
	}
	for _, t := range l.tails {
		list = append(list, t.book.oddities(t.name())...)
	}
	return list
}
