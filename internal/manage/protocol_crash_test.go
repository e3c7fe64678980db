package manage

import (
	"net/http"
	"testing"
	"time"

	"sluice/internal/bubble"
)

// deed is a PUT or DELETE of a client at the stream's own URL.
type deed struct{ method, contentType, body string }

func putting(contentType, body string) deed { return deed{http.MethodPut, contentType, body} }

func deleting() deed { return deed{method: http.MethodDelete} }

// act does each deed until it is done or the process is dead, as clients repeat. It returns
// what the last one leaves, and whether that is known.
func (g *rig) act(deeds []deed, i *injector) (last deed, known bool) {
	for _, last = range deeds {
		done := false
		for range 120 {
			got := g.client(last.method, "events", last.contentType, last.body)
			if i.ended() {
				return last, false
			}
			if done = last.done(got); done {
				break
			}
			if got.status != 0 && got.status < 500 && got.header.Get("Retry-After") == "" {
				g.tb.Errorf("%s: %d %s", last.method, got.status, got.body)
			}
			time.Sleep(time.Second)
		}
		if !done {
			g.tb.Errorf("%s was never done", last.method)
			return last, false
		}
		// What was answered is what is, there and then.
		if in := g.inUrsula("events"); (in != "") != (last.method == http.MethodPut) {
			g.tb.Errorf("%s was answered, and Ursula has %q", last.method, in)
		}
		if last.method == http.MethodPut && g.content("events") != last.body {
			g.tb.Errorf("the first body is %q, want %q", g.content("events"), last.body)
		}
	}
	return last, true
}

func (d deed) done(got answered) bool {
	if d.method == http.MethodDelete {
		return got.status == http.StatusNoContent || got.status == http.StatusNotFound
	}
	return got.status == http.StatusCreated || got.status == http.StatusOK
}

func deeds() map[string][]deed {
	json, text := putting("application/json", "{\"n\":1}\n"), putting("text/plain", "hello")
	return map[string][]deed{
		"another":  {json, deleting(), text},
		"the same": {text, text, deleting(), text, deleting()},
	}
}

// A process that dies at any step between what is written down of a client's PUT or DELETE
// and the node leaves nothing on one side only, no name stuck, and nothing that was answered
// undone: the first body is there once, and a stream that was deleted does not come up again
// by a PUT that is late. The same where it goes on, and only that step is lost, not answered,
// or takes effect late.
func TestClientsFaultAtEveryStep(t *testing.T) { atEveryStep(t, deeds(), clientFaultAt) }

// clientFaultAt does the deeds in a process with a fault, and then in one without looks that
// all is well.
func clientFaultAt(t *testing.T, script []deed, i *injector) {
	bubble.Test(t, func(t *testing.T) {
		g := newRig(t)
		g.options.Reconciler.Close() // it has only made the account
		first := g.process("first", i)
		t.Cleanup(func() { first.options.Reconciler.Close() })
		last, known := first.act(script, i)
		if i.ends {
			first.options.Reconciler.Close()
			g = g.process("second", &injector{})
			t.Cleanup(func() { g.options.Reconciler.Close() })
		}
		time.Sleep(settled)
		exists := g.agree("events")
		if wanted := last.method == http.MethodPut; known && exists != wanted {
			t.Errorf("the stream exists: %t, after the last answer: %t", exists, wanted)
		}
		if exists && known && g.content("events") != last.body {
			t.Errorf("it holds %q, want %q", g.content("events"), last.body)
		}
		again := g
		if !i.ends {
			again = first
		}
		if !known {
			// Whoever repeats finds the first body there, as it was sent.
			again.act([]deed{last}, &injector{})
		}
		// The name is nobody's for ever, in either way.
		again.act([]deed{deleting(), putting("application/octet-stream", "x"), deleting()}, &injector{})
		again.play([]wish{create("application/x-ndjson")}, &injector{})
		time.Sleep(time.Minute)
		if !g.agree("events") || g.row("events").ContentType != "application/x-ndjson" {
			t.Errorf("the name cannot be used again: %v", g.row("events"))
		}
		if t.Failed() {
			t.Logf("steps: %v", i.seen())
		}
	})
}
