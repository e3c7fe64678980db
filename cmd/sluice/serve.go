package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"sync"
	"syscall"

	"github.com/spf13/cobra"
	"go.uber.org/zap"

	"sluice/config"
	"sluice/internal/telemetry"
)

func newServe(env environment) *cobra.Command {
	var path string
	cmd := &cobra.Command{
		Use:   "serve --config FILE",
		Short: "Run the gateway",
		Long: `Run the gateway as the operator's file says (docs/configuration.md).

Signals: HUP reloads the file, TERM and INT drain and stop, a second one cuts
what is left, USR2 has the program started anew take over. The log goes to standard error, one JSON object a line.`,
		Example: "  sluice check --config /etc/sluice.yaml && sluice serve --config /etc/sluice.yaml",
		Args:    noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if path == "" {
				return usageError{errors.New("--config FILE is needed")}
			}
			return serve(cmd.Context(), path, env)
		},
	}
	cmd.Flags().StringVarP(&path, "config", "c", "", "the operator's file (YAML)")
	return cmd
}

func serve(ctx context.Context, path string, env environment) error {
	source := config.NewSource(path, configOptions(env))
	c, err := source.Load()
	if err != nil {
		return explain(env, err)
	}
	handed, err := inherit(env.lookup)
	if err != nil {
		return err
	}
	program, err := thisProgram()
	if err != nil {
		return err
	}
	defer holdHeapFloor(env.lookup)()
	level := zap.NewAtomicLevel()
	lines := telemetry.NewQueue(env.err)
	defer lines.Close()
	log := telemetry.NewLogger(lines, level)
	// What libraries write to the standard logger becomes lines like all others.
	defer zap.RedirectStdLog(log)()
	//nolint:contextcheck // an App ends with Close
	app, err := newApp(appOptions{Config: c, Log: log, Level: level, Lost: lines.Dropped, Load: source.Load, Handed: handed})
	if err != nil {
		return err
	}
	defer app.Close() //nolint:contextcheck // the last uses of keys are written after whatever ended it
	log.Info("serving", zap.String("version", version()), zap.Stringer("admin", app.admin.Addr()), zap.Strings("listen", app.addresses()), zap.Int("pid", os.Getpid()))
	return app.serveUntilSignalled(ctx, &program, source)
}

func (a *App) addresses() []string {
	list := make([]string, 0, len(a.public))
	for _, l := range a.public {
		list = append(list, l.Addr().String())
	}
	return list
}

// serveUntilSignalled serves until ctx ends, the process is told to stop, or another one
// has taken over. Without a program none can; without a source no file is watched.
func (a *App) serveUntilSignalled(ctx context.Context, p *program, source *config.Source) error {
	// A log whose reader is gone must not end the process.
	signal.Ignore(syscall.SIGPIPE, syscall.SIGXFSZ) // a full pipe or disk is an error of the write
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, syscall.SIGHUP, syscall.SIGTERM, syscall.SIGINT, syscall.SIGUSR2)
	defer signal.Stop(signals)
	running, stop := context.WithCancel(ctx)
	defer stop()
	cut, cutNow := context.WithCancel(context.Background())
	defer cutNow()
	done := make(chan error, 1)
	go func() { done <- a.Serve(running, cut) }()
	// Apart from the signals, so that a file that cannot be read in time, or a program
	// that does not start, does not keep the process from being stopped.
	reloads, upgrades := make(chan struct{}, 1), make(chan struct{}, 1)
	go a.reloadEach(running, reloads)
	go a.watch(running, source)
	service, leaveService := context.WithCancel(context.Background())
	defer leaveService()
	go a.supervisor.watchdog(service, a.alive) //nolint:contextcheck // it lives while the process drains
	var upgrading sync.WaitGroup
	upgrading.Go(func() { a.upgradeEach(running, p, upgrades) })
	defer upgrading.Wait() // so that no process which nobody waits for is left
	defer stop()
	told := false
	for successor := a.successor; ; {
		select {
		case err := <-done:
			return err
		case <-successor:
			successor = nil
			leaveService()
			stop()
		case s := <-signals:
			switch {
			case s == syscall.SIGHUP:
				once(reloads) // one that waits already will read the same file
			case s == syscall.SIGUSR2:
				once(upgrades)
			case !told:
				told = true
				stop()
			default:
				cutNow()
			}
		}
	}
}

// once asks, where nobody has asked already.
func once(requests chan<- struct{}) {
	select {
	case requests <- struct{}{}:
	default:
	}
}

// alive returns where the app goes on.
func (a *App) alive() {
	a.mu.Lock()
	defer a.mu.Unlock()
}

// watch takes changes of the file up until ctx ends.
func (a *App) watch(ctx context.Context, source *config.Source) {
	if source == nil {
		return
	}
	w := watch{
		source: source, log: a.log, settle: watchSettle, poll: watchPoll,
		enabled: func() bool {
			a.mu.Lock()
			defer a.mu.Unlock()
			return a.config.Watch
		},
		reload: func(ctx context.Context) error {
			_, err := a.Reload(ctx) // it has logged the outcome
			return err
		},
	}
	w.run(ctx)
}

// reloadEach reloads once for each request of a channel, until ctx ends.
func (a *App) reloadEach(ctx context.Context, requests <-chan struct{}) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-requests:
			_, _ = a.Reload(ctx) // it has logged the outcome
		}
	}
}

// explain prints every problem of a configuration and says that it did.
func explain(env environment, err error) error {
	var invalid *config.Invalid
	if !errors.As(err, &invalid) {
		return err
	}
	for _, p := range invalid.Problems {
		_, _ = fmt.Fprintln(env.err, p)
	}
	return silentError{err}
}
