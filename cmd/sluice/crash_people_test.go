package main

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"time"
)

// What people do with streams and keys while replicas die, and what they know afterwards.

// person is somebody with an account, of whom a friend has a key of the same account.
type person struct {
	*caller
	account, key string // the account's first key, which stays
	label        string // in the names of what is this person's
	names        map[string]*named
	keys         []*shown
	keysMade     int
	gone         []goneAccount
	story        map[string][]string // what was asked and answered, by name or id
}

// named is a stream's name that only this person uses.
type named struct {
	exists      bool
	contentType string
	first       string // the body that it was made with, at its own URL; "" = otherwise
}

// shown is a key that a caller was shown.
type shown struct {
	id, name string
	revoked  bool
	secrets  []*secretShown // in the order in which they were shown
}

// secretShown is one secret of it.
type secretShown struct {
	text  string
	ended bool // it has to be refused
}

// goneAccount is an account that was deleted, and that this was acknowledged.
type goneAccount struct{ id, key string }

func (p *person) note(of, what string, a answer) {
	p.story[of] = append(p.story[of], fmt.Sprintf("%s %s: %v", time.Now().Format("05.000"), what, a))
}

// wrong tells of an answer that is against the contract.
func (p *person) wrong(of, what string, a answer) {
	p.t.Errorf("%s of %s in %s: %v\n  %q", what, of, p.account, a, p.story[of])
}

// live does one thing after the other until ctx ends, each to its end.
func (p *person) live(ctx context.Context) {
	for ctx.Err() == nil {
		wish, cancel := context.WithTimeout(context.WithoutCancel(ctx), callerPatience)
		switch n := p.random.IntN(100); {
		case n < 35:
			p.toggle(wish, fmt.Sprintf("%s-%d", p.label, p.random.IntN(5)))
		case n < 55:
			p.toggleByItself(wish, fmt.Sprintf("%s-own-%d", p.label, p.random.IntN(3)))
		case n < 65:
			p.quarrel(wish)
		case n < 80:
			p.makeKey(wish)
		case n < 88:
			p.rotate(wish)
		case n < 95:
			p.revoke(wish)
		default:
			p.comeAndGo(wish)
		}
		cancel()
		p.pause(ctx, time.Duration(p.random.Int64N(int64(80*time.Millisecond))))
	}
}

// toggle makes a stream that is not there, and deletes one that is.
func (p *person) toggle(ctx context.Context, name string) {
	n := p.names[name]
	if n == nil {
		n = &named{}
		p.names[name] = n
	}
	if n.exists {
		p.deleteStream(ctx, name)
		n.exists = false
		return
	}
	n.contentType, n.first = []string{"application/json", "text/plain"}[p.random.IntN(2)], ""
	n.exists = p.createStream(ctx, p.key, name, n.contentType, 2)
}

// createStream repeats until the stream is there, by what the API says of a repeat. While
// the one before is being deleted it waits a few times, and reports false where that was
// not enough: nothing is made.
func (p *person) createStream(ctx context.Context, key, name, contentType string, waits int) bool {
	for first := true; ctx.Err() == nil; {
		a := p.owner(ctx, key, http.MethodPost, "/v1/streams", `{"name":"`+name+`","content_type":"`+contentType+`"}`)
		p.note(name, "create as "+contentType, a)
		taken := a.status == http.StatusConflict && a.code == "STREAM_ALREADY_EXISTS_CONFLICT"
		switch {
		case a.unknown():
			first = false
		case a.status == http.StatusCreated, taken && a.retry == 0 && a.field == "" && !first:
			return true
		case taken && a.retry > 0:
			if waits--; waits < 0 {
				return false
			}
			p.pause(ctx, a.retry)
		default:
			p.wrong(name, "create", a)
			return false
		}
	}
	p.t.Errorf("%s of %s cannot be created: %q", name, p.account, p.story[name])
	return false
}

// deleteStream repeats until it is acknowledged that the stream goes.
func (p *person) deleteStream(ctx context.Context, name string) {
	for first := true; ; {
		a := p.owner(ctx, p.key, http.MethodDelete, "/v1/streams/"+name, "")
		p.note(name, "delete", a)
		if a.unknown() {
			first = false
			continue
		}
		if a.status != http.StatusAccepted && (a.status != http.StatusNotFound || first) {
			p.wrong(name, "delete", a)
		}
		break
	}
}

// contested are names that both who share an account make and delete as they like.
func contested() []string { return []string{"ours-0", "ours-1"} }

// quarrel makes or deletes a name that the friend uses too. Whatever the API documents is
// right; who wins is not known.
func (p *person) quarrel(ctx context.Context) {
	name := contested()[p.random.IntN(2)]
	var a answer
	if p.random.IntN(2) == 0 {
		a = p.owner(ctx, p.key, http.MethodDelete, "/v1/streams/"+name, "")
	} else {
		a = p.owner(ctx, p.key, http.MethodPost, "/v1/streams", `{"name":"`+name+`","content_type":"text/`+p.label+`"}`)
	}
	p.note(name, "quarrel", a)
	if !a.unknown() && !slices.Contains([]int{http.StatusCreated, http.StatusAccepted, http.StatusNotFound, http.StatusConflict}, a.status) {
		p.wrong(name, "quarrel", a)
	}
}

// comeAndGo makes an account with a stream and a key, and deletes it.
func (p *person) comeAndGo(ctx context.Context) {
	id := fmt.Sprintf("gone-%s-%d-%x", p.label, len(p.gone), p.random.Uint32())
	key := p.createAccount(ctx, id)
	if !p.takes(ctx, id, key) {
		p.t.Errorf("the first key of %s does not work: %q", id, p.story[id])
	}
	p.createStream(ctx, key, "short", "text/plain", 0)
	for first := true; ; {
		a := p.operator(ctx, http.MethodDelete, "/v1/accounts/"+id, "")
		p.note(id, "delete", a)
		if a.unknown() {
			first = false
			continue
		}
		if a.status != http.StatusNoContent && (a.status != http.StatusNotFound || first) {
			p.wrong(id, "delete", a)
		}
		break
	}
	p.gone = append(p.gone, goneAccount{id, key})
}

// createAccount makes an account and returns a key of it: the first, or, where the answer
// that showed that one was lost, another.
func (p *person) createAccount(ctx context.Context, id string) (key string) {
	path, body := "/v1/accounts", `{"id":"`+id+`"}`
	for i := 0; ctx.Err() == nil; i++ {
		a := p.operator(ctx, http.MethodPost, path, body)
		p.note(id, "create", a)
		switch {
		case a.unknown():
		case a.status == http.StatusConflict && i > 0:
			path, body = "/v1/accounts/"+id+"/api-keys", fmt.Sprintf(`{"name":"another %d"}`, i)
		case a.status == http.StatusCreated:
			var made struct {
				Key   string               // of a further one
				First struct{ Key string } `json:"api_key"`
			}
			if err := a.read(&made); err != nil || made.Key == made.First.Key {
				p.wrong(id, "create", a)
			}
			return made.Key + made.First.Key // there is one of them
		default:
			p.wrong(id, "create", a)
			return ""
		}
	}
	return ""
}
