package apiclient

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// Headers of the streams protocol.
const (
	hOffset      = "Stream-Offset"
	hNextOffset  = "Stream-Next-Offset"
	hUpToDate    = "Stream-Up-To-Date"
	hClosed      = "Stream-Closed"
	hIncarnation = "Stream-Incarnation"
	hCursor      = "Stream-Cursor"
	hMaxRequest  = "Ursula-Max-Request-Bytes"
	hCluster     = "Ursula-Cluster-Id"
)

// How long something is tried without any progress.
const (
	Patience        = 5 * time.Minute
	ContactPatience = 30 * time.Second // before the gateway has answered at all
)

// Head is what HEAD of a stream says.
type Head struct {
	ContentType string
	Incarnation string
	Next        string // offset of its end
	Closed      bool
	MaxRequest  int64 // bytes of one append
}

// Head asks what there is at a stream's URL. It retries for
// ContactPatience.
func (c *Client) Head(ctx context.Context, stream string) (Head, error) {
	p := c.pace(ContactPatience)
	for {
		h, err := c.head(ctx, stream)
		if err == nil {
			return h, nil
		}
		if err := p.wait(ctx, c.explained(ctx, stream, err)); err != nil {
			return Head{}, err
		}
	}
}

func (c *Client) head(ctx context.Context, stream string) (Head, error) {
	res, err := c.send(ctx, request{method: http.MethodHead, url: stream})
	if err != nil {
		return Head{}, err
	}
	defer res.close()
	h := Head{
		ContentType: res.Header.Get("Content-Type"), Incarnation: res.Header.Get(hIncarnation),
		Next: res.Header.Get(hNextOffset), Closed: flagged(res.Header, hClosed),
	}
	if h.MaxRequest, err = strconv.ParseInt(res.Header.Get(hMaxRequest), 10, 64); err != nil || h.MaxRequest <= 0 || h.Next == "" {
		return Head{}, &StrangeError{hostOf(stream), "its HEAD tells nothing of a stream"}
	}
	return h, nil
}

// explained makes the refusal of a HEAD, which has no body, that of a read, which
// has a code and says what to do. Where the read is not refused, err stays.
func (c *Client) explained(ctx context.Context, stream string, err error) error {
	var e *Error
	if !errors.As(err, &e) || e.Code != "" || Temporary(err) {
		return err
	}
	res, again := c.send(ctx, request{method: http.MethodGet, url: stream + "?offset=-1&max_bytes=1"})
	if again == nil {
		res.close()
		return err
	}
	if errors.As(again, &e) {
		return again
	}
	return err
}

// CloseStream closes a stream; closing a closed one is no error, so that it may be
// repeated. It returns the offset of the end, and retries for Patience.
func (c *Client) CloseStream(ctx context.Context, stream string) (string, error) {
	p := c.pace(Patience)
	for {
		res, err := c.send(ctx, request{method: http.MethodPost, url: stream, header: http.Header{hClosed: {"true"}}})
		if err == nil {
			res.close()
			if !flagged(res.Header, hClosed) {
				return "", &StrangeError{hostOf(stream), "it does not say that the stream is closed"}
			}
			return res.Header.Get(hNextOffset), nil
		}
		if err := p.wait(ctx, err); err != nil {
			return "", err
		}
	}
}

func flagged(h http.Header, name string) bool { return strings.EqualFold(h.Get(name), "true") }

// readURL is a read of a stream from an offset. Offsets are opaque, so they are
// escaped.
func readURL(stream, offset string, more url.Values) string {
	query := "?offset=" + url.QueryEscape(offset)
	if len(more) > 0 {
		query += "&" + more.Encode()
	}
	return stream + query
}

// boundTo makes a request fail where the stream is not the one it was: deleted, and
// made again under its name. An empty incarnation binds to nothing.
func boundTo(incarnation string) http.Header {
	if incarnation == "" {
		return nil
	}
	return http.Header{hIncarnation: {incarnation}}
}
