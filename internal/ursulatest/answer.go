package ursulatest

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"
)

// Header names of the protocol in Go's canonical form (facts §3).
const (
	hNextOffset   = "Stream-Next-Offset"
	hIncarnation  = "Stream-Incarnation"
	hClosed       = "Stream-Closed"
	hUpToDate     = "Stream-Up-To-Date"
	hOffset       = "Stream-Offset"
	hCursor       = "Stream-Cursor"
	hImmutable    = "Stream-Immutable"
	hSnapOffset   = "Stream-Snapshot-Offset"
	hSnapDigest   = "Stream-Snapshot-Digest"
	hSnapParts    = "Stream-Snapshot-Parts"
	hRetained     = "Stream-Retained-Offset"
	hSeq          = "Stream-Seq"
	hTTL          = "Stream-Ttl"
	hExpiresAt    = "Stream-Expires-At"
	hProdID       = "Producer-Id"
	hProdEpoch    = "Producer-Epoch"
	hProdSeq      = "Producer-Seq"
	hProdDigest   = "Producer-Digest"
	hProdOutcome  = "Producer-Outcome"
	hRetryAfter   = "Retry-After"
	hMaxRequest   = "Ursula-Max-Request-Bytes"
	hRaftGroup    = "X-Ursula-Raft-Group"
	hContentType  = "Content-Type"
	hETag         = "Etag"
	hCacheControl = "Cache-Control"
)

const (
	compressMin     = 256      // facts §1.6: smaller bodies are never compressed
	maxBody         = 32 << 20 // facts §1.6: request body of every route
	maxRead         = 8 << 20  // facts §1.6: one read answer
	protocolLine    = "11"     // facts §0.9
	defaultMedia    = "application/octet-stream"
	ndjson          = "application/x-ndjson"
	noStore         = "no-store"
	statusNoContent = http.StatusNoContent
)

// answer is an answer under construction. send adds what every answer of the
// client port has.
type answer struct {
	status     int
	header     http.Header
	body       []byte
	uncompress bool // never gzipped: errors, snapshots, chunks
	unrendered bool // no handler chose a code: bare on operator paths
}

// newAnswer starts an answer with the headers that all have (facts §3.2).
func newAnswer(status int) *answer {
	h := make(http.Header, 8)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Cross-Origin-Resource-Policy", "cross-origin")
	h.Set(hCacheControl, noStore)
	return &answer{status: status, header: h}
}

// bare is an answer of the router itself, without any header of its own.
func bare(status int) *answer { return &answer{status: status, header: make(http.Header)} }

// refuse is an error answer with its body (facts §5.1).
func refuse(status int, code, message string) *answer {
	a := newAnswer(status)
	a.header.Set(hContentType, "application/json")
	a.body = errorBody(code, message)
	a.uncompress = true
	return a
}

// unrendered is a refusal of the router, which operator paths get without its
// body.
func unrendered(status int, code, message string) *answer {
	a := refuse(status, code, message)
	a.unrendered = true
	return a
}

func errorBody(code, message string) []byte {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	type inner struct {
		Code    string `json:"code"`
		Message string `json:"message"`
	}
	// Encoding two strings cannot fail.
	_ = e.Encode(struct {
		Error inner `json:"error"`
	}{inner{code, message}})
	return bytes.TrimSuffix(b.Bytes(), []byte("\n"))
}

func (a *answer) set(name, value string) *answer {
	a.header.Set(name, value)
	return a
}

func (a *answer) setOffset(name string, v uint64) *answer { return a.set(name, padded(v)) }

func (a *answer) setIncarnation(v uint64) *answer {
	if v == 0 {
		return a
	}
	return a.set(hIncarnation, decimal(v))
}

func (a *answer) flag(name string, on bool) *answer {
	if on {
		a.header.Set(name, "true")
	}
	return a
}

// padded renders an offset in its 20 digits.
func padded(v uint64) string { return fmt.Sprintf("%020d", v) }

// send writes the answer.
func (n *Node) send(w http.ResponseWriter, r *http.Request, a *answer) {
	if a.unrendered && strings.HasPrefix(originForm(r.RequestURI), operatorPrefix) {
		allow, had := a.header["Allow"]
		a = bare(a.status)
		a.unrendered = true
		if had {
			a.header["Allow"] = allow
		}
	}
	h := w.Header()
	for name, values := range a.header {
		h[name] = values
	}
	if r.Method == http.MethodHead {
		n.identify(h)
	}
	body := a.body
	if a.compressible() {
		h.Add("Vary", "accept-encoding")
		if acceptsGzip(r.Header) && r.Method != http.MethodHead {
			h.Set("Content-Encoding", "gzip")
			w.WriteHeader(a.status)
			_ = http.NewResponseController(w).Flush() // chunked, as the node's, also when it is short
			writeGzip(w, body)
			return
		}
	}
	noLength := a.status == statusNoContent || a.status == http.StatusNotModified ||
		(a.unrendered && r.Method == http.MethodHead && len(body) == 0)
	if !noLength {
		h.Set("Content-Length", strconv.Itoa(len(body)))
	}
	w.WriteHeader(a.status)
	if r.Method != http.MethodHead && len(body) > 0 {
		_, _ = w.Write(body) // a client that left is no fault of the node
	}
}

// identify adds what the node sends on HEAD answers only (facts §0.9).
func (n *Node) identify(h http.Header) {
	h.Set("Ursula-Protocol", protocolLine)
	h.Set("Ursula-Cluster-Id", n.cluster.id)
}

func (a *answer) compressible() bool {
	media, _, _ := strings.Cut(a.header.Get(hContentType), ";")
	media = strings.TrimSpace(media)
	return !a.uncompress && len(a.body) >= compressMin && (media == "application/json" || media == ndjson)
}

func acceptsGzip(h http.Header) bool {
	best, identity := 0.0, -1.0
	for _, line := range h.Values("Accept-Encoding") {
		for item := range strings.SplitSeq(line, ",") {
			coding, params, _ := strings.Cut(item, ";")
			q := 1.0
			if name, value, ok := strings.Cut(strings.TrimSpace(params), "="); ok && strings.EqualFold(name, "q") {
				if v, err := strconv.ParseFloat(value, 64); err == nil {
					q = v
				}
			}
			switch strings.ToLower(strings.TrimSpace(coding)) {
			case "gzip", "x-gzip":
				best = max(best, q)
			case "identity":
				identity = max(identity, q)
			default: // another coding, which the node does not speak
			}
		}
	}
	return best > 0 && best >= identity
}

func writeGzip(w http.ResponseWriter, body []byte) {
	// The level is in range, so this cannot fail; a client that left ends the write.
	z, err := gzip.NewWriterLevel(w, gzip.BestSpeed)
	if err != nil {
		return
	}
	_, _ = z.Write(body)
	_ = z.Close()
}
