package upstream

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// The checks of TestWriteOutcomes. They are written from design §4 and facts §4.2
// and §5.3, and know nothing of how a walk decides.

// check lists what a trial has shown to be wrong, as "rule: what".
func (t *trial) check() (faults []string) {
	if t.open > 0 {
		faults = append(faults, fmt.Sprintf("close: %d connections were left open", t.open))
	}
	if t.closing > 0 {
		faults = append(faults, fmt.Sprintf("close: took %v", t.closing))
	}
	for i, a := range t.script.Asks {
		v := &view{ask: a, number: i, out: &t.outcomes[i]}
		for _, rc := range t.receipts {
			if rc.ask == i {
				v.receipts = append(v.receipts, rc)
			}
		}
		v.effect()
		v.repetition()
		v.answer()
		v.length(len(t.script.Deeds))
		v.leaving()
		v.back()
		v.clock(t.script)
		if !slices.ContainsFunc(t.script.Asks, func(a ask) bool { return a.Together }) {
			v.connections(t)
			v.haste(t.script)
		}
		faults = append(faults, v.faults...)
	}
	return faults
}

// view is one ask, what nodes got of it, and what its client got.
type view struct {
	ask      ask
	number   int
	out      *outcome
	receipts []*receipt
	faults   []string
}

func (v *view) fault(rule, format string, args ...any) {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: ask %d (%s): ", rule, v.number, v.ask.Kind)
	fmt.Fprintf(&b, format, args...)
	fmt.Fprintf(&b, "; it got %d %q, error %v", v.out.status, v.out.tags, v.out.err)
	for _, rc := range v.receipts {
		fmt.Fprintf(&b, "\n    %v: node %d, kept %t: took %d, read %d of %d; applied %t, redirected %t, answered %t", rc.at, rc.node, rc.kept, rc.accepted, rc.read, rc.total, rc.applied, rc.redirected, rc.answered)
	}
	v.faults = append(v.faults, b.String())
}

// kind is the gateway's own refusal, if that is what the client gets.
func (v *view) kind() (Kind, bool) {
	var own *Error
	ok := errors.As(v.out.err, &own)
	if !ok {
		return 0, false
	}
	return own.Kind, true
}

// answering is the receipt whose answer the client got; nil for none.
func (v *view) answering() *receipt {
	if v.out.err != nil || len(v.out.tags) != 1 {
		return nil
	}
	for _, rc := range v.receipts {
		if rc.tag() == v.out.tags[0] {
			return rc
		}
	}
	return nil
}

// having lists the receipts of nodes that may have the request.
func (v *view) having() (list []*receipt) {
	for _, rc := range v.receipts {
		if rc.mayHave() {
			list = append(list, rc)
		}
	}
	return list
}

// proves tells whether the client is told that nothing was applied, nor will be.
func (v *view) proves() bool {
	if kind, own := v.kind(); own {
		return kind == NoUpstream || kind == Unreachable || kind == NoLeader
	}
	rc := v.answering()
	return rc != nil && rc.refuses
}

// effect is the promise of design §4.
func (v *view) effect() {
	if v.ask.Kind.read() || !v.proves() {
		return
	}
	by := v.answering()
	for _, rc := range v.receipts {
		switch {
		case rc.applied:
			v.fault("promise", "the client is told that nothing was applied, and node %d has", rc.node)
		case rc != by && rc.mayHave():
			v.fault("promise", "the client is told that nothing was applied, and node %d may have it", rc.node)
		}
	}
}

// repetition bounds how often a request reaches nodes that do not send it away.
func (v *view) repetition() {
	having := v.having()
	applied := 0
	for i, rc := range having {
		if rc.applied {
			applied++
		}
		later := having[i+1:]
		onOther := slices.ContainsFunc(later, func(o *receipt) bool { return o.node != rc.node })
		onSame := slices.ContainsFunc(later, func(o *receipt) bool { return o.node == rc.node })
		switch {
		case onSame && !v.ask.Kind.read():
			v.fault("twice", "node %d has a write twice", rc.node)
		case onSame && !rc.kept:
			v.fault("twice", "repeated at node %d though the connection was a new one", rc.node)
		case onOther && v.ask.Kind != askKeyed && !v.ask.Kind.read():
			v.fault("twice", "a write that is not keyed has reached two nodes")
		}
	}
	var nodes []int
	for _, rc := range having {
		// A kept connection that had ended costs a read nothing; where its node then
		// takes no other, the read has not had its one repetition yet.
		if !v.endedKept(rc) && !slices.Contains(nodes, rc.node) {
			nodes = append(nodes, rc.node)
		}
	}
	if len(nodes) > 2 {
		v.fault("twice", "has reached nodes %v", nodes)
	}
	if v.ask.Kind == askKeyed && len(nodes) > 1 {
		by := v.answering()
		if v.out.err == nil && (by == nil || by != having[len(having)-1] || v.out.status/100 != 2) {
			v.fault("receipt", "a repetition was answered by no 2xx of its own")
		}
	}
	if !v.ask.Kind.read() && v.ask.Kind != askKeyed && applied > 1 {
		v.fault("promise", "applied %d times", applied)
	}
}

// answer holds what is passed on to what the node has sent.
func (v *view) answer() {
	for _, rc := range v.receipts {
		if rc.garbled {
			v.fault("request", "node %d got other bytes", rc.node)
		}
	}
	if v.out.err != nil {
		return
	}
	by := v.answering()
	switch {
	case by == nil:
		v.fault("answer", "is none to this request")
	case by.redirected || by.deed.Say == sayForeign || by.deed.Say == saySwitch:
		v.fault("answer", "is not for clients")
	case by.status != v.out.status:
		v.fault("answer", "the node said %d", by.status)
	case v.out.readErr == nil && v.out.text != by.text:
		v.fault("answer", "%d bytes came for whole, the node's are %d", len(v.out.text), len(by.text))
	case !strings.HasPrefix(by.text, v.out.text):
		v.fault("answer", "other bytes than the node's")
	}
}

// length bounds a walk in nodes and in time.
func (v *view) length(hosts int) {
	var visits []int
	same := 0
	for _, rc := range v.receipts {
		switch {
		case len(visits) > 0 && visits[len(visits)-1] == rc.node:
			same++
		case slices.Contains(visits, rc.node):
			v.fault("length", "node %d was asked, left and asked again", rc.node)
		default:
			visits = append(visits, rc.node)
		}
	}
	most, walks := 4, 1 // one, and three hops
	if len(v.having()) > 1 || v.ask.Kind.read() || v.ask.Kind == askKeyed {
		walks = 2
	}
	if len(visits) > min(most*walks, hosts) || same > 8*len(visits) {
		v.fault("length", "nodes %v were asked, in %d attempts", visits, len(v.receipts))
	}
	// facts §4.3: 5 s to connect, 5 s and what the body and a poll need for a head;
	// hops begin within 5 s; an answer that is not wanted takes half a second.
	one := 10*time.Second + time.Duration(v.ask.Size)*time.Second/(8<<20)
	if v.ask.Poll > 0 {
		one = max(one, 5*time.Second+min(v.ask.Poll, time.Minute)+2*time.Second)
	}
	limit := time.Duration(walks)*(2*one+5*time.Second+4*time.Second/2) + time.Duration(same)*one
	if took := v.out.ended - v.out.begun; took > limit || v.out.stuck {
		v.fault("time", "took %v, more than %v", took, limit)
	}
}

// leaving is what is owed to a client that has left, and to nodes.
func (v *view) leaving() {
	_, own := v.kind()
	switch gone := errors.Is(v.out.err, context.Canceled); {
	case v.out.err != nil && !own && !gone:
		v.fault("error", "is of no known kind")
	case gone && !v.out.left && !v.out.stuck:
		v.fault("error", "says that the client has left")
	}
	for _, rc := range v.receipts {
		switch {
		case v.out.left && rc.at > v.out.leftAt:
			v.fault("left", "sent to node %d at %v, after the client had left at %v", rc.node, rc.at, v.out.leftAt)
		case v.out.left && !rc.answered && rc.last > v.out.leftAt:
			v.fault("left", "written to node %d at %v, after the client had left at %v", rc.node, rc.last, v.out.leftAt)
		case v.out.err != nil && !rc.answered && rc.last > v.out.ended:
			v.fault("left", "written to node %d at %v, after the walk had ended at %v", rc.node, rc.last, v.out.ended)
		}
	}
}

// dialedAgain reports whether the walk had gone back to a node before the failure
// d: it had not heard the node's redirect, which net/http drops where writing the
// request fails at the same time (seed 810105).
func (t *trial) dialedAgain(d failedDial, node int) bool {
	for _, f := range t.failures {
		if f.ask == d.ask && f.after == d.after && f.node == node {
			return true
		}
	}
	return false
}

// connections: a leader that another node names, or the node of a keyed append's
// one repetition, that takes no connection ends the walk (facts R17, L22). Which
// request a connection was for is known only where there is one at a time.
func (v *view) connections(t *trial) {
	for _, d := range t.failures {
		if d.ask != v.number || d.after == 0 || d.after >= len(t.receipts) || t.receipts[d.after].ask != v.number {
			continue
		}
		// A kept connection may come free while net/http dials: the failed dial was
		// then nobody's (seed 756182).
		if t.receipts[d.after].node == d.node {
			continue
		}
		switch by := t.receipts[d.after-1]; {
		case by.ask != v.number:
		case by.redirected && by.deed.Named && by.deed.To == d.node && !t.dialedAgain(d, by.node):
			v.fault("named", "went on to node %d after the leader that node %d names, %d, took no connection", t.receipts[d.after].node, by.node, d.node)
		case by.mayHave() && v.ask.Kind == askKeyed:
			v.fault("twice", "went on to node %d after the repetition's, %d, took no connection", t.receipts[d.after].node, d.node)
		}
	}
}

// haste: where no node falls ill and none goes down, a request leaves a node that
// may have it only when its time is up: an exchange that broke ends the walk
// (facts R23).
func (v *view) haste(s script) {
	mayGoDown := func(deeds []deed) bool {
		return slices.ContainsFunc(deeds, func(d deed) bool { return d.Then == thenDie })
	}
	if len(s.Spells) > 0 || slices.ContainsFunc(s.Deeds, mayGoDown) {
		return
	}
	having := v.having()
	for i, rc := range having[:max(len(having)-1, 0)] {
		next := having[i+1]
		if next.node != rc.node && next.at-rc.at < 4*time.Second && !v.endedKept(rc) {
			v.fault("haste", "left node %d for %d after %v", rc.node, next.node, next.at-rc.at)
		}
	}
}

// endedKept tells that a read met a kept connection that had ended.
func (v *view) endedKept(rc *receipt) bool {
	return v.ask.Kind.read() && rc.kept && rc.heard == 0 && rc.link.dropped
}

// clock: no hop begins later than 5 s after the first redirect (facts R10), whose
// answer may take half a second to be dropped.
func (v *view) clock(s script) {
	connect := time.Duration(0)
	for _, dials := range s.Dials {
		for _, d := range dials {
			connect = max(connect, min(d.After, 5*time.Second))
		}
	}
	var first *receipt
	for i, rc := range v.receipts {
		if first != nil && rc.node != v.receipts[i-1].node && rc.at-first.answeredAt > 5*time.Second+connect+500*time.Millisecond {
			v.fault("clock", "went to node %d %v after the first redirect", rc.node, rc.at-first.answeredAt)
		}
		switch {
		case !rc.redirected:
			first = nil // a repetition has a clock of its own
		case first == nil && rc.redirected:
			first = rc
		}
	}
}

// back: a repetition that is sent back to the node that may have the request ends
// the walk, since that one was given up for a reason (facts L23).
func (v *view) back() {
	if v.ask.Kind != askKeyed {
		return
	}
	var left []int
	for i, rc := range v.receipts {
		if rc.mayHave() {
			left = append(left, rc.node)
		}
		// To the same node again: its redirect was not heard, which net/http drops
		// where writing the request fails at the same time (seed 864879).
		if rc.redirected && slices.Contains(left, rc.deed.To) && i+1 < len(v.receipts) && v.receipts[i+1].node != rc.node {
			v.fault("back", "went on to node %d after node %d sent it back to %d", v.receipts[i+1].node, rc.node, rc.deed.To)
		}
	}
}
