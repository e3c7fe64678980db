package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
	"go.uber.org/zap"
)

// supervisor is the systemd that has started the process, where one has: sd_notify(3).
// Where none is listening it does nothing.
type supervisor struct{ log *zap.Logger }

// notifyPatience is how long one that does not read, as while it reloads itself, may hold
// up what it is told of: a reload, a stop, an upgrade.
const notifyPatience = 5 * time.Second

func (s supervisor) tell(state string) {
	address := os.Getenv("NOTIFY_SOCKET")
	if address == "" {
		return
	}
	if err := notify(address, state); err != nil {
		s.log.Warn("systemd could not be told", zap.Error(err))
	}
}

// notify is daemon.SdNotify, but for the deadline.
func notify(address, state string) error {
	conn, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: address, Net: "unixgram"})
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	if err := conn.SetWriteDeadline(time.Now().Add(notifyPatience)); err != nil {
		return err
	}
	_, err = conn.Write([]byte(state))
	return err
}

func (s supervisor) ready()    { s.tell(daemon.SdNotifyReady) }
func (s supervisor) stopping() { s.tell(daemon.SdNotifyStopping) }

// reloading goes before ready, once the reload is over; the time is for Type=notify-reload.
func (s supervisor) reloading() {
	s.tell(daemon.SdNotifyReloading + "\n" + daemon.SdNotifyMonotonicUsec())
}

// follow makes another process the service's own. Only the one that is may say so.
func (s supervisor) follow(pid int) { s.tell(fmt.Sprintf("MAINPID=%d\n%s", pid, daemon.SdNotifyReady)) }

// watchdog tells systemd that the process is alive, as often as its WatchdogSec= asks,
// until ctx ends. alive does not return where it is not.
func (s supervisor) watchdog(ctx context.Context, alive func()) {
	every, err := daemon.SdWatchdogEnabled(false)
	if err != nil {
		s.log.Warn("WATCHDOG_USEC is not understood", zap.Error(err))
	}
	if every <= 0 {
		return
	}
	tick := time.NewTicker(every / 2)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			alive()
			s.tell(daemon.SdNotifyWatchdog)
		case <-ctx.Done():
			return
		}
	}
}
