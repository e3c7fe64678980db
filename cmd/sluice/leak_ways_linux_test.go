package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"

	h2 "golang.org/x/net/http2"
)

// tailGroup are tails that were asked for together: on one connection over HTTP/2, on one
// each over HTTP/1.1.
type tailGroup struct {
	conns []*rawConn
	ids   []uint32 // of each tail
}

// tails asks for n tails. It does not wait for them. On an error there is none.
func (d rawDialer) tails(ctx context.Context, n int, target, key string) (*tailGroup, error) {
	g := &tailGroup{}
	for i := range n {
		if i == 0 || !d.h2 {
			c, err := d.connect(ctx)
			if err != nil {
				g.close()
				return nil, err
			}
			g.conns = append(g.conns, c)
		}
		id, err := g.conns[len(g.conns)-1].ask(http.MethodGet, target, key)
		if err != nil {
			g.close()
			return nil, fmt.Errorf("ask: %w", err)
		}
		g.ids = append(g.ids, id)
	}
	return g, nil
}

func (g *tailGroup) close() {
	for _, c := range g.conns {
		_ = c.Close()
	}
}

// each does something to each tail.
func (g *tailGroup) each(do func(c *rawConn, id uint32) error) error {
	errs := make([]error, 0, len(g.ids))
	for i, id := range g.ids {
		errs = append(errs, do(g.conns[min(i, len(g.conns)-1)], id))
	}
	return errors.Join(errs...)
}

// answered waits for the heads, which have to have one of these statuses.
func (g *tailGroup) answered(statuses ...string) error {
	return g.each(func(c *rawConn, id uint32) error {
		got, err := c.head(id)
		if err == nil && !slices.Contains(statuses, got) {
			err = fmt.Errorf("status %q, want %v", got, statuses)
		}
		return err
	})
}

// begun waits for the first event of each.
func (g *tailGroup) begun() error {
	return errors.Join(g.answered("200"), g.each(func(c *rawConn, id uint32) error { return c.until(id, "streamNextOffset") }))
}

// over waits until each has ended as it has to: whole, and with a text; or else cut.
func (g *tailGroup) over(whole bool, text string) error {
	return g.each(func(c *rawConn, id uint32) error {
		got, inOrder, err := c.end(id)
		if err == nil && (inOrder != whole || !strings.Contains(got, text)) {
			err = fmt.Errorf("ended in order %t, want %t, and %q in %q", inOrder, whole, text, got)
		}
		return err
	})
}

// leaving is how clients leave.
type leaving struct {
	name string
	do   func(c *rawConn, ids []uint32) error // nil: it closes
}

func leavings() []leaving {
	return []leaving{
		{name: "closed"},
		{"streams reset", func(c *rawConn, ids []uint32) (err error) {
			if c.framer == nil {
				return nil
			}
			for _, id := range ids {
				err = errors.Join(err, c.framer.WriteRSTStream(id, h2.ErrCodeCancel))
			}
			return err
		}},
		{"connection reset", func(c *rawConn, _ []uint32) error { return errors.Join(c.tcp.SetLinger(0), c.tcp.Close()) }},
		{"gone away", func(c *rawConn, _ []uint32) error {
			if c.framer == nil {
				return nil
			}
			return c.framer.WriteGoAway(0, h2.ErrCodeNo, nil)
		}},
		{"half closed", func(c *rawConn, _ []uint32) error {
			half, ok := c.Conn.(interface{ CloseWrite() error })
			if !ok {
				return errors.New("no half of the connection can be closed")
			}
			if err := half.CloseWrite(); err != nil {
				return err
			}
			_, err := io.Copy(io.Discard, c.in) // until the other half is closed too
			return ignoreEnd(err)
		}},
	}
}

// leave leaves all tails in one way.
func (g *tailGroup) leave(l leaving) error {
	defer g.close()
	if l.do == nil {
		return nil
	}
	var errs []error
	for i, c := range g.conns {
		ids := g.ids
		if len(g.conns) > 1 {
			ids = g.ids[i : i+1]
		}
		errs = append(errs, l.do(c, ids))
	}
	return errors.Join(errs...)
}

// leakWay is a way in which tails come and go, tried by as many as a group has.
type leakWay struct {
	name string
	try  func(ctx context.Context, tr *leakTrial, d rawDialer, n int) error
}

const sseTail = "?offset=-1&live=sse"

func leakWays() []leakWay {
	var all []leakWay
	add := func(name string, try func(ctx context.Context, tr *leakTrial, d rawDialer, n int) error) {
		all = append(all, leakWay{name, try})
	}
	for _, l := range leavings() {
		add(l.name+" behind an event", func(ctx context.Context, tr *leakTrial, d rawDialer, n int) error {
			return tr.with(ctx, d, n, tr.r.edge.path("json")+sseTail, tr.r.Key, func(g *tailGroup) error {
				return errors.Join(g.begun(), g.leave(l))
			})
		})
		for stream, query := range map[string]string{"hang": sseTail, "poll": "?offset=now&live=long-poll&timeout_ms=60000"} {
			add(l.name+" before the head of "+stream, func(ctx context.Context, tr *leakTrial, d rawDialer, n int) error {
				id, came := tr.mark(n)
				return tr.with(ctx, d, n, tr.r.edge.path(stream)+query+"&cursor="+strconv.Itoa(id), tr.r.Key, func(g *tailGroup) error {
					for range n {
						select {
						case <-came:
						case <-ctx.Done():
							return errors.New("not all have come to the node")
						}
					}
					return g.leave(l)
				})
			})
		}
	}
	for name, w := range map[string]struct {
		path, key func(tr *leakTrial) string
		query     string
		statuses  []string
		then      func(g *tailGroup) error
	}{
		"the stream is closed":  {path: stream("closed"), query: sseTail, statuses: []string{"200"}, then: func(g *tailGroup) error { return g.over(true, "streamClosed") }},
		"the node cuts":         {path: stream("cut"), query: sseTail, statuses: []string{"200"}, then: func(g *tailGroup) error { return g.over(false, "") }},
		"the node cuts at once": {path: stream("gone"), query: sseTail, statuses: []string{"502", "503"}},
		"a long-poll's end":     {path: stream("json"), query: "?offset=now&live=long-poll&timeout_ms=1", statuses: []string{"204"}, then: func(g *tailGroup) error { return g.over(true, "") }},
		"no credential":         {path: stream("json"), key: none, query: sseTail, statuses: []string{"401"}},
		"an unknown key":        {path: stream("json"), key: func(tr *leakTrial) string { return tr.unknown }, query: sseTail, statuses: []string{"401"}},
		"a key of others":       {path: stream("json"), key: func(tr *leakTrial) string { return tr.narrow }, query: sseTail, statuses: []string{"403"}},
		"no such stream":        {path: stream("missing"), query: sseTail, statuses: []string{"404"}},
		"too many requests":     {path: func(tr *leakTrial) string { return tr.slow.path("json") }, key: func(tr *leakTrial) string { return tr.slow.key }, query: sseTail, statuses: []string{"200", "429"}},
		"too many tails":        {path: func(tr *leakTrial) string { return tr.few.path("json") }, key: func(tr *leakTrial) string { return tr.few.key }, query: sseTail, statuses: []string{"200", "429"}},
	} {
		add(name, func(ctx context.Context, tr *leakTrial, d rawDialer, n int) error {
			key := tr.r.Key
			if w.key != nil {
				key = w.key(tr)
			}
			return tr.with(ctx, d, n, w.path(tr)+w.query, key, func(g *tailGroup) error {
				err := g.answered(w.statuses...)
				if err == nil && w.then != nil {
					err = w.then(g)
				}
				return err
			})
		})
	}
	slices.SortFunc(all, func(a, b leakWay) int { return strings.Compare(a.name, b.name) })
	return append(all, oddWays()...)
}

func stream(name string) func(tr *leakTrial) string {
	return func(tr *leakTrial) string { return tr.r.edge.path(name) }
}

func none(*leakTrial) string { return "" }

// oddWays are those of connections that say what no library would.
func oddWays() []leakWay {
	var all []leakWay
	for name, text := range map[string]string{
		"HTTP/1.0":             "GET %s HTTP/1.0\r\nHost: x\r\nAuthorization: Bearer %s\r\n\r\n",
		"HEAD of a tail":       "HEAD %s HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\n\r\n",
		"a read behind it":     "GET %s HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\n\r\nGET / HTTP/1.1\r\nHost: x\r\n\r\n",
		"half a head":          "GET %s HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\n",
		"a tail that upgrades": "GET %s HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\nConnection: upgrade\r\nUpgrade: h2c\r\n\r\n",
	} {
		all = append(all, leakWay{name, func(ctx context.Context, tr *leakTrial, d rawDialer, n int) error {
			d.h2 = false
			for range n {
				c, err := d.connect(ctx)
				if err != nil {
					return err
				}
				if _, err = fmt.Fprintf(c, text, tr.r.edge.path("json")+sseTail, tr.r.Key); err == nil && name != "half a head" {
					_, err = c.in.ReadByte()
				}
				_ = c.Close()
				if err != nil {
					return err
				}
			}
			return nil
		}})
	}
	all = append(all, leakWay{"given up in the handshake", func(ctx context.Context, _ *leakTrial, d rawDialer, n int) error {
		d.secure = false
		for range n {
			c, _, err := d.dial(ctx)
			if err != nil {
				return err
			}
			_, err = c.Write([]byte{0x16, 3, 1, 1, 0, 1})
			_ = c.Close()
			if err != nil {
				return err
			}
		}
		return nil
	}})
	slices.SortFunc(all, func(a, b leakWay) int { return strings.Compare(a.name, b.name) })
	return all
}
