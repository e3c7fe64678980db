package gateway

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"sluice/auth"
	"sluice/gateway/upstream"
	"sluice/internal/bubble"
	"sluice/internal/tenant"
)

// bubbleTails is a gateway in a bubble before nodes whose live reads are fed.
func bubbleTails(t *testing.T, o rigOptions) (*rig, *liveNodes, *pipeListener) {
	t.Helper()
	nodes, change := newLiveNodes(), o.change
	o.limits = roomyTails
	o.change = func(opts *Options) {
		opts.Upstream = nodes
		if change != nil {
			change(opts)
		}
	}
	rg, _, l := newBubbleRig(t, o)
	return rg, nodes, l
}

// bubbleToken exchanges the key of that name over a connection in memory.
func bubbleToken(t *testing.T, rg *rig, l *pipeListener, keyName string, pairs ...string) string {
	t.Helper()
	body := exchangeForm(rg.Keys[keyName], pairs...).Encode()
	return l.ask(t, fmt.Sprintf("POST /v1/token HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: %s\r\nContent-Length: %d\r\n\r\n%s", formType, len(body), body)).exchanged(t).Token
}

// credentials that expire after lifetime, by their kind.
func expiring(t *testing.T, rg *rig, l *pipeListener, lifetime time.Duration) map[string]string {
	t.Helper()
	made := map[string]string{}
	made["key"] = rg.addKey(t, "dying", func(k *tenant.Key) { k.ExpiresAt = time.Now().Add(lifetime) })
	made["token"] = bubbleToken(t, rg, l, "full", "expires_in", fmt.Sprint(int(lifetime/time.Second)))
	return made
}

const liveURL = "http://gw/acme/s.priv?offset=now&live=sse"

// Facts E1, and a weakness of Ursula's own gateway: its last event lands inside an
// event of the node's. At every byte of a stream, with each line end, the credential
// expires; the node sends the rest 300 ms later. The client gets whole events, the
// last one byte for byte as facts §6 has it, and a clean end; at once where an event
// was whole, and with its end else.
func TestExpiryNeverSplitsAnEvent(t *testing.T) {
	const lifetime, late = 30 * time.Second, 300 * time.Millisecond
	events := "event: data\ndata:{\"n\":1}\ndata:\n\nevent: control\ndata:{}\n\n"
	streams := []string{events, strings.ReplaceAll(events, "\n", "\r\n"), strings.ReplaceAll(events, "\n", "\r")}
	for _, proto := range []string{"h1", "h2"} {
		for _, kind := range []string{"key", "token"} {
			t.Run(proto+" "+kind, func(t *testing.T) {
				bubble.Test(t, func(t *testing.T) {
					rg, nodes, l := bubbleTails(t, rigOptions{})
					credential, expiry := expiring(t, rg, l, lifetime)[kind], time.Now().Add(lifetime)
					c := l.clients(t)[proto]
					type tail struct {
						stream string
						offset int
						end    <-chan tailEnd
						node   *liveRead
					}
					var tails []tail
					for _, stream := range streams {
						for offset := range len(stream) + 1 {
							end := follow(t.Context(), c, liveURL, credential)
							tails = append(tails, tail{stream, offset, end, <-nodes.opened})
							go func(node *liveRead) {
								_, _ = io.WriteString(node, stream[:offset])
								time.Sleep(time.Until(expiry.Add(late)))
								_, _ = io.WriteString(node, stream[offset:])
							}(tails[len(tails)-1].node)
							if len(tails)%200 == 0 { // one HTTP/2 connection has 250 streams
								c.CloseIdleConnections()
								c = l.clients(t)[proto]
							}
						}
					}
					for _, tl := range tails {
						got := <-tl.end
						part, whole := shortest(tl.stream, tl.offset)
						ends := expiry
						if part != tl.stream[:tl.offset] {
							ends = expiry.Add(late)
						}
						if got.status != 200 || got.err != nil || got.text != part+credentialExpired || !whole || !got.at.Equal(ends) {
							t.Errorf("after %q: %d %q, %v, %s after the expiry; want %q", tl.stream[:tl.offset], got.status, got.text, got.err, got.at.Sub(expiry), part)
						}
					}
					bubble.Wait()
					for _, tl := range tails {
						if !tl.node.gone() {
							t.Errorf("%d: the node's exchange goes on", tl.offset)
						}
					}
					checkEnds(t, rg, "credential", len(tails))
				})
			})
		}
	}
}

// checkEnds checks how tails were booked, and that their slots are free. A cut one's
// client knows before the books do: the bubble comes to rest first.
func checkEnds(t *testing.T, rg *rig, end string, n int) {
	t.Helper()
	bubble.Wait()
	rg.awaitCount(t, fmt.Sprintf("sluice_answers_ended_total{end=%q} %d", end, n))
	lines := 0
	for _, line := range rg.requestLines(t) {
		if line["end"] == end && line["tail"] != nil {
			lines++
		}
	}
	if lines != n {
		t.Errorf("%d access lines end by %s, want %d", lines, end, n)
	}
	if open := rg.Limits.OpenTails(); open != 0 {
		t.Errorf("%d slots are taken", open)
	}
	rg.Gateway.open.mu.Lock()
	defer rg.Gateway.open.mu.Unlock()
	if all, due := len(rg.Gateway.open.all), len(rg.Gateway.open.due); all+due != 0 {
		t.Errorf("%d tails are known, %d are due", all, due)
	}
}

// An event whose rest never comes is cut after 5 s, with no clean end, which a
// client would take for the event's.
func TestExpiryCutsAnEventThatDoesNotEnd(t *testing.T) {
	for _, proto := range []string{"h1", "h2"} {
		for name, trickle := range map[string]time.Duration{"silent": 0, "trickles": 700 * time.Millisecond} {
			t.Run(proto+" "+name, func(t *testing.T) {
				bubble.Test(t, func(t *testing.T) {
					rg, nodes, l := bubbleTails(t, rigOptions{})
					expiry := time.Now().Add(30 * time.Second)
					end := follow(t.Context(), l.clients(t)[proto], liveURL, expiring(t, rg, l, 30*time.Second)["key"])
					node, fed := <-nodes.opened, make(chan struct{})
					go func() {
						defer close(fed)
						_, err := io.WriteString(node, "data:1\n\ndata:")
						for err == nil && trickle > 0 {
							time.Sleep(trickle)
							_, err = io.WriteString(node, "x")
						}
					}()
					got := <-end
					if !cutShort(got.err) || strings.Contains(got.text, "credential-expired") || !strings.HasPrefix(got.text, "data:1\n\ndata:") || !got.at.Equal(expiry.Add(eventTime)) {
						t.Errorf("%q, %v, %s after the expiry", got.text, got.err, got.at.Sub(expiry))
					}
					<-fed
					if !node.gone() {
						t.Error("the node's exchange goes on")
					}
					checkEnds(t, rg, "credential", 1)
				})
			})
		}
	}
}

// A client that does not read kept its tail, and what was held for it, for ever
// after its credential had ended. It is cut like any other.
func TestExpiryCutsAClientThatDoesNotRead(t *testing.T) {
	for _, proto := range []string{"h1", "h2"} {
		for name, event := range map[string]string{"whole events": "data:" + strings.Repeat("x", 5000) + "\n\n", "one event": strings.Repeat("data:x\n", 1000)} {
			t.Run(proto+" "+name, func(t *testing.T) {
				bubble.Test(t, func(t *testing.T) {
					rg, nodes, l := bubbleTails(t, rigOptions{change: func(o *Options) { o.Pace.TailWrite = time.Hour }})
					expiry := time.Now().Add(30 * time.Second)
					credential := expiring(t, rg, l, 30*time.Second)["token"]
					req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, liveURL, nil)
					if err != nil {
						t.Fatal(err)
					}
					req.Header.Set("Authorization", "Bearer "+credential)
					res, err := l.clients(t)[proto].Do(req)
					if err != nil {
						t.Fatal(err)
					}
					node := <-nodes.opened
					go func() {
						for err := error(nil); err == nil; {
							_, err = io.WriteString(node, event)
						}
					}()
					<-node.ended
					// Ended between two events, the node is left at once; the client has 5 s.
					if took := time.Since(expiry); took != 0 && took != eventTime {
						t.Errorf("the node's exchange ended %s after the expiry", took)
					}
					time.Sleep(time.Until(expiry.Add(eventTime)))
					bubble.Wait()
					checkEnds(t, rg, "credential", 1)
					if text, err := io.ReadAll(res.Body); !cutShort(err) {
						t.Errorf("the client read on: %d bytes, %v", len(text), err)
					}
					_ = res.Body.Close()
				})
			})
		}
	}
}

// A weakness of Ursula's own gateway: long-polls outlive their token. One that
// waits is 401 at its expiry, and the node's exchange is given up; one that is
// being answered is answered whole.
func TestExpiryEndsLongPolls(t *testing.T) {
	for _, proto := range []string{"h1", "h2"} {
		for _, kind := range []string{"key", "token"} {
			t.Run(proto+" "+kind, func(t *testing.T) {
				bubble.Test(t, func(t *testing.T) {
					rg, nodes, l := bubbleTails(t, rigOptions{})
					credential, expiry := expiring(t, rg, l, 30*time.Second)[kind], time.Now().Add(30*time.Second)
					end := follow(t.Context(), l.clients(t)[proto], "http://gw/acme/s.priv?offset=now&live=long-poll&timeout_ms=60000", credential)
					node := <-nodes.opened
					got := <-end
					if got.status != http.StatusUnauthorized || got.err != nil || !got.at.Equal(expiry) ||
						(answer{Text: got.text}).code() != "CREDENTIAL_EXPIRED" || got.header.Get("WWW-Authenticate") != challengeExpired {
						t.Errorf("%d %s %v, %s after the expiry", got.status, got.text, got.err, got.at.Sub(expiry))
					}
					bubble.Wait()
					if !node.gone() {
						t.Error("the node's exchange goes on")
					}
					if rg.Limits.OpenTails() != 0 {
						t.Error("its slot is taken")
					}
					rg.awaitCount(t, `sluice_refusals_total{code="CREDENTIAL_EXPIRED"} 1`)
				})
			})
		}
	}
}

// slowBody is a body that takes its time.
type slowBody struct {
	pieces int
	every  time.Duration
}

func (s *slowBody) Read(p []byte) (int, error) {
	if s.pieces == 0 {
		return 0, io.EOF
	}
	s.pieces--
	time.Sleep(s.every)
	return copy(p, "piece"), nil
}

func (*slowBody) Close() error { return nil }

// Facts E2, E3: a stranger's tail has no deadline, and a body that is no tail is
// whole though its credential expires on the way. Nothing else ends a tail that is
// silent for days either: over HTTP/2 the bound of a write, left on, did.
func TestExpiryEndsNothingElse(t *testing.T) {
	for _, proto := range []string{"h1", "h2"} {
		t.Run(proto, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				rg, nodes, l := bubbleTails(t, rigOptions{})
				nodes.body = func() io.ReadCloser { return &slowBody{60, time.Second} }
				credential := expiring(t, rg, l, 30*time.Second)["key"]
				c := l.clients(t)[proto]
				read := follow(t.Context(), c, "http://gw/acme/s.priv?offset=-1", credential)
				ctx, leave := context.WithCancel(t.Context())
				ends, open := map[string]<-chan tailEnd{}, map[string]*liveRead{}
				for name, ask := range map[string]func() <-chan tailEnd{
					"stranger": func() <-chan tailEnd { return follow(ctx, c, "http://gw/acme/s.pub?offset=now&live=sse", "") },
					"owner":    func() <-chan tailEnd { return follow(ctx, c, liveURL, rg.Keys[key]) },
				} {
					ends[name] = ask()
					open[name] = <-nodes.opened
				}
				if got := <-read; got.err != nil || got.status != 200 || got.text != strings.Repeat("piece", 60) {
					t.Errorf("a read: %d %q %v", got.status, got.text, got.err)
				}
				for range 2 {
					for name, n := range open {
						if _, err := io.WriteString(n, "data:1\n\n"); err != nil || n.gone() {
							t.Errorf("the tail of a %s: %v", name, err)
						}
					}
					time.Sleep(10 * 24 * time.Hour)
				}
				leave()
				for name, end := range ends {
					if got := <-end; got.text != "data:1\n\ndata:1\n\n" {
						t.Errorf("the tail of a %s: %q %v", name, got.text, got.err)
					}
				}
			})
		})
	}
}

// An answer that is no stream of events is none that could be ended between two:
// it is let through as it came.
func TestExpiryOfALongPollBeingAnswered(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		rg, _, l := bubbleTails(t, rigOptions{change: func(o *Options) { o.Upstream = slowAnswer{} }})
		credential := expiring(t, rg, l, 30*time.Second)["key"]
		got := <-follow(t.Context(), l.clients(t)["h1"], "http://gw/acme/s.priv?offset=now&live=long-poll", credential)
		if got.err != nil || got.status != 200 || got.text != strings.Repeat("piece", 60) {
			t.Errorf("%d %q %v", got.status, got.text, got.err)
		}
		bubble.Wait()
		rg.awaitCount(t, `sluice_answers_ended_total{end="whole"} 2`) // and the exchange
	})
}

// slowAnswer are nodes whose every answer takes its time.
type slowAnswer struct{ Upstream }

func (slowAnswer) Send(_ context.Context, r *http.Request, _ upstream.Meta) (*http.Response, error) {
	return &http.Response{StatusCode: 200, Header: http.Header{}, Request: r, ProtoMajor: 1, ProtoMinor: 1, ContentLength: -1, Body: &slowBody{60, time.Second}}, nil
}

func (slowAnswer) Identity() (upstream.Identity, error) {
	return upstream.Identity{}, upstream.ErrNotIdentified
}

func newAuthenticator(d tenant.Directory) *auth.Authenticator {
	return auth.New(auth.Options{Directory: d, Now: time.Now, Origin: rigOrigin})
}

func newExchanger(a *auth.Authenticator) *auth.Exchanger {
	return auth.NewExchanger(auth.ExchangeOptions{Authenticator: a})
}
