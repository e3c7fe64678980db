package upstream

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"time"
)

// A script is everything that happens in one trial of the property test: what
// clients ask, what nodes do with it, and what becomes of the nodes meanwhile. It
// is drawn from a seed, and is data, so that it can be cut down and printed.
type script struct {
	Seed   uint64
	Hosts  int // nodes that exist
	Listed int // of them configured at the beginning
	First  uint64
	Groups int
	Asks   []ask
	Deeds  [][]deed    // by node: what it does with its requests in turn; then it is plain
	Dials  [][]dialAct // by node: the same of connections
	Spells []spell
	Sets   []reconfig
}

// kind is what is asked for.
type askKind int

const (
	askRead askKind = iota
	askHead
	askKeyed
	askKeyless
	askPut
	askDelete
	askClose // a keyless append without a body
	askKinds
)

func (k askKind) read() bool { return k == askRead || k == askHead }

func (k askKind) method() string {
	return [...]string{http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPost, http.MethodPut, http.MethodDelete, http.MethodPost}[k]
}

func (k askKind) String() string {
	return [...]string{"read", "head", "keyed", "keyless", "put", "delete", "close"}[k]
}

// ask is one request of a client.
type ask struct {
	Kind     askKind
	Size     int // of the body
	Stream   int
	CatchUp  bool
	Spread   bool
	Poll     time.Duration // a long-poll's wait; 0 = none
	Together bool          // begins with the one before, not after it
	Gap      time.Duration // before it begins
	Leave    time.Duration // the client leaves so long after; 0 = it stays
}

// reply is what a node says of a request.
type reply int

const (
	sayOK      reply = iota // 2xx
	sayRefusal              // a 4xx or 503 that proves that nothing was applied
	sayUnknown              // a 408 or 5xx that proves nothing
	sayRedirect
	sayForeign // a 3xx that Ursula does not send
	sayNothing
	saySwitch // 101
	replies
)

// afterwards is what a node does with the connection after its answer.
type afterwards int

const (
	thenKeep afterwards = iota
	thenClose
	thenReset
	thenHang
	thenJunk // another answer, that nobody asked for, comes with the first
	thenDie  // the node goes down for a while
	endings
)

// deed is what a node does with one request. The zero value reads it, applies it
// and says so.
type deed struct {
	Stop   int           // n > 0: no more than n-1 bytes of the request are read
	Forget bool          // a write that was read whole, and is not answered with 2xx, is not applied
	Wait   time.Duration // before the answer
	Infos  int           // 1xx answers before it
	Say    reply
	Status int  // of a refusal or an unknown outcome: which of several
	To     int  // of a redirect: a host's number; more = an address that is none, in several ways
	Named  bool // as the leader
	Size   int  // of the answer's body
	Chunks bool // its framing
	Cut    int  // n > 0: no more than n-1 bytes of the answer are sent
	Last   bool // Connection: close
	Pause  time.Duration
	Then   afterwards
}

// dialAct is what becomes of one attempt to connect.
type dialAct struct {
	Refuse bool
	After  time.Duration // ConnectTimeout or more = no answer at all
	Piped  bool          // not a byte leaves before the node reads it
}

// illness is what is wrong with a node for a while.
type illness int

const (
	mute   illness = iota // probes are not answered
	frozen                // nothing is done, as under SIGSTOP; all is done later
	down                  // all connections end, none is taken
	illnesses
)

type spell struct {
	Node  int
	What  illness
	From  time.Duration
	Until time.Duration
}

// reconfig is a change of the configured nodes.
type reconfig struct {
	At     time.Duration
	Nodes  []int
	Groups int
}

// draw makes the script of a seed.
func draw(seed uint64) script {
	r := dice{rand.New(rand.NewPCG(seed, 4))} //nolint:gosec // a script is found again by its seed
	s := script{Seed: seed, Listed: 1 + r.IntN(4), First: r.Uint64() >> 1}
	if r.oneIn(6) {
		s.Listed = 5 + r.IntN(2)
	}
	s.Hosts = s.Listed
	if r.oneIn(4) {
		s.Groups = 1 + r.IntN(3)
	}
	if r.oneIn(8) {
		s.drawSets(r)
	}
	for i := range 1 + r.IntN(6) {
		s.Asks = append(s.Asks, r.ask(i))
	}
	// In some scripts almost everything is in order, in others almost nothing.
	trouble := 1 + r.IntN(6)
	draws := r.deed
	if r.oneIn(12) {
		draws = r.ring // as when no node leads
	}
	s.Deeds, s.Dials = make([][]deed, s.Hosts), make([][]dialAct, s.Hosts)
	for n := range s.Hosts {
		for range 1 + r.IntN(6) {
			s.Deeds[n] = append(s.Deeds[n], draws(s.Hosts, trouble))
		}
		for range 1 + r.IntN(4) {
			s.Dials[n] = append(s.Dials[n], r.dial(trouble))
		}
	}
	if r.oneIn(3) {
		for range 1 + r.IntN(3) {
			from := r.span(0, 0, 200, 1000, 3000)
			s.Spells = append(s.Spells, spell{r.IntN(s.Hosts), illness(r.IntN(int(illnesses))), from, from + r.span(100, 1000, 2000, 4000, 20000)})
		}
	}
	return s
}

func (s *script) drawSets(r dice) {
	s.Hosts += r.IntN(2)
	for range 1 + r.IntN(2) {
		set := reconfig{At: r.span(0, 1, 300, 2000), Nodes: r.Perm(s.Hosts), Groups: r.IntN(3)}
		set.Nodes = set.Nodes[:r.IntN(len(set.Nodes)+1)]
		s.Sets = append(s.Sets, set)
	}
}

// dice draws the parts of a script.
type dice struct{ *rand.Rand }

func (r dice) oneIn(n int) bool { return r.IntN(n) == 0 }

// span is one of the given times in milliseconds, and at times a bit more.
func (r dice) span(ms ...int) time.Duration {
	d := time.Duration(ms[r.IntN(len(ms))]) * time.Millisecond
	if r.oneIn(3) {
		d += time.Duration(r.IntN(1000)) * time.Millisecond
	}
	return d
}

func (r dice) size(most int) int {
	if r.oneIn(10) {
		return r.IntN(most + 1)
	}
	return [...]int{0, 1, 30, 300, 3000}[r.IntN(5)]
}

func (r dice) ask(i int) ask {
	a := ask{Kind: askKind(r.IntN(int(askKinds))), Stream: r.IntN(2), Gap: r.span(0, 0, 1, 300, 600)}
	if r.oneIn(4) {
		a.Kind = askKeyed // the only kind of write that is repeated
	}
	a.Together = i > 0 && r.oneIn(4)
	if a.Kind != askClose && a.Kind != askDelete && !a.Kind.read() {
		a.Size = r.size(maxAskBody)
	}
	if a.Kind == askRead {
		a.CatchUp, a.Spread = r.oneIn(2), r.oneIn(4)
		if r.oneIn(6) {
			a.Poll = r.span(1, 1000, 6000)
		}
	}
	if r.oneIn(8) {
		a.Leave = 1 + r.span(0, 0, 1, 1000, 1700, 5000, 7000)
	}
	return a
}

func (r dice) deed(hosts, trouble int) deed {
	var a deed
	if r.IntN(6) >= trouble {
		return a
	}
	if r.oneIn(6) {
		return deed{Say: sayNothing, Then: thenHang, Forget: r.oneIn(2)} // the one way to a repetition
	}
	a.Say, a.Status = reply(r.IntN(int(replies))), r.IntN(8)
	if r.oneIn(3) {
		a.Say = sayRedirect // whatever leads elsewhere makes the others matter
	}
	a.To, a.Named = r.IntN(hosts+3), r.oneIn(2)
	a.Forget = r.oneIn(2)
	if r.oneIn(3) {
		a.Stop = 1 + r.size(maxAskBody)
	}
	if r.oneIn(3) {
		a.Wait = r.span(1, 200, 2000, 4900, 5100, 8000)
	}
	if r.oneIn(6) {
		a.Infos = 1 + r.IntN(8)
	}
	a.Size, a.Chunks, a.Last = r.size(20_000), r.oneIn(4), r.oneIn(8)
	if r.oneIn(5) {
		a.Cut = 1 + r.IntN(200)
	}
	if r.oneIn(2) {
		a.Then = afterwards(r.IntN(int(endings)))
		a.Pause = r.span(0, 0, 0, 1, 250)
	}
	return a
}

// ring is a node that sends nearly all away, at times slowly.
func (r dice) ring(hosts, trouble int) deed {
	if r.oneIn(8) {
		return r.deed(hosts, trouble)
	}
	a := deed{Say: sayRedirect, Status: r.IntN(2), To: r.IntN(hosts + 3), Named: r.oneIn(2)}
	if r.oneIn(3) {
		a.Wait = r.span(200, 2000, 4900)
	}
	return a
}

func (r dice) dial(trouble int) dialAct {
	d := dialAct{Piped: r.oneIn(2)}
	if r.IntN(12) >= trouble {
		return d
	}
	d.Refuse = r.oneIn(2)
	if r.oneIn(2) {
		d.After = r.span(1, 1000, 4000, 5000, 10000)
	}
	return d
}

// shrink cuts a script down as long as fails says that the smaller one fails as
// well, for at most that many trials.
func (s script) shrink(trials int, fails func(script) bool) script {
	for again := true; again; {
		again = false
		for _, smaller := range s.simpler() {
			if trials--; trials < 0 {
				return s
			}
			if fails(smaller) {
				s, again = smaller, true
				break
			}
		}
	}
	return s
}

// simpler lists scripts that lack one thing of s each.
func (s script) simpler() []script {
	var list []script
	add := func(change func(*script)) {
		c := s
		c.Asks, c.Spells, c.Sets = slices.Clone(s.Asks), slices.Clone(s.Spells), slices.Clone(s.Sets)
		c.Deeds, c.Dials = slices.Clone(s.Deeds), slices.Clone(s.Dials)
		change(&c)
		list = append(list, c)
	}
	for i := range s.Asks {
		if len(s.Asks) > 1 {
			add(func(c *script) { c.Asks = slices.Delete(c.Asks, i, i+1) })
		}
	}
	for i := range s.Sets {
		add(func(c *script) { c.Sets = slices.Delete(c.Sets, i, i+1) })
	}
	for i := range s.Spells {
		add(func(c *script) { c.Spells = slices.Delete(c.Spells, i, i+1) })
	}
	for n := range s.Deeds {
		if k := len(s.Deeds[n]); k > 0 {
			add(func(c *script) { c.Deeds[n] = c.Deeds[n][:k-1] })
		}
		if k := len(s.Dials[n]); k > 0 {
			add(func(c *script) { c.Dials[n] = c.Dials[n][:k-1] })
		}
		for i, a := range s.Deeds[n] {
			for _, b := range a.simpler() {
				add(func(c *script) { c.Deeds[n] = slices.Clone(c.Deeds[n]); c.Deeds[n][i] = b })
			}
		}
	}
	for i, a := range s.Asks {
		for _, b := range a.simpler() {
			add(func(c *script) { c.Asks[i] = b })
		}
	}
	return list
}

// differing keeps the candidates that are not what they come from.
func differing[T comparable](from T, candidates ...T) []T {
	return slices.DeleteFunc(candidates, func(c T) bool { return c == from })
}

func (a deed) simpler() []deed {
	cut, stop, wait, size, infos, end, say := a, a, a, a, a, a, a
	cut.Cut, stop.Stop, wait.Wait, size.Size, size.Chunks, infos.Infos = 0, 0, 0, 0, false, 0
	end.Then, end.Pause, end.Last = thenKeep, 0, false
	say.Say, say.Status, say.Named, say.Forget = sayOK, 0, false, false
	return differing(a, deed{}, cut, stop, wait, size, infos, end, say)
}

func (a ask) simpler() []ask {
	size, leave, gap, plain := a, a, a, a
	size.Size, leave.Leave, gap.Gap, gap.Together = min(a.Size, 1), 0, 0, false
	plain.CatchUp, plain.Spread, plain.Poll, plain.Stream = false, false, 0, 0
	return differing(a, size, leave, gap, plain)
}

// String prints the script, a thing a line, without what is plain.
func (s script) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "seed %d: %d of %d nodes listed, first %d, %d groups\n", s.Seed, s.Listed, s.Hosts, s.First%uint64(max(s.Listed, 1)), s.Groups)
	for i, a := range s.Asks {
		fmt.Fprintf(&b, "  ask %d: %+v\n", i, a)
	}
	for n := range s.Deeds {
		for i, a := range s.Deeds[n] {
			if a != (deed{}) {
				fmt.Fprintf(&b, "  node %d, request %d: %+v\n", n, i, a)
			}
		}
		for i, d := range s.Dials[n] {
			if d != (dialAct{}) {
				fmt.Fprintf(&b, "  node %d, connection %d: %+v\n", n, i, d)
			}
		}
	}
	for _, sp := range s.Spells {
		fmt.Fprintf(&b, "  spell %+v\n", sp)
	}
	for _, set := range s.Sets {
		fmt.Fprintf(&b, "  reconfigured %+v\n", set)
	}
	return b.String()
}
