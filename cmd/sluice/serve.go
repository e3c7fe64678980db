package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
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
what is left. The log goes to standard error, one JSON object a line.`,
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
	load := func() (*config.Config, error) { return loadConfig(path, env) }
	c, err := load()
	if err != nil {
		return explain(env, err)
	}
	defer holdHeapFloor(env.lookup)()
	level := zap.NewAtomicLevel()
	lines := telemetry.NewQueue(env.err)
	defer lines.Close()
	log := telemetry.NewLogger(lines, level)
	// What libraries write to the standard logger becomes lines like all others.
	defer zap.RedirectStdLog(log)()
	//nolint:contextcheck // an App ends with Close
	app, err := newApp(appOptions{Config: c, Log: log, Level: level, Lost: lines.Dropped, Load: load})
	if err != nil {
		return err
	}
	defer app.Close()
	log.Info("serving", zap.String("version", version()), zap.Stringer("admin", app.admin.Addr()), zap.Strings("listen", app.addresses()))
	return app.serveUntilSignalled(ctx)
}

func (a *App) addresses() []string {
	list := make([]string, 0, len(a.public))
	for _, l := range a.public {
		list = append(list, l.Addr().String())
	}
	return list
}

// serveUntilSignalled serves until ctx ends or the process is told to stop.
func (a *App) serveUntilSignalled(ctx context.Context) error {
	// A log whose reader is gone must not end the process.
	signal.Ignore(syscall.SIGPIPE, syscall.SIGXFSZ) // a full pipe or disk is an error of the write
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, syscall.SIGHUP, syscall.SIGTERM, syscall.SIGINT)
	defer signal.Stop(signals)
	running, stop := context.WithCancel(ctx)
	defer stop()
	cut, cutNow := context.WithCancel(context.Background())
	defer cutNow()
	done := make(chan error, 1)
	go func() { done <- a.Serve(running, cut) }()
	// Apart from the signals, so that a file that cannot be read in time does not
	// keep the process from being stopped.
	reloads := make(chan struct{}, 1)
	go a.reloadEach(running, reloads)
	for {
		select {
		case err := <-done:
			return err
		case s := <-signals:
			switch {
			case s == syscall.SIGHUP:
				select {
				case reloads <- struct{}{}:
				default: // one is waiting already, and will read the same file
				}
			case running.Err() == nil:
				stop()
			default:
				cutNow()
			}
		}
	}
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
