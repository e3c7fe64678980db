package cli

import (
	"fmt"
	"io"
	"time"
)

// progressStep is how often progress is shown at most.
const progressStep = 200 * time.Millisecond

// progress shows on a terminal how far something long is; elsewhere nothing.
type progress struct {
	out   io.Writer // nil = nowhere
	verb  string
	total int64 // bytes; 0 = not known
	last  time.Time
	shown bool
}

func newProgress(env Environment, verb string, total int64) *progress {
	p := &progress{verb: verb, total: total, last: time.Now()}
	if env.isTerminal(env.Err) {
		p.out = env.Err
	}
	return p
}

func (p *progress) tell(bytes int64) {
	now := time.Now()
	if p.out == nil || now.Sub(p.last) < progressStep {
		return
	}
	p.last, p.shown = now, true
	share := ""
	if p.total > 0 {
		share = fmt.Sprintf(" of %s, %d%%", size(p.total), min(100, bytes*100/p.total))
	}
	_, _ = fmt.Fprintf(p.out, "\r\x1b[K%s %s%s", p.verb, size(bytes), share)
}

// end takes the line away.
func (p *progress) end() {
	if p.shown {
		_, _ = io.WriteString(p.out, "\r\x1b[K")
	}
}
