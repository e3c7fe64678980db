package main

import (
	"errors"
	"net"
	"sync"
	"time"

	"go.uber.org/zap"

	"sluice/config"
	"sluice/gateway"
	"sluice/internal/telemetry"
)

// Descriptors that are not for connections of clients and of requests to nodes:
const (
	// keptDescriptors are for the process itself: its standard streams and pollers, files
	// that are read, the export of usage, traces, issuers, an authority of certificates, an
	// upgrade's pipes and copies.
	keptDescriptors = 48
	// adminConnections bounds those to the admin listener; of more, one on which nothing
	// is asked makes room.
	adminConnections = 32
	// keptPerNode are a probe's and a question's, one in use and one kept.
	keptPerNode = 4
	// keptForStore are the pools of either database, with the files of SQLite.
	keptForStore = 32
	// keptPerRedis are the pool to each server, while it is replaced too.
	keptPerRedis = 8
	// keptForRedis are for the servers of a Cluster that the file does not name.
	keptForRedis = 16
)

const (
	// leastConnections are left to clients and to nodes however few descriptors there are:
	// a process that serves nobody is of no use, and what fails then is told.
	leastConnections = 8
	// mostConnections bounds what an unbounded process takes.
	mostConnections = 1 << 20
)

// share is how the descriptors of a process are shared out.
type share struct {
	clients, nodes int
	lowered        bool // the file asks for more clients than there can be
}

// shareOut shares out so many descriptors: what a configuration needs beside connections
// is kept. Of the rest one half is for clients and the other for nodes, since a request
// needs one of each, and over HTTP/2 requests need no more than the latter. A number of
// clients that the file gives leaves the rest to nodes, an eighth of it at the least.
func shareOut(c *config.Config, files uint64) share {
	if files == 0 || files > 2*mostConnections {
		files = 2 * mostConnections
	}
	kept := keptDescriptors + adminConnections + gateway.SurplusConnections + len(c.Listen) + 2 + keptPerNode*len(c.Ursula.Nodes)
	if c.Store.Configured() {
		kept += keptForStore
	}
	if c.Redis.Configured() {
		kept += keptForRedis + keptPerRedis*(1+len(c.Redis.Addrs))
	}
	room := max(int(files)-kept, 2*leastConnections)
	clients, most := c.Server.Connections, room-max(room/8, leastConnections)
	switch {
	case clients == 0:
		clients = room / 2
	case clients > most:
		return share{most, room - most, true}
	}
	return share{clients, room - clients, false}
}

// boundConnections puts the bounds of a configuration in force.
func (a *App) boundConnections(c *config.Config) {
	a.connections.Set(c.Server.ConnectionsPerAddress, c.TrustedProxies)
	s := shareOut(c, descriptors())
	a.connections.SetMost(s.clients)
	a.pool.SetMaxConnections(s.nodes)
	if s.lowered {
		a.log.Warn("server.connections is more than descriptors allow: raise LimitNOFILE (ulimit -n)",
			zap.Int("connections", s.clients), zap.Int("to_nodes", s.nodes), zap.Uint64("descriptors", descriptors()))
	}
}

// watchConnections bounds the admin listener, and has the log tell of what is not taken.
func (a *App) watchConnections() {
	a.operators.SetMost(adminConnections)
	l := &limitedLog{log: a.log, every: complainEvery, now: time.Now}
	a.connections.Notify(func(event string, cause error) {
		if event == gateway.EventTurnedAway {
			l.warn("as many connections of clients are open as may be; more are turned away",
				zap.Int64("open", a.connections.Open()), zap.Int64("bound", a.connections.Most()))
			return
		}
		l.warn("a connection cannot be taken; it is tried again", zap.Error(cause))
	})
	a.operators.Notify(func(event string, cause error) {
		if event == gateway.EventTurnedAway {
			l.warn("as many connections to the admin listener are in use as may be; more are closed", zap.Int("bound", adminConnections))
			return
		}
		l.warn("a connection to the admin listener cannot be taken; it is tried again", zap.Error(cause))
	})
}

// counted bounds the connections of a public listener, and ends TLS where the gateway
// does: one too many is told so in clear text, but not after a handshake.
func (a *App) counted(l net.Listener) net.Listener {
	if a.secure == nil {
		return a.secured(a.proxied(a.inTheClear(l)))
	}
	return a.secured(a.proxied(a.connections.Listener(l)))
}

// inTheClear counts the connections of l, on which HTTP is spoken. Behind a balancer that
// says first whose they are nothing can be told to those over the bound.
func (a *App) inTheClear(l net.Listener) net.Listener {
	if a.started.ProxyProtocol != config.ProxyOff {
		return a.connections.Listener(l)
	}
	return a.connections.Telling(l)
}

func (a *App) connectionGauges() error {
	gauge := func(name string, read func() int64) error {
		return telemetry.GaugeFunc(a.registry, name, func() float64 { return float64(read()) })
	}
	counter := func(name string, read func() int64) error {
		return telemetry.CounterFunc(a.registry, name, func() float64 { return float64(read()) })
	}
	return errors.Join(
		gauge("sluice_open_connections", a.connections.Open),
		gauge("sluice_connections_bound", a.connections.Most),
		counter("sluice_connections_turned_away_total", a.connections.TurnedAway),
		counter("sluice_admin_connections_turned_away_total", a.operators.TurnedAway),
		counter("sluice_accept_failures_total", func() int64 {
			return a.connections.AcceptFailures() + a.operators.AcceptFailures()
		}),
		gauge("sluice_upstream_connections", a.pool.Connections),
		gauge("sluice_upstream_connections_bound", a.pool.MaxConnections),
		counter("sluice_upstream_connections_short_total", a.pool.Short),
	)
}

// complainEvery is how often the log tells that something goes on happening.
const complainEvery = 10 * time.Second

// limitedLog writes each line once in a while, with how often there was cause for it
// since. It is safe for concurrent use, and is told of few different lines.
type limitedLog struct {
	log   *zap.Logger
	every time.Duration
	now   func() time.Time

	mu    sync.Mutex
	lines map[string]limitedLine
}

type limitedLine struct {
	at    time.Time
	times int // since then
}

func (l *limitedLog) warn(line string, fields ...zap.Field) {
	l.mu.Lock()
	last, now := l.lines[line], l.now()
	if !last.at.IsZero() && now.Sub(last.at) < l.every {
		l.lines[line] = limitedLine{last.at, last.times + 1}
		l.mu.Unlock()
		return
	}
	if l.lines == nil {
		l.lines = make(map[string]limitedLine)
	}
	l.lines[line] = limitedLine{at: now}
	l.mu.Unlock()
	l.log.Warn(line, append(fields, zap.Int("times", last.times+1))...)
}
