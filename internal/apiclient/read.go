package apiclient

import (
	"context"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"
)

// Bounds of a read.
const (
	readPiece = 1 << 20 // bytes that are asked for at once
	// maxRead is the most that an answer may have, and the most memory that a read
	// takes: 8 MiB is a node's limit (protocol 11), base64 and an event's lines around
	// it come on top.
	maxRead = 16 << 20
)

// ReadOptions are what is read.
type ReadOptions struct {
	Stream string // its URL
	Offset string // "-1" is the start
	// Progress is told after each piece that was written; nil = nobody is.
	Progress func(ReadSoFar)
}

// ReadSoFar is how far a read is.
type ReadSoFar struct {
	Bytes       int64
	Next        string // the offset to go on from
	ContentType string
	Closed      bool // that was the stream's end, for good
}

// Read writes what the stream has from an offset on, until it is up to date. An
// answer is taken in whole before any of it is written, so a cut costs nothing and
// repeats nothing: w gets each byte once, and always up to ReadSoFar.Next, also
// where there is an error. It retries for Patience. A stream that was deleted and
// made again in the meantime is an error.
func (c *Client) Read(ctx context.Context, o ReadOptions, w io.Writer) (ReadSoFar, error) {
	so := ReadSoFar{Next: o.Offset}
	incarnation := ""
	pace := c.pace(ContactPatience)
	for {
		got, err := c.readOnce(ctx, readURL(o.Stream, so.Next, url.Values{"max_bytes": {strconv.Itoa(readPiece)}}), boundTo(incarnation), quietTime)
		if err != nil {
			if err := pace.wait(ctx, err); err != nil {
				return so, err
			}
			continue
		}
		pace.patience = Patience
		if _, err := w.Write(got.body); err != nil {
			return so, err
		}
		moved := got.next != so.Next
		incarnation = got.incarnation
		so = ReadSoFar{so.Bytes + int64(len(got.body)), got.next, got.media, got.closed}
		if o.Progress != nil {
			o.Progress(so)
		}
		if got.upToDate || got.closed {
			return so, nil
		}
		if moved {
			pace.progress()
		} else if err := pace.wait(ctx, &Error{Status: http.StatusServiceUnavailable, Message: "the stream's end cannot be told now"}); err != nil {
			return so, err
		}
	}
}

// portion is the answer to one read.
type portion struct {
	body                             []byte
	next, media, incarnation, cursor string
	upToDate, closed                 bool
}

// readOnce reads once, whole; an answer that is cut short is a *UnansweredError.
func (c *Client) readOnce(ctx context.Context, address string, header http.Header, quiet time.Duration) (portion, error) {
	q := request{method: http.MethodGet, url: address, header: header, quiet: quiet}
	res, err := c.send(ctx, q)
	if err != nil {
		return portion{}, err
	}
	defer res.close()
	body, err := io.ReadAll(io.LimitReader(res, maxRead+1))
	switch {
	case err != nil:
		return portion{}, c.unanswered(ctx, res.Request.Context(), q, true, err)
	case len(body) > maxRead:
		return portion{}, &StrangeError{hostOf(address), "its answer is too large"}
	case res.Header.Get(hNextOffset) == "":
		return portion{}, &StrangeError{hostOf(address), "its read tells no offset"}
	}
	return portion{
		body: body, next: res.Header.Get(hNextOffset), media: res.Header.Get("Content-Type"),
		incarnation: res.Header.Get(hIncarnation), cursor: res.Header.Get(hCursor),
		upToDate: flagged(res.Header, hUpToDate), closed: flagged(res.Header, hClosed),
	}, nil
}
