package main

import (
	"context"
	"net/http"
)

// What people find once all replicas are up again.

// checkStreams wants what was acknowledged to be there, by the API and by each replica's
// data path.
func (p *person) checkStreams(ctx context.Context) {
	for name, n := range p.names {
		a := p.owner(ctx, p.key, http.MethodGet, "/v1/streams/"+name, "")
		var is struct {
			State       string
			ContentType string `json:"content_type"`
		}
		if err := a.read(&is); err != nil {
			p.wrong(name, "look", a)
			continue
		}
		if !n.exists {
			if a.status != http.StatusNotFound {
				p.wrong(name, "look at what was deleted", a)
			}
			continue
		}
		if a.status != http.StatusOK || is.State != "active" || is.ContentType != n.contentType {
			p.wrong(name, "look at what was made", a)
			continue
		}
		for _, m := range p.replicas {
			one := *p.caller
			one.replicas = []*mortal{m}
			if a := one.settleRead(ctx, p.account, name, p.key); a.status != http.StatusOK || n.first != "" && string(a.text) != n.first {
				p.wrong(name, "read through "+m.URL, a)
			}
		}
	}
}

// checkKeys wants every secret that was shown to be good at every replica, unless what
// ended it was acknowledged: then at none.
func (p *person) checkKeys(ctx context.Context) {
	for _, m := range p.replicas {
		if !p.takes(ctx, p.account, p.key, m) {
			p.t.Errorf("the first key of %s does not work at %s", p.account, m.URL)
		}
		for _, k := range p.keys {
			for i, s := range k.secrets {
				if good := p.takes(ctx, p.account, s.text, m); good == s.ended {
					p.t.Errorf("secret %d of key %s (%s, ended: %t) works at %s: %t\n  %q", i+1, k.name, k.id, s.ended, m.URL, good, p.story[k.name])
				}
			}
		}
		for _, a := range p.gone {
			if p.takes(ctx, a.id, a.key, m) {
				p.t.Errorf("the key of the deleted account %s works at %s", a.id, m.URL)
			}
		}
	}
	for _, k := range p.keys {
		if is := p.lookFor(ctx, k.name); (is == nil) != k.revoked || (is != nil && is.ID != k.id) {
			p.t.Errorf("key %s, revoked: %t, is listed as %v\n  %q", k.name, k.revoked, is, p.story[k.name])
		}
	}
	for _, a := range p.gone {
		if got := p.operator(ctx, http.MethodGet, "/v1/accounts/"+a.id, ""); got.status != http.StatusNotFound {
			p.wrong(a.id, "look at a deleted account", got)
		}
	}
}

// checkNames wants every name to be free, or to be freed: each is deleted where it is
// there, and made anew. Of two who share names, one does it for those.
func (p *person) checkNames(ctx context.Context, shared bool) {
	if shared {
		for _, name := range contested() {
			a := p.owner(ctx, p.key, http.MethodGet, "/v1/streams/"+name, "")
			p.names[name] = &named{exists: a.status == http.StatusOK}
		}
	}
	for name, n := range p.names {
		if n.exists {
			p.deleteStream(ctx, name)
		}
		n.contentType, n.first = "application/x-ndjson", ""
		n.exists = p.createStream(ctx, p.key, name, n.contentType, int(settledWithin.Seconds()))
	}
	p.checkStreams(ctx)
}
