package gateway

import (
	"context"
	"fmt"
	"io"
	"strings"
	"sync/atomic"
	"testing"

	"sluice/internal/bubble"
	"sluice/internal/store/memory"
	"sluice/internal/tenant"
)

// A chain that is swapped in judges the tails that are open, by its own rules and
// directory; those that it allows do not notice. What befalls the old directory does
// not matter any more.
func TestSwapUnderTails(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		rg, nodes, l := bubbleTails(t, rigOptions{})
		c := l.clients(t)["h2"]
		ctx, leave := context.WithCancel(t.Context())
		defer leave()
		staying := follow(ctx, c, liveURL, rg.Keys["full"])
		first := <-nodes.opened
		going := follow(ctx, c, liveURL, rg.Keys["read"])
		second := <-nodes.opened
		next := rg.Content
		next.Keys = nil
		for _, k := range rg.Content.Keys {
			if k.ID != "acme/read" {
				next.Keys = append(next.Keys, k)
			}
		}
		directory, err := memory.New(next)
		if err != nil {
			t.Fatal(err)
		}
		for i := range 50 { // swaps of all else
			o := rg.Options
			o.Origins = []string{fmt.Sprint("https://", i, ".example.com")}
			rg.Gateway.Swap(o)
			if _, err := io.WriteString(first, fmt.Sprintf("data:%d\n\n", i)); err != nil {
				t.Fatal(err)
			}
		}
		bubble.Wait()
		if first.gone() || second.gone() {
			t.Fatal("a swap that changes no right has ended a tail")
		}
		o := rg.Options
		o.Directory, o.Authenticator = directory, newAuthenticator(directory)
		rg.Gateway.Swap(o)
		if got := <-going; got.text != credentialExpired || got.err != nil {
			t.Errorf("the tail of a key that is not in the new directory: %q %v", got.text, got.err)
		}
		if err := rg.Directory.RevokeKey("acme/full"); err != nil {
			t.Fatal(err)
		}
		bubble.Wait()
		if first.gone() {
			t.Error("a change of the old directory has ended a tail")
		}
		if err := directory.RevokeKey("acme/full"); err != nil {
			t.Fatal(err)
		}
		if got := <-staying; !strings.HasSuffix(got.text, "data:49\n\n"+credentialExpired) || got.err != nil {
			t.Errorf("a key that the new directory revokes: %q %v", got.text, got.err)
		}
	})
}

// Close ends the listening and no request; closed twice, and told of a change or
// swapped afterwards, a gateway starts nothing more.
func TestNothingIsHeardAfterClose(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		rg, nodes, l := bubbleTails(t, rigOptions{})
		ctx, leave := context.WithCancel(t.Context())
		tail := follow(ctx, l.clients(t)["h1"], liveURL, rg.Keys["read"])
		node := <-nodes.opened
		rg.Gateway.Close()
		rg.Gateway.Close()
		rg.Gateway.Swap(rg.Options)
		bubble.Wait()
		if err := rg.Directory.RevokeKey("acme/full"); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(node, "data:1\n\n"); err != nil {
			t.Errorf("the tail: %v", err)
		}
		if res := l.ask(t, rawGet("GET", "/acme/s.priv?live=sse", "Authorization: Bearer "+rg.Keys["full"])); res.StatusCode != 401 {
			t.Errorf("a request after Close: %d", res.StatusCode)
		}
		leave()
		<-tail
	})
}

// watchedDirectory counts who listens to it.
type watchedDirectory struct {
	tenant.Directory
	watchers *atomic.Int64
}

func (d watchedDirectory) Watch(changed func(tenant.Change)) (stop func()) {
	d.watchers.Add(1)
	end := d.Directory.Watch(changed)
	return func() {
		d.watchers.Add(-1)
		end()
	}
}

// A gateway listens to one directory, the one in force, once, until it is closed.
func TestWatchesTheDirectoryInForce(t *testing.T) {
	rg := newRig(t, rigOptions{noNodes: true})
	first, second := watchedDirectory{rg.Directory, new(atomic.Int64)}, watchedDirectory{rg.Directory, new(atomic.Int64)}
	o := rg.Options
	step := func(what string, directory tenant.Directory, wantFirst, wantSecond int64) {
		t.Helper()
		o.Directory = directory
		rg.Gateway.Swap(o)
		if a, b := first.watchers.Load(), second.watchers.Load(); a != wantFirst || b != wantSecond {
			t.Errorf("%s: %d listen to the first, %d to the second", what, a, b)
		}
	}
	step("swapped in", first, 1, 0)
	step("the same again", first, 1, 0)
	step("the other", second, 0, 1)
	step("back", first, 1, 0)
	rg.Gateway.Close()
	step("closed", first, 0, 0)
}
