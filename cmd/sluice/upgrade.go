package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"
)

// upgradePatience is how long a new process may take until it is ready.
const upgradePatience = time.Minute

// program is how the process was started, so that the same can be started again: the
// path as it was called, since what it leads to is another file after an upgrade.
type program struct {
	path string
	args []string
}

// thisProgram is looked up at the start, while the folder and the path are those of then.
func thisProgram() (program, error) {
	path, err := exec.LookPath(os.Args[0])
	if err == nil {
		path, err = filepath.Abs(path)
	}
	return program{path: path, args: os.Args[1:]}, err
}

var (
	errAlone     = errors.New("this is process 1 of its container, which ends with it: start another container and stop this one")
	errNoProgram = errors.New("this command is not upgraded: stop it and start it anew")
	errNoSocket  = errors.New("a listener cannot be handed over")
)

// upgradeEach upgrades once for each request of a channel, until ctx ends or another
// process has taken over.
func (a *App) upgradeEach(ctx context.Context, p *program, requests <-chan struct{}) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-requests:
			pid, err := a.upgrade(ctx, p)
			if err != nil {
				a.log.Error("upgrade failed; this process goes on", zap.Error(err))
				continue
			}
			a.supervisor.follow(pid)
			a.log.Info("another process has taken over", zap.Int("pid", pid))
			close(a.successor)
			return
		}
	}
}

// upgrade starts the program anew, hands it all that this one holds, and waits until it
// serves. On an error there is no other process any more.
func (a *App) upgrade(ctx context.Context, p *program) (pid int, err error) {
	if p == nil {
		return 0, errNoProgram
	}
	if os.Getpid() == 1 {
		return 0, errAlone
	}
	a.log.Info("upgrading", zap.String("program", p.path))
	files, names, err := a.handOver()
	defer func() {
		for _, f := range files {
			_ = f.Close()
		}
	}()
	if err != nil {
		return 0, err
	}
	ready, tell, err := os.Pipe()
	if err != nil {
		return 0, err
	}
	defer func() { _ = ready.Close() }()
	files, names = append(files, tell), append(names, nameReady)
	list, err := json.Marshal(names)
	if err != nil {
		return 0, err
	}
	cmd := exec.CommandContext(context.WithoutCancel(ctx), p.path, p.args...) //nolint:gosec // this program
	cmd.Stdin, cmd.Stdout, cmd.Stderr, cmd.ExtraFiles = os.Stdin, os.Stdout, os.Stderr, files
	cmd.Env = append(environWithout(handedOverNames, "WATCHDOG_PID"), handedOverNames+"="+string(list))
	if err := cmd.Start(); err != nil {
		return 0, err
	}
	_ = tell.Close() // so that the end of the other process is the end of the pipe
	if err := awaitTold(ctx, ready); err != nil {
		_ = cmd.Process.Kill()
		if exit := cmd.Wait(); exit != nil {
			err = fmt.Errorf("%w (%w; its log says why)", err, exit)
		}
		return 0, err
	}
	pid = cmd.Process.Pid
	return pid, cmd.Process.Release()
}

var errNotReady = errors.New("the new process ended before it was ready")

// awaitTold waits until the other process writes that it serves.
func awaitTold(ctx context.Context, ready *os.File) error {
	ctx, cancel := context.WithTimeoutCause(ctx, upgradePatience, fmt.Errorf("the new process was not ready within %v", upgradePatience))
	defer cancel()
	defer context.AfterFunc(ctx, func() { _ = ready.SetReadDeadline(time.Unix(1, 0)) })()
	var one [1]byte
	switch _, err := io.ReadFull(ready, one[:]); {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case errors.Is(err, io.EOF):
		return errNotReady
	default:
		return err
	}
}

// handOver are copies of all that this process holds and the next one needs, with their
// names.
func (a *App) handOver() (files []*os.File, names []string, err error) {
	add := func(name string, l net.Listener) {
		f, dupErr := duplicate(l)
		if dupErr != nil {
			err = errors.Join(err, dupErr)
			return
		}
		files, names = append(files, f), append(names, name)
	}
	for i, l := range a.public {
		name := namePublic + fromSystemd
		if !a.activated.public {
			name = namePublic + a.started.Listen[i]
		}
		add(name, l)
	}
	if a.plain != nil {
		add(namePlain+addressOf(a.started.TLS.HTTPListen, a.activated.plain), a.plain)
	}
	add(nameAdmin+addressOf(a.started.Admin.Listen, a.activated.admin), a.admin)
	if a.stored != nil {
		if f, lockErr := a.stored.store.Claim(); lockErr != nil {
			err = errors.Join(err, lockErr)
		} else if f != nil {
			files, names = append(files, f), append(names, nameStore)
		}
	}
	return files, names, err
}

// addressOf is what stands for a listener's address in its name.
func addressOf(listen string, activated bool) string {
	if activated {
		return fromSystemd
	}
	return listen
}

// duplicate is a second descriptor of a listener's socket. It stays as it is, not
// blocking: the flag is the socket's, and so the first one's too.
func duplicate(l net.Listener) (*os.File, error) {
	s, ok := l.(syscall.Conn)
	if !ok {
		return nil, errNoSocket
	}
	raw, err := s.SyscallConn()
	if err != nil {
		return nil, err
	}
	var fd int
	var dupErr error
	if err := raw.Control(func(of uintptr) { fd, dupErr = unix.FcntlInt(of, unix.F_DUPFD_CLOEXEC, 0) }); err != nil {
		return nil, err
	}
	if dupErr != nil {
		return nil, dupErr
	}
	return os.NewFile(uintptr(fd), l.Addr().String()), nil
}

func environWithout(names ...string) []string {
	var kept []string
	for _, v := range os.Environ() {
		name, _, _ := strings.Cut(v, "=")
		if !slices.Contains(names, name) {
			kept = append(kept, v)
		}
	}
	return kept
}
