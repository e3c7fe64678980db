package failover

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"time"
)

// reader reads a stream from its start and catches up again and again. A pass
// ends with an answer that says Stream-Up-To-Date; its book has one entry a pass.
type reader struct {
	path    string
	client  *client
	book    *book
	high    *atomic.Int64 // the highest acknowledged end of the stream
	offset  int64
	content strings.Builder
}

func (r *reader) run(ctx context.Context) {
	defer r.client.close()
	for r.pass(ctx) {
		if !wait(ctx, readEvery) {
			return
		}
	}
}

// pass reads on until the stream's end; false when it ends without.
func (r *reader) pass(ctx context.Context) bool {
	begun := time.Now()
	for {
		must := r.high.Load() // what was acknowledged before a read begins, it must show
		got, err := r.client.call(ctx, http.MethodGet, fmt.Sprintf("%s?offset=%d", r.path, r.offset), "")
		if ctx.Err() != nil {
			return false
		}
		a := none(err)
		if err == nil {
			a = read(got)
		}
		r.book.note(a.odd...)
		switch {
		case a.status == http.StatusOK:
			if !r.take(a, got.body) {
				return false
			}
			upToDate := got.header.Get("Stream-Up-To-Date") == "true"
			switch {
			case upToDate && r.offset < must:
				r.book.note("a read says Stream-Up-To-Date and lacks what had been acknowledged before it began")
			case !upToDate && len(got.body) == 0:
				r.book.note("an empty read does not say Stream-Up-To-Date")
			}
			if upToDate {
				r.book.acked(ack{begun: begun, at: time.Now()})
				return true
			}
			continue
		case a.status/100 == 4 && a.status != http.StatusRequestTimeout:
			r.book.stop("read: " + a.label())
			return false
		}
		r.book.failed(a.label())
		r.client.switchGateway()
		if !wait(ctx, max(a.retryAfter, pause)) {
			return false
		}
	}
}

// take adds an answer's bytes and moves the offset on by as many.
func (r *reader) take(a answer, body []byte) bool {
	if a.to != r.offset+int64(len(body)) {
		r.book.stop(fmt.Sprintf("a read at %d of %d bytes says Stream-Next-Offset %d", r.offset, len(body), a.to))
		return false
	}
	r.content.Write(body)
	r.offset = a.to
	return true
}
