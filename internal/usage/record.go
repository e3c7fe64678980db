package usage

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Class is the kind of work that is counted.
type Class uint8

// The classes. The zero value is none: nothing is counted.
const (
	NoClass    Class = iota
	Append           // appends, closes, creates
	Read             // catch-up reads, heads, chunks, snapshots, bootstraps
	LiveRead         // server-sent events and long-polls
	Management       // calls under /v1, retention, snapshots published, deletes
)

var classNames = [...]string{"none", "append", "read", "live_read", "management"}

// Classes lists the names of all classes, in the order in which they are listed.
func Classes() []string { return slices.Clone(classNames[1:]) }

// String names the class as every list and export does.
func (c Class) String() string {
	if int(c) >= len(classNames) {
		return classNames[NoClass]
	}
	return classNames[c]
}

var errClass = errors.New("no class of usage")

// ParseClass is the class of a name.
func ParseClass(name string) (Class, error) {
	for i, n := range classNames[1:] {
		if n == name {
			return Class(i + 1), nil
		}
	}
	return NoClass, fmt.Errorf("%w: %q", errClass, name)
}

// MarshalText implements encoding.TextMarshaler.
func (c Class) MarshalText() ([]byte, error) { return []byte(c.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (c *Class) UnmarshalText(text []byte) (err error) {
	*c, err = ParseClass(string(text))
	return err
}

// Principal is who asked: an API key, or a token of another issuer, which is its issuer
// and subject together (facts J7). The zero value is nobody that is known: a stranger
// at a public stream.
type Principal struct {
	KeyID   string `json:"key_id,omitempty"`
	Issuer  string `json:"issuer,omitempty"`
	Subject string `json:"subject,omitempty"`
}

// maxPrincipal bounds what is kept of who asked, in bytes: a token may name anything. What
// is longer is counted, but not by who it is.
const maxPrincipal = 1024

// Key is whose use it is.
type Key struct {
	Account   string
	Class     Class
	Principal Principal
	// Unattributed is what principals have used that there was no room to count apart.
	Unattributed bool
}

// unattributed is the key's account and class, whoever it was.
func (k Key) unattributed() Key {
	return Key{Account: k.Account, Class: k.Class, Unattributed: true}
}

// Hour is the beginning of an hour of UTC, in seconds since 1970.
type Hour int64

const secondsOfHour = 3600

// HourOf is the hour that a time lies in.
func HourOf(t time.Time) Hour {
	s := t.Unix()
	return Hour(s - ((s%secondsOfHour)+secondsOfHour)%secondsOfHour)
}

// Time is the hour's beginning.
func (h Hour) Time() time.Time { return time.Unix(int64(h), 0).UTC() }

// MarshalText implements encoding.TextMarshaler: RFC 3339.
func (h Hour) MarshalText() ([]byte, error) { return []byte(h.Time().Format(time.RFC3339)), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (h *Hour) UnmarshalText(text []byte) error {
	t, err := time.Parse(time.RFC3339, string(text))
	if err != nil {
		return err
	}
	*h = HourOf(t)
	return nil
}

// Millis are milliseconds, which JSON has as seconds, exactly: 59.25.
type Millis int64

const thousand = 1000

// MarshalJSON implements json.Marshaler.
func (m Millis) MarshalJSON() ([]byte, error) {
	sign := ""
	if m < 0 {
		sign, m = "-", -m
	}
	text := fmt.Sprintf("%s%d.%03d", sign, m/thousand, m%thousand)
	return []byte(strings.TrimSuffix(strings.TrimRight(text, "0"), ".")), nil
}

var errSeconds = errors.New("no number of seconds with at most three decimals")

// UnmarshalJSON implements json.Unmarshaler.
func (m *Millis) UnmarshalJSON(text []byte) error {
	whole, part, _ := strings.Cut(string(text), ".")
	if len(part) > 3 {
		return errSeconds
	}
	n, err := strconv.ParseInt(whole+part+strings.Repeat("0", 3-len(part)), 10, 64)
	if err != nil {
		return errSeconds
	}
	*m = Millis(n)
	return nil
}

// Counts are what is added up.
type Counts struct {
	// Requests were answered by a node, or by the Management API.
	Requests int64 `json:"requests"`
	// RequestBytes are those of the bodies of appends.
	RequestBytes int64 `json:"request_bytes"`
	// ResponseBytes are those of the bodies of answers, as far as they were sent, without
	// HeartbeatBytes.
	ResponseBytes  int64 `json:"response_bytes"`
	HeartbeatBytes int64 `json:"heartbeat_bytes"`
	// Tail is for how long live reads were open.
	Tail Millis `json:"tail_seconds"`
	// Refused requests are counted here and nowhere else.
	Refused int64 `json:"refused"`
	// Chunks are the units of appends: each is its bytes by the unit, rounded up, and at
	// least one, so that they do not follow from the sums (facts M3).
	Chunks int64 `json:"chunks"`
}

// Add adds d.
func (c *Counts) Add(d Counts) {
	c.Requests += d.Requests
	c.RequestBytes += d.RequestBytes
	c.ResponseBytes += d.ResponseBytes
	c.HeartbeatBytes += d.HeartbeatBytes
	c.Tail += d.Tail
	c.Refused += d.Refused
	c.Chunks += d.Chunks
}

// Record is what one principal of an account used in an hour.
type Record struct {
	Account      string     `json:"account"`
	Principal    *Principal `json:"principal,omitempty"` // nil: nobody that is known, or Unattributed
	Unattributed bool       `json:"unattributed,omitempty"`
	Class        Class      `json:"class"`
	Hour         Hour       `json:"hour"`
	Counts
}

func (r Record) cell() cell {
	k := Key{Account: r.Account, Class: r.Class, Unattributed: r.Unattributed}
	if r.Principal != nil {
		k.Principal = *r.Principal
	}
	return cell{k, r.Hour}
}

// ReadCounts are what is added up of the reads of one stream.
type ReadCounts struct {
	Requests      int64 `json:"requests"`
	ResponseBytes int64 `json:"response_bytes"`
}

func (c *ReadCounts) add(d ReadCounts) {
	c.Requests += d.Requests
	c.ResponseBytes += d.ResponseBytes
}

// StreamReads are the answered reads (2xx and 304) of one stream (facts M2). They are in
// the records as well.
type StreamReads struct {
	Account string `json:"account"`
	Stream  string `json:"stream"`
	Class   Class  `json:"class"`
	ReadCounts
}

// Batch is what one replica counted in a window of time. It is known by Replica and
// Sequence: whoever has one with these has it, whatever else is in it.
type Batch struct {
	// Replica is random, and another one at each start of the program.
	Replica  string `json:"replica"`
	Sequence int64  `json:"sequence"` // from 1, without a gap
	// The window is when it was counted, not when it was used: that is each record's Hour.
	WindowStart int64 `json:"window_start_unix_ms"`
	WindowEnd   int64 `json:"window_end_unix_ms"`
	// ChunkBytes is the unit of Chunks.
	ChunkBytes  int64         `json:"chunk_bytes"`
	Records     []Record      `json:"records"`
	StreamReads []StreamReads `json:"stream_reads,omitempty"`
	// StreamReadsUnattributed are reads that there was no room to count by stream.
	StreamReadsUnattributed ReadCounts `json:"stream_reads_unattributed,omitzero"`
}

// Line is the batch as a line of JSON, with its end.
func (b *Batch) Line() ([]byte, error) {
	text, err := json.Marshal(b)
	return append(text, '\n'), err
}

func (b *Batch) empty() bool {
	return len(b.Records) == 0 && len(b.StreamReads) == 0 && b.StreamReadsUnattributed == ReadCounts{}
}

// cell is what is added up by.
type cell struct {
	Key
	hour Hour
}

func (c cell) record(n Counts) Record {
	r := Record{Account: c.Account, Unattributed: c.Unattributed, Class: c.Class, Hour: c.hour, Counts: n}
	if c.Principal != (Principal{}) {
		p := c.Principal
		r.Principal = &p
	}
	return r
}

// streamCell is what reads of streams are added up by.
type streamCell struct {
	account, stream string
	class           Class
}

// sortRecords puts records in an order that does not depend on chance.
func sortRecords(records []Record) {
	principal := func(r Record) Principal { return r.cell().Principal }
	slices.SortFunc(records, func(a, b Record) int {
		return cmp.Or(cmp.Compare(a.Account, b.Account), cmp.Compare(a.Hour, b.Hour), cmp.Compare(a.Class, b.Class),
			cmp.Compare(principal(a).KeyID, principal(b).KeyID), cmp.Compare(principal(a).Issuer, principal(b).Issuer),
			cmp.Compare(principal(a).Subject, principal(b).Subject))
	})
}

func sortReads(reads []StreamReads) {
	slices.SortFunc(reads, func(a, b StreamReads) int {
		return cmp.Or(cmp.Compare(a.Account, b.Account), cmp.Compare(a.Stream, b.Stream), cmp.Compare(a.Class, b.Class))
	})
}
