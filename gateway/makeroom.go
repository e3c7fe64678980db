package gateway

import (
	"container/list"
	"net"
	"net/http"
	"sync"
)

// idleConns are the connections of a server on which it waits for a request, the one
// that has waited longest first.
type idleConns struct {
	mu    sync.Mutex
	all   list.List // of net.Conn
	where map[net.Conn]*list.Element
}

// MakeRoom has the bound of all connections close the one of s that has waited longest
// for a request, rather than turn a new one away. It is for a listener of few clients,
// whose tools leave connections behind; among many, whoever opens connections in a
// flood would take those of all others. It is called before s serves.
func (c *Connections) MakeRoom(s *http.Server) {
	idle := &idleConns{where: make(map[net.Conn]*list.Element)}
	c.idle.Store(idle)
	s.ConnState = idle.changed
}

func (i *idleConns) changed(conn net.Conn, state http.ConnState) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if state == http.StateIdle {
		i.where[conn] = i.all.PushBack(conn)
		return
	}
	if e, ok := i.where[conn]; ok {
		i.all.Remove(e)
		delete(i.where, conn)
	}
}

// closeOne reports whether there was one to close. A nil i has none.
func (i *idleConns) closeOne() bool {
	if i == nil {
		return false
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	e := i.all.Front()
	if e == nil {
		return false
	}
	conn, _ := i.all.Remove(e).(net.Conn)
	delete(i.where, conn)
	_ = conn.Close()
	return true
}
