package gateway

import (
	"bufio"
	"context"
	"io"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"sluice/internal/bubble"
	"sluice/internal/store/memory"
	"sluice/internal/tenant"
)

// A clock that is put back made an expiry's timer fire early, and a key whose
// expiry was moved ended its tails at the old one. What counts is the credential as
// it stands then.
func TestExpiryThatMoved(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		rg, nodes, l := bubbleTails(t, rigOptions{})
		start := time.Now()
		credential := expiring(t, rg, l, 30*time.Second)["key"]
		end := follow(t.Context(), l.clients(t)["h1"], liveURL, credential)
		node := <-nodes.opened
		move := func(to time.Time) {
			rg.replace(t, func(c *memory.Content) { c.Keys[len(c.Keys)-1].ExpiresAt = to })
		}
		time.Sleep(20 * time.Second)
		move(start.Add(time.Hour)) // grants more: nobody is told
		time.Sleep(20 * time.Second)
		if _, err := io.WriteString(node, "data:1\n\n"); err != nil {
			t.Fatalf("at the old expiry: %v", err)
		}
		move(start.Add(2 * time.Minute)) // grants less: everybody is
		if got := <-end; got.text != "data:1\n\n"+credentialExpired || got.at.Sub(start) != 2*time.Minute {
			t.Errorf("%q after %s, want the end after 2 minutes", got.text, got.at.Sub(start))
		}
	})
}

// sealedDirectory is one that cannot tell of keys while it is shut.
type sealedDirectory struct {
	tenant.Directory
	shut *atomic.Bool
}

func (d sealedDirectory) Key(ctx context.Context, digest tenant.Digest) (*tenant.Key, error) {
	if d.shut.Load() {
		return nil, tenant.ErrUnavailable
	}
	return d.Directory.Key(ctx, digest)
}

func (d sealedDirectory) SigningKeys(ctx context.Context) ([]tenant.SigningKey, error) {
	if d.shut.Load() {
		return nil, tenant.ErrUnavailable
	}
	return d.Directory.SigningKeys(ctx)
}

// While it cannot be told whether a credential stands, its tails go on, but not
// past the expiry that it had: an outage made them immortal. What was revoked
// meanwhile ends within a second of the outage's end.
func TestExpiryInAnOutage(t *testing.T) {
	for _, kind := range []string{"key", "token"} {
		t.Run(kind, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				var shut atomic.Bool
				rg, nodes, l := bubbleTails(t, rigOptions{change: func(o *Options) {
					sealed := sealedDirectory{o.Directory, &shut}
					o.Directory = sealed
					o.Authenticator = newAuthenticator(sealed)
					o.Exchanger = newExchanger(o.Authenticator)
				}})
				expiry := time.Now().Add(30 * time.Second)
				c := l.clients(t)["h1"]
				dying := follow(t.Context(), c, liveURL, expiring(t, rg, l, 30*time.Second)[kind])
				dyingNode := <-nodes.opened
				revoked := follow(t.Context(), c, liveURL, map[string]string{"key": rg.Keys["read"], "token": bubbleToken(t, rg, l, "read")}[kind])
				<-nodes.opened
				time.Sleep(time.Second)
				shut.Store(true)
				rg.Gateway.Recheck()
				if err := rg.Directory.RevokeKey("acme/read"); err != nil {
					t.Fatal(err)
				}
				time.Sleep(28 * time.Second)
				if dyingNode.gone() {
					t.Error("a tail has ended though nobody said so")
				}
				if got := <-dying; got.text != credentialExpired || !got.at.Equal(expiry) {
					t.Errorf("%q %v, %s after the expiry", got.text, got.err, got.at.Sub(expiry))
				}
				time.Sleep(time.Minute)
				shut.Store(false)
				open := time.Now()
				if got := <-revoked; got.text != credentialExpired || got.at.Sub(open) > time.Second {
					t.Errorf("revoked in the outage: %q %v, %s after its end", got.text, got.err, got.at.Sub(open))
				}
			})
		})
	}
}

// Over HTTP/1.1 a connection whose tail has ended carries the next request, under
// no deadline of the last.
func TestConnectionGoesOnAfterATail(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		rg, nodes, l := bubbleTails(t, rigOptions{})
		nodes.body = func() io.ReadCloser { return &slowBody{20, time.Second} }
		conn := l.dial()
		defer func() { _ = conn.Close() }()
		br := bufio.NewReader(conn)
		ask := func(path, credential string) *http.Response {
			t.Helper()
			go func() {
				_, _ = io.WriteString(conn, "GET "+path+" HTTP/1.1\r\nHost: x\r\n"+bearer(credential)+"\r\n")
			}()
			res, err := http.ReadResponse(br, &http.Request{Method: http.MethodGet})
			if err != nil {
				t.Fatal(err)
			}
			return res
		}
		res := ask("/acme/s.priv?live=sse", expiring(t, rg, l, 30*time.Second)["token"])
		if text, err := io.ReadAll(res.Body); err != nil || string(text) != credentialExpired || res.Close {
			t.Fatalf("the tail: %q %v, close %t", text, err, res.Close)
		}
		_ = res.Body.Close()
		res = ask("/acme/s.priv?offset=-1", rg.Keys[key])
		if text, err := io.ReadAll(res.Body); err != nil || len(text) != 100 {
			t.Errorf("the read behind it: %q %v", text, err)
		}
		_ = res.Body.Close()
	})
}
