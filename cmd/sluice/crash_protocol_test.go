package main

import (
	"context"
	"fmt"
	"net/http"
	"slices"
)

// What people do at a stream's own URL while replicas die.

// toggleByItself makes a stream with its first body by PUT, or deletes it by DELETE, at its
// own URL and until it is answered.
func (p *person) toggleByItself(ctx context.Context, name string) {
	n := p.names[name]
	if n == nil {
		n = &named{}
		p.names[name] = n
	}
	if n.exists {
		n.exists = !p.byItself(ctx, http.MethodDelete, name, "", http.StatusNoContent, http.StatusNotFound)
		return
	}
	n.contentType, n.first = "application/json", fmt.Sprintf("{\"of\":%q,\"n\":%d}\n", p.label, p.random.Uint32())
	if n.exists = p.byItself(ctx, http.MethodPut, name, n.first, http.StatusCreated, http.StatusOK); !n.exists {
		return
	}
	// It holds its first body, once, however often that was sent.
	if a := p.settleRead(ctx, p.account, name, p.key); a.status != http.StatusOK || string(a.text) != n.first {
		p.wrong(name, "read of what was just made", a)
	}
}

// byItself repeats until one of the answers comes: the first where the outcome of no try was
// unknown, any of them afterwards.
func (p *person) byItself(ctx context.Context, method, name, body string, first, repeated int) bool {
	good := []int{first}
	for ctx.Err() == nil {
		a := p.owner(ctx, p.key, method, "/"+p.account+"/s."+name, body)
		p.note(name, method, a)
		switch {
		case a.unknown(), a.status == http.StatusBadGateway, a.status == http.StatusGatewayTimeout:
			good = []int{first, repeated}
		case slices.Contains(good, a.status):
			return true
		case a.status == http.StatusConflict && a.retry > 0:
			p.pause(ctx, a.retry) // the reconciler is finishing what had no answer
		default:
			p.wrong(name, method, a)
			return false
		}
	}
	p.t.Errorf("%s of %s in %s was never done: %q", method, name, p.account, p.story[name])
	return false
}
