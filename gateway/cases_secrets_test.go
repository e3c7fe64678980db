package gateway

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"net/http"
	"strings"
	"testing"

	"sluice/gateway/upstream"
	"sluice/internal/tenant"
)

// M02: keys came into logs, metrics and answers by every way that a request has.
// One key of each kind is sent by each, at debug level, and everything that the
// gateway says is searched. An answer repeats only a request id, which its own
// client chose; the log does not repeat even that.
func TestKeysAreNowhere(t *testing.T) {
	receiver, tracer := newTraces(t, 1)
	rg, u := newUpRig(t, func(c *upConn, r *upRequest) {
		switch {
		case strings.Contains(r.Target, "way=reset"):
			c.reset()
		case strings.Contains(r.Target, "way=bad"):
			c.say("HTTP/1.1 200 OK\r\nbad header tbo_\r\n\r\n")
		default:
			c.say(whole("200 OK", "", "fine"))
		}
	}, rigOptions{change: func(o *Options) { o.Tracer = tracer }})
	keys := []string{rg.Keys[key], rg.Keys["unknown"], rg.Keys["expired"], rg.Keys["other.full"]}
	said := &strings.Builder{}
	for _, k := range keys {
		basic := base64.StdEncoding.EncodeToString([]byte("user:" + k))
		requests := []string{
			rawGet("GET", "/acme/s.priv", "Authorization: Bearer "+k),
			rawGet("GET", "/acme/s.priv?way=reset", "Authorization: Bearer "+k),
			rawGet("GET", "/acme/s.priv?way=bad", "Authorization: Bearer "+k),
			rawGet("GET", "/acme/s.priv", "Authorization: "+k),
			rawGet("GET", "/acme/s.priv", "Authorization: Bearer "+k+" "+k),
			rawGet("GET", "/acme/s.priv", "Authorization: Basic "+basic),
			rawGet("GET", "/acme/s.priv", "Authorization: Bearer "+k, "Authorization: Bearer "+k),
			rawGet("GET", "/acme/s.pub?access_token="+k+"&secret="+k),
			rawGet("GET", "/acme/s.pub?live="+k),
			rawGet("GET", "/acme/s.pub?live=%zz"+k),
			rawGet("GET", "/acme/s.pub/"+k),
			rawGet("GET", "/acme/s.pub/snapshot/"+k),
			rawGet("GET", "/acme/s.pub;"+k),
			rawGet("GET", "/acme/s.pub/%74"+k[1:]),
			rawGet("GET", "/"+k+"/s.pub"),
			rawGet("GET", "/acme/s."+k),
			rawGet("GET", "/acme/s.x."+k+"~"),
			rawGet("GET", "/"+k),
			rawGet("GET", "http://user:"+k+"@gw/acme/s.pub"),
			rawGet(k, "/acme/s.pub"),
			rawGet("GET", "/acme/s.pub", "Cookie: key="+k),
			rawGet("GET", "/acme/s.pub", "Referer: http://x/?key="+k, "User-Agent: "+k, "Origin: http://"+k, "X-Forwarded-For: "+k),
			rawGet("GET", "/acme/s.pub", "Upgrade: "+k),
			rawGet("GET", "/acme/s.pub", "Traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "Tracestate: key="+k, "Baggage: key="+k),
			rawGet("GET", "/acme/s.pub", "Traceparent: "+k),
			"POST /acme/s.priv HTTP/1.1\r\nHost: " + k + "\r\nConnection: close\r\nAuthorization: Bearer " + k + "\r\nContent-Length: " + "44\r\n\r\n" + k,
			"POST /acme/s.priv HTTP/1.1\r\nHost: gw\r\nConnection: close\r\nAuthorization: Bearer " + rg.Keys[key] + "\r\nTransfer-Encoding: chunked\r\n\r\n" + k + "\r\n",
		}
		for _, request := range requests {
			said.WriteString(rg.raw(t, request))
		}
		// Its own answer says it, and no other.
		rg.raw(t, rawGet("GET", "/acme/s.pub", "X-Request-Id: "+k))
	}
	t.Run("panic", func(t *testing.T) {
		o := rg.Options
		o.Upstream = leaking{rg.Pool, rg.Keys[key]}
		rg.Gateway.Swap(o)
		said.WriteString(rg.raw(t, rawGet("GET", "/acme/s.priv", "Authorization: Bearer "+rg.Keys[key])))
		rg.awaitCount(t, "sluice_panics_total 1")
	})
	poll(t, "the access lines", func() bool { return strings.Contains(rg.Log.String(), `"end":"panic"`) })
	tracer.Close()
	if spans, faults := receiver.Spans(); len(spans) < len(keys) || faults != nil {
		t.Fatalf("%d spans came; %v", len(spans), faults)
	}
	for _, k := range keys {
		digest := sha256.Sum256([]byte(k))
		for where, text := range map[string]string{"log": rg.Log.String(), "metrics": rg.exposition(t), "answers": said.String(), "traces": receiver.Raw()} {
			for _, secret := range []string{k, k[4:], k[4:24], base64.StdEncoding.EncodeToString(digest[:]), base64.RawURLEncoding.EncodeToString(digest[:]), string(digest[:]), tenant.DigestOf(k).String()[7:], base64.StdEncoding.EncodeToString([]byte("user:" + k))[:40]} {
				if i := strings.Index(text, secret); i >= 0 {
					t.Errorf("the %s hold a key: …%s…", where, text[max(0, i-200):i])
				}
			}
		}
	}
	for _, r := range u.requests() {
		if r.Header.Get("Authorization") != "" || r.Header.Get("Cookie") != "" || r.Header.Get("X-Forwarded-For") != "" ||
			r.Header.Get("Tracestate") != "" || r.Header.Get("Baggage") != "" || strings.Contains(r.Header.Get("Traceparent"), "tbo_") {
			t.Errorf("the node got %q", r.Head)
		}
	}
	if !strings.Contains(rg.Log.String(), `"key_id":"acme/full"`) {
		t.Error("the log does not name the key by its id")
	}
}

// leaking breaks with what it had in hand.
type leaking struct {
	Upstream
	secret string
}

func (l leaking) Send(context.Context, *http.Request, upstream.Meta) (*http.Response, error) {
	panic("cannot send Authorization: Bearer " + l.secret)
}
