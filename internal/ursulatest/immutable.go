package ursulatest

import (
	"net/http"
	"strings"
)

// chunkGrid is the grid of immutable chunks (facts §1.6).
const chunkGrid = 4 << 20

// immutablePath reads token and offset of an immutable path (facts §8).
func immutablePath(r *request, offsetName string) (token, offset uint64, a *answer) {
	if r.hasQuery {
		return 0, 0, refuse(http.StatusBadRequest, "QUERY_NOT_ACCEPTED", "immutable resources take no query")
	}
	malformed := func(message string) *answer {
		return refuse(http.StatusBadRequest, "INVALID_RESOURCE", "malformed immutable resource: "+message)
	}
	token, err := parseIncarnation(r.token)
	if err != nil {
		return 0, 0, malformed(err.Error())
	}
	if len(r.offset) != 20 || strings.Trim(r.offset, "0123456789") != "" {
		return 0, 0, malformed(offsetName + " must be an offset of 20 decimal digits")
	}
	offset, err = digits(offsetName, r.offset)
	if err != nil {
		return 0, 0, malformed(err.Error())
	}
	return token, offset, nil
}

// readChunk answers an immutable chunk: the bytes to the next multiple of the
// grid, or to the tail. It is marked when it ends on the grid strictly below the
// tail, or at the tail of a closed stream.
func (n *Node) readChunk(r *request) *answer {
	token, offset, a := immutablePath(r, "stream-offset")
	if a != nil {
		return a
	}
	size := chunkGrid - offset%chunkGrid
	piece, a := n.cut(r.target, &readParams{offset: offset, limit: size})
	if a != nil {
		return n.confirmed(a)
	}
	marked := piece.end() == endClosed || (uint64(len(piece.data)) == size && piece.end() == endBelow)
	if (!marked || piece.incarnation != token) && !n.leads() {
		if a := n.askLeader(); a != nil {
			return a
		}
	}
	if a := mismatch(token, piece.incarnation); a != nil {
		return a
	}
	a = newAnswer(http.StatusOK).set(hContentType, readMedia(piece.media)).
		setIncarnation(piece.incarnation).setOffset(hOffset, piece.offset).setOffset(hNextOffset, piece.next).
		flag(hImmutable, marked).flag(hClosed, piece.end() == endClosed).set(hETag, piece.etag())
	a.body, a.uncompress = piece.data, true
	return notModified(r, a, piece.etag())
}

func (n *Node) readImmutableSnapshot(r *request) *answer {
	token, offset, a := immutablePath(r, "stream-snapshot-offset")
	if a != nil {
		return a
	}
	if a := n.routeAway(r); a != nil {
		return a
	}
	return n.snapshotAnswer(r, offset, token, true)
}
