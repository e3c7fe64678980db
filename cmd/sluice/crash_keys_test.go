package main

import (
	"context"
	"fmt"
	"net/http"
	"slices"
)

// What people do with keys while replicas die. A secret is shown once, so a create or a
// rotation whose answer was lost cannot be repeated as it was: one looks what became of it.

const maxKeys = 6 // that a person has at one time

// keyInfo is a key as the API shows it.
type keyInfo struct {
	ID, Name, Hint string
	Key            string  // its secret, once
	OldHint        *string `json:"old_hint"`
	RevokedAt      *string `json:"revoked_at"`
}

// makeKey makes a key, which is good at once at every replica.
func (p *person) makeKey(ctx context.Context) {
	if len(p.liveKeys()) >= maxKeys {
		return
	}
	p.keysMade++
	name := fmt.Sprintf("%s %d", p.label, p.keysMade)
	for first := true; ctx.Err() == nil; {
		a := p.owner(ctx, p.key, http.MethodPost, "/v1/api-keys", `{"name":"`+name+`"}`)
		p.note(name, "create", a)
		switch {
		case a.unknown(), a.status == http.StatusConflict && a.code == "API_KEY_ALREADY_EXISTS_CONFLICT" && !first:
			// Nobody was shown the secret of what was made.
			first = false
			if k := p.lookFor(ctx, name); k != nil {
				p.revokeByID(ctx, name, k.ID)
			}
		case a.status == http.StatusCreated:
			var k keyInfo
			if err := a.read(&k); err != nil || k.Key == "" {
				p.wrong(name, "create", a)
				return
			}
			p.keys = append(p.keys, &shown{id: k.ID, name: name, secrets: []*secretShown{{text: k.Key}}})
			if !p.takes(ctx, p.account, k.Key) {
				p.wrong(name, "first use", a)
			}
			return
		default:
			p.wrong(name, "create", a)
			return
		}
	}
}

// lookFor finds a key by its name among those that are not revoked; nil = there is none.
func (p *person) lookFor(ctx context.Context, name string) *keyInfo {
	for cursor := ""; ctx.Err() == nil; {
		a := p.owner(ctx, p.key, http.MethodGet, "/v1/api-keys?limit=200"+cursor, "")
		if a.unknown() {
			continue
		}
		var page struct {
			Keys []keyInfo `json:"api_keys"`
			Next *string   `json:"next_cursor"`
		}
		if err := a.read(&page); err != nil || a.status != http.StatusOK {
			p.note(name, "list", a)
			p.wrong(name, "list", a)
			return nil
		}
		i := slices.IndexFunc(page.Keys, func(k keyInfo) bool { return k.Name == name && k.RevokedAt == nil })
		if i >= 0 {
			return &page.Keys[i]
		}
		if page.Next == nil {
			return nil
		}
		cursor = "&cursor=" + *page.Next
	}
	return nil
}

func (p *person) liveKeys() []*shown {
	return slices.DeleteFunc(slices.Clone(p.keys), func(k *shown) bool { return k.revoked })
}

// anyKey is one that is not revoked; nil = there is none.
func (p *person) anyKey() *shown {
	live := p.liveKeys()
	if len(live) == 0 {
		return nil
	}
	return live[p.random.IntN(len(live))]
}

func (p *person) revoke(ctx context.Context) {
	k := p.anyKey()
	if k == nil || !p.revokeByID(ctx, k.name, k.id) {
		return
	}
	k.revoked = true
	for _, s := range k.secrets {
		s.ended = true
	}
}

// revokeByID repeats until it is acknowledged.
func (p *person) revokeByID(ctx context.Context, name, id string) bool {
	for ctx.Err() == nil {
		a := p.owner(ctx, p.key, http.MethodDelete, "/v1/api-keys/"+id, "")
		p.note(name, "revoke", a)
		if a.unknown() {
			continue
		}
		if a.status != http.StatusNoContent {
			p.wrong(name, "revoke", a)
		}
		return a.status == http.StatusNoContent
	}
	return false
}

// rotate gives a key another secret. With overlap the one before stays good for longer
// than any trial; without it, it ends.
func (p *person) rotate(ctx context.Context) {
	k := p.anyKey()
	if k == nil {
		return
	}
	overlap := p.random.IntN(2) == 0
	body := `{"overlap_seconds":0,"end_older":true}`
	if overlap {
		body = `{"overlap_seconds":86400,"end_older":true}`
	}
	for sure := true; ctx.Err() == nil; sure = false {
		a := p.owner(ctx, p.key, http.MethodPost, "/v1/api-keys/"+k.id+"/rotate", body)
		p.note(k.name, "rotate "+body, a)
		if a.unknown() {
			continue
		}
		var now keyInfo
		if err := a.read(&now); err != nil || a.status != http.StatusOK || now.Key == "" {
			p.wrong(k.name, "rotate", a)
			return
		}
		if !k.rotated(now, overlap, sure) {
			p.wrong(k.name, "rotate", a)
		}
		return
	}
}

// rotated notes what a rotation leaves, and reports whether it is what was asked for. One
// that was tried before, and perhaps done, may have ended what this one would have left.
func (k *shown) rotated(now keyInfo, overlap, sure bool) bool {
	left := func(s *secretShown) bool { return now.OldHint != nil && s.text[len(s.text)-4:] == *now.OldHint }
	last := len(k.secrets) - 1
	right := overlap == (now.OldHint != nil)
	for i, s := range k.secrets {
		stays := left(s)
		if sure && stays != (overlap && i == last) {
			right = false
		}
		s.ended = s.ended || !stays
	}
	k.secrets = append(k.secrets, &secretShown{text: now.Key})
	return right
}
