package ursulatest

import (
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// maxInteger is the largest incarnation, producer epoch and sequence, 2^53-1.
const maxInteger = 1<<53 - 1

// bucketProblem says why an id is no bucket id, "" when it is one (facts §1.1).
func bucketProblem(id string) string {
	if len(id) < 4 || len(id) > 64 {
		return fmt.Sprintf("bucket_id must be 4 to 64 bytes, got %d bytes", len(id))
	}
	for _, c := range []byte(id) {
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '_' && c != '-' {
			return "bucket_id must match ^[a-z0-9_-]{4,64}$"
		}
	}
	if id == "snapshots" {
		return "bucket_id 'snapshots' is reserved"
	}
	if strings.HasPrefix(id, "__") {
		return "bucket_id must not start with '__'"
	}
	return ""
}

// streamProblem is bucketProblem for the stream id (facts §1.1).
func streamProblem(bucket, stream string) string {
	switch {
	case stream == "":
		return "stream_id must not be empty"
	case len(stream) > 122:
		return fmt.Sprintf("stream_id must not exceed 122 bytes, got %d bytes", len(stream))
	case strings.ContainsAny(stream, "/\x00") || strings.Contains(stream, ".."):
		return "stream_id must not contain '/', NUL, or '..'"
	case stream == ".":
		return "stream_id must not be '.'"
	case stream == "streams":
		return "stream_id 'streams' is reserved"
	case strings.HasPrefix(stream, "$"):
		return "stream_id must not start with '$'"
	case len(bucket)+1+len(stream) > 122:
		return fmt.Sprintf("bucket/stream identity must not exceed 122 bytes, got %d bytes", len(bucket)+1+len(stream))
	}
	return ""
}

// parseU64 reads a decimal as the node does: an optional plus, then digits.
func parseU64(s string) (uint64, bool) {
	v, err := strconv.ParseUint(strings.TrimPrefix(s, "+"), 10, 64)
	return v, err == nil
}

// digits reads digits only.
func digits(name, s string) (uint64, error) {
	if s == "" || strings.Trim(s, "0123456789") != "" {
		return 0, fmt.Errorf("%s must be a non-negative integer", name)
	}
	v, err := strconv.ParseUint(s, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("%s does not fit in 64 bits", name)
	}
	return v, nil
}

// canonical reads digits without a leading zero.
func canonical(name, s string) (uint64, error) {
	v, err := digits(name, s)
	if err == nil && len(s) > 1 && s[0] == '0' {
		err = fmt.Errorf("%s must not have a leading zero", name)
	}
	return v, err
}

func parseIncarnation(s string) (uint64, error) {
	const name = "stream-incarnation"
	v, err := canonical(name, s)
	if err == nil && (v == 0 || v > maxInteger) {
		err = fmt.Errorf("%s is out of range: %d", name, v)
	}
	return v, err
}

// single returns the one value of a header that may come once (facts §3.1).
func single(h http.Header, name string) (value string, ok bool, err error) {
	values := h.Values(name)
	lower := strings.ToLower(name)
	switch {
	case len(values) == 0:
		return "", false, nil
	case len(values) > 1:
		return "", false, fmt.Errorf("%s must appear at most once", lower)
	case !visible(values[0]):
		return "", false, fmt.Errorf("%s must be visible ASCII", lower)
	}
	return strings.Trim(values[0], " \t"), true, nil
}

func visible(s string) bool {
	for _, c := range []byte(s) {
		if c != '\t' && (c < 0x20 || c > 0x7e) {
			return false
		}
	}
	return true
}

func invalidHeader(message string) *answer {
	return refuse(http.StatusBadRequest, "INVALID_HEADER", message)
}

// precondition reads the Stream-Incarnation of a request; 0 means none.
func precondition(h http.Header) (uint64, *answer) {
	value, ok, err := single(h, hIncarnation)
	if err == nil && !ok {
		return 0, nil
	}
	var v uint64
	if err == nil {
		v, err = parseIncarnation(value)
	}
	if err != nil {
		return 0, invalidHeader("malformed Stream-Incarnation: " + err.Error())
	}
	return v, nil
}

// mismatch is the 412 of a read whose token is not the stream's (facts §0.15).
func mismatch(want, have uint64) *answer {
	if want == 0 || want == have {
		return nil
	}
	return refuse(http.StatusPreconditionFailed, "INCARNATION_MISMATCH",
		fmt.Sprintf("Stream-Incarnation %d does not match the stream", want)).setIncarnation(have)
}

// producerKey is the idempotency key of a write (facts §3.1).
type producerKey struct {
	id         string
	epoch, seq uint64
	digest     string // lower-case hex; "" when none was sent
}

var (
	errPartialProducer = errors.New("producer-id, producer-epoch and producer-seq must be provided together")
	errDigestAlone     = errors.New("producer-digest requires the producer headers")
)

// parseProducer reads the producer headers; nil without them.
func parseProducer(h http.Header) (*producerKey, error) {
	var values [4]string
	var present [4]bool
	for i, name := range []string{hProdID, hProdEpoch, hProdSeq, hProdDigest} {
		v, ok, err := single(h, name)
		if err != nil {
			return nil, err
		}
		values[i], present[i] = v, ok
	}
	if present[3] {
		if raw, err := hex.DecodeString(values[3]); err != nil || len(raw) != 32 || strings.ToLower(values[3]) != values[3] {
			return nil, errors.New("producer-digest must be 64 lowercase hex digits")
		}
	}
	if !present[0] && !present[1] && !present[2] {
		if present[3] {
			return nil, errDigestAlone
		}
		return nil, nil
	}
	if !present[0] || !present[1] || !present[2] {
		return nil, errPartialProducer
	}
	key := &producerKey{id: values[0], digest: values[3]}
	switch {
	case key.id == "":
		return nil, errors.New("producer-id must not be empty")
	case len(key.id) > 256:
		return nil, fmt.Errorf("producer-id must be at most 256 bytes, got %d", len(key.id))
	}
	for i, p := range []*uint64{&key.epoch, &key.seq} {
		name := strings.ToLower([]string{hProdEpoch, hProdSeq}[i])
		v, err := digits(name, values[i+1])
		if err == nil && v > maxInteger {
			err = fmt.Errorf("%s is out of range: %d", name, v)
		}
		if err != nil {
			return nil, err
		}
		*p = v
	}
	return key, nil
}

func invalidProducer(err error) *answer {
	return refuse(http.StatusBadRequest, "INVALID_PRODUCER", err.Error())
}

// streamSeq reads Stream-Seq: "" when absent, blank or not text.
func streamSeq(h http.Header) (string, *answer) {
	v := h.Get(hSeq)
	if !visible(v) {
		return "", nil
	}
	v = strings.Trim(v, " \t")
	if len(v) > 256 {
		return "", invalidHeader("stream-seq must be at most 256 bytes of visible ASCII")
	}
	return v, nil
}

// wantsClose reports Stream-Closed: true, in any case.
func wantsClose(h http.Header) bool { return strings.EqualFold(h.Get(hClosed), "true") }

// lifetime is a stream's expiry as its create gave it.
type lifetime struct {
	ttl       *uint64 // seconds, renewed by use
	expiresAt *int64  // Unix milliseconds
}

func parseLifetime(h http.Header) (lifetime, *answer) {
	var l lifetime
	if values := h.Values(hTTL); len(values) > 0 {
		v := strings.TrimSpace(values[0])
		switch {
		case v == "":
			return l, invalidHeader("stream-ttl must not be empty")
		case len(v) > 1 && v[0] == '0':
			return l, invalidHeader("stream-ttl must not contain leading zeros")
		case strings.Trim(v, "0123456789") != "":
			return l, invalidHeader("stream-ttl must be a non-negative decimal integer")
		}
		ttl, err := strconv.ParseUint(v, 10, 64)
		if err != nil {
			return l, invalidHeader("stream-ttl is too large")
		}
		l.ttl = &ttl
	}
	if values := h.Values(hExpiresAt); len(values) > 0 {
		at, err := time.Parse(time.RFC3339, strings.TrimSpace(values[0]))
		if err != nil {
			return l, invalidHeader("stream-expires-at must be an RFC3339 timestamp")
		}
		ms := at.UnixMilli()
		if ms < 0 {
			return l, invalidHeader("stream-expires-at must not be before the Unix epoch")
		}
		l.expiresAt = &ms
	}
	if l.ttl != nil && l.expiresAt != nil {
		return l, invalidHeader("stream-ttl and stream-expires-at cannot be provided together")
	}
	return l, nil
}

func (l lifetime) render(a *answer) {
	if l.ttl != nil {
		a.set(hTTL, decimal(*l.ttl))
	}
	if l.expiresAt != nil {
		a.set(hExpiresAt, time.UnixMilli(*l.expiresAt).UTC().Format("2006-01-02T15:04:05.000Z"))
	}
}

func (l lifetime) equal(o lifetime) bool {
	return equalPtr(l.ttl, o.ttl) && equalPtr(l.expiresAt, o.expiresAt)
}

func equalPtr[T comparable](a, b *T) bool {
	return (a == nil) == (b == nil) && (a == nil || *a == *b)
}

// mediaType returns the normalised Content-Type of a request and whether it had
// one at all.
func mediaType(h http.Header) (string, bool) {
	v := h.Get(hContentType)
	if !visible(v) || strings.TrimSpace(v) == "" {
		return defaultMedia, false
	}
	var parts []string
	for part := range strings.SplitSeq(v, ";") {
		if part = strings.TrimSpace(part); part != "" {
			parts = append(parts, strings.ToLower(part))
		}
	}
	return strings.Join(parts, "; "), true
}

func isJSON(media string) bool {
	media, _, _ = strings.Cut(media, ";")
	return strings.EqualFold(strings.TrimSpace(media), "application/json")
}

// readMedia is the type a stream's bytes are served with.
func readMedia(media string) string {
	if isJSON(media) {
		return ndjson
	}
	return media
}

// parseQuery decodes a form-encoded query leniently; the last of a repeated
// parameter wins, but for offset, which may come once (facts §1.4).
func parseQuery(raw string) (map[string]string, *answer) {
	query := make(map[string]string)
	for pair := range strings.SplitSeq(raw, "&") {
		if pair == "" {
			continue
		}
		name, value, _ := strings.Cut(pair, "=")
		name, value = formDecode(name), formDecode(value)
		if _, twice := query[name]; twice && name == "offset" {
			return nil, refuse(http.StatusBadRequest, "INVALID_QUERY", "multiple offset parameters")
		}
		query[name] = value
	}
	return query, nil
}

// formDecode decodes %XX and +; what is no escape stays as it is.
func formDecode(s string) string {
	if v, err := url.QueryUnescape(s); err == nil && utf8.ValidString(v) {
		return v
	}
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		switch {
		case s[i] == '+':
			b.WriteByte(' ')
		case s[i] == '%' && i+2 < len(s):
			if raw, err := hex.DecodeString(s[i+1 : i+3]); err == nil {
				b.WriteByte(raw[0])
				i += 2
				continue
			}
			b.WriteByte('%')
		default:
			b.WriteByte(s[i])
		}
	}
	return strings.ToValidUTF8(b.String(), "\uFFFD")
}
