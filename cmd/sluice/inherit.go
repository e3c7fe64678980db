package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"syscall"

	"github.com/coreos/go-systemd/v22/activation"
)

// handedOverNames says which open files a process has been given by the one that it takes
// over from, from firstHanded on: a JSON list of names. It is not for people.
const (
	handedOverNames = "SLUICE_HANDED_OVER"
	firstHanded     = 3
)

// The names of what is handed over. A listener's is followed by the address that the
// file had for it.
const (
	namePublic = "public="
	nameAdmin  = "admin="
	namePlain  = "plain="
	nameStore  = "store"
	nameReady  = "ready"
)

// fromSystemd stands in place of an address for a socket that systemd has opened. What
// the file says of its listener does not matter then. A socket of systemd that is called
// "admin" is the admin listener, one that is called "http" that of plain HTTP beside TLS,
// every other one is public.
const fromSystemd = "systemd"

// inheritance is what a process has been given by whoever started it: the listeners that
// stand already, and with them what belongs to the process that it takes over from. The
// zero value is nothing.
type inheritance struct {
	listeners []handedListener
	store     *os.File // the claim to a SQLite file
	tell      *os.File // written to once this process serves
}

type handedListener struct {
	net.Listener

	name string
}

// inherit takes over what the process was started with; lookup reads its environment.
func inherit(lookup func(string) (string, bool)) (*inheritance, error) {
	h := &inheritance{}
	text, ok := lookup(handedOverNames)
	if !ok {
		for _, f := range activation.Files(true) {
			name := namePublic + fromSystemd
			switch f.Name() {
			case "admin":
				name = nameAdmin + fromSystemd
			case "http":
				name = namePlain + fromSystemd
			}
			if err := h.listen(name, f); err != nil {
				return nil, fmt.Errorf("the socket %q of systemd: %w", f.Name(), err)
			}
		}
		return h, nil
	}
	var names []string
	err := errors.Join(json.Unmarshal([]byte(text), &names), os.Unsetenv(handedOverNames))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", handedOverNames, err)
	}
	for i, name := range names {
		syscall.CloseOnExec(firstHanded + i)
		f := os.NewFile(uintptr(firstHanded+i), name)
		switch name {
		case nameStore:
			h.store = f
		case nameReady:
			h.tell = f
		default:
			if err := h.listen(name, f); err != nil {
				return nil, fmt.Errorf("take %s over: %w", name, err)
			}
		}
	}
	return h, nil
}

func (h *inheritance) listen(name string, f *os.File) error {
	defer func() { _ = f.Close() }()
	l, err := net.FileListener(f)
	if err != nil {
		return err
	}
	if tcp, ok := l.(*net.TCPListener); ok {
		l = keptAlive{tcp}
		if raw, err := tcp.SyscallConn(); err == nil {
			_ = clientSocket("", "", raw) // one of Multipath TCP has no such options
		}
	}
	h.listeners = append(h.listeners, handedListener{l, name})
	return nil
}

// keptAlive looks after the connections of a listener that was not opened here.
type keptAlive struct{ *net.TCPListener }

// Accept implements net.Listener.
func (l keptAlive) Accept() (net.Conn, error) {
	c, err := l.AcceptTCP()
	if err != nil {
		return nil, err
	}
	_ = c.SetKeepAliveConfig(clientKeepAlive) // without it a vanished client is found later
	return c, nil
}

// take gives the listeners of that name on; there is one for an address, and any number
// of systemd's.
func (h *inheritance) take(name string) (found []net.Listener) {
	if h == nil {
		return nil
	}
	left := h.listeners[:0]
	for _, l := range h.listeners {
		if l.name == name && (len(found) == 0 || name == namePublic+fromSystemd) {
			found = append(found, l.Listener)
		} else {
			left = append(left, l)
		}
	}
	h.listeners = left
	return found
}

// claim is the process' hold on a SQLite file; nil for none.
func (h *inheritance) claim() *os.File {
	if h == nil {
		return nil
	}
	return h.store
}

// waited reports whether another process waits for this one to be ready.
func (h *inheritance) waited() bool { return h != nil && h.tell != nil }

// ready tells the process before that this one serves.
func (h *inheritance) ready() {
	if h.waited() {
		_, _ = h.tell.WriteString("ready\n")
		_ = h.tell.Close()
		h.tell = nil
	}
}

// close closes what nobody has taken: addresses that the file does not name any more.
func (h *inheritance) close() {
	if h == nil {
		return
	}
	for _, l := range h.listeners {
		_ = l.Close()
	}
	h.listeners = nil
	if h.store != nil {
		_ = h.store.Close()
		h.store = nil
	}
}
