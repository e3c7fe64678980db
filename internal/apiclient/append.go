package apiclient

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"

	"github.com/zeebo/blake3"
)

// DefaultPiece is how many bytes go into one append: no more than what a gateway
// counts as a large upload, and little to send again after a cut.
const DefaultPiece = 1 << 20

// AppendOptions are what is appended, and how.
type AppendOptions struct {
	Stream string // its URL
	Source io.Reader
	// ProducerID names this append. The same source appended again under the same id
	// and PieceSize, by the same user, is stored once; what is stored already is not
	// sent again. It is 1 to 256 visible ASCII characters.
	ProducerID string
	// PieceSize is the most bytes of one request, where what cannot be divided does not
	// need more; 0 = DefaultPiece, or the stream's limit where that is less.
	PieceSize int64
	// Progress is told after each piece; nil = nobody is.
	Progress func(Appended)
}

// Appended is how far an append is.
type Appended struct {
	Messages  int   // of a JSON stream
	Bytes     int64 // of bodies
	Pieces    int
	Next      string // offset after what is appended; empty where it is not known any more
	PieceSize int64
}

// ErrNothing says that the source was empty.
var ErrNothing = errors.New("there is nothing to append")

// Append appends the source in pieces, each once, whatever happens on the way: a
// piece whose answer is lost is sent again under its producer key (Producer-Id,
// -Epoch, -Seq), by which the stream knows it. It retries each for Patience. With an
// error it returns what is surely stored; Append with the same source, id and piece
// size then goes on from there.
func (c *Client) Append(ctx context.Context, o AppendOptions) (Appended, error) {
	head, err := c.Head(ctx, o.Stream)
	if err != nil {
		return Appended{}, err
	}
	a := appending{c: c, o: o, media: head.ContentType}
	a.done.PieceSize = o.PieceSize
	if a.done.PieceSize == 0 {
		a.done.PieceSize = min(DefaultPiece, head.MaxRequest)
	}
	if a.done.PieceSize > head.MaxRequest {
		return Appended{}, fmt.Errorf("pieces of %d bytes are more than one append may be, %d bytes", a.done.PieceSize, head.MaxRequest)
	}
	pieces := newSplitter(head.ContentType, o.Source, a.done.PieceSize, head.MaxRequest)
	for {
		p, err := pieces.next()
		switch {
		case errors.Is(err, io.EOF) && a.seq == 0:
			return a.done, ErrNothing
		case errors.Is(err, io.EOF):
			return a.done, nil
		case err != nil:
			return a.done, err
		}
		if err := a.add(ctx, p); err != nil {
			return a.done, err
		}
	}
}

// appending is an append under way.
type appending struct {
	c      *Client
	o      AppendOptions
	media  string
	seq    uint64
	stored uint64 // pieces before it are stored already, by an append before this one
	done   Appended
}

// add appends one piece.
func (a *appending) add(ctx context.Context, p piece) error {
	if a.seq >= a.stored {
		if err := a.send(ctx, p); err != nil {
			return err
		}
	} else {
		a.done.Next = ""
	}
	a.seq++
	a.done.Pieces++
	a.done.Messages += p.messages
	a.done.Bytes += int64(len(p.body))
	if a.o.Progress != nil {
		a.o.Progress(a.done)
	}
	return nil
}

func (a *appending) send(ctx context.Context, p piece) error {
	sum := blake3.Sum256(p.body) // by which the stream tells a repetition from another text
	q := request{method: http.MethodPost, url: a.o.Stream, body: p.body, header: http.Header{
		"Content-Type": {a.media}, "Producer-Id": {a.o.ProducerID}, "Producer-Digest": {hex.EncodeToString(sum[:])},
		"Producer-Epoch": {"0"}, "Producer-Seq": {strconv.FormatUint(a.seq, 10)},
	}}
	pace := a.c.pace(Patience)
	for {
		res, err := a.c.send(ctx, q)
		if err == nil {
			res.close()
			return a.receipt(res)
		}
		if err := pace.wait(ctx, err); err != nil {
			return err
		}
	}
}

// receipt reads what proves that a piece is stored. Of a repeated one it also says
// which is the newest that is: those in between need not be sent, and the newest is,
// since the stream holds that one against what it has.
func (a *appending) receipt(res *response) error {
	newest, err := strconv.ParseUint(res.Header.Get("Producer-Seq"), 10, 53)
	if err != nil || newest < a.seq {
		return &StrangeError{hostOf(a.o.Stream), "its answer does not say that the append is stored"}
	}
	a.done.Next = res.Header.Get(hNextOffset)
	a.stored = max(a.stored, newest)
	return nil
}
