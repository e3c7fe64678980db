package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"sluice/config"
	"sluice/internal/store/memory"
	"sluice/internal/usage"
)

func newCheck(env environment) *cobra.Command {
	var path string
	var offline, strict bool
	cmd := &cobra.Command{
		Use:   "check --config FILE",
		Short: "Check the operator's file, as serve would read it",
		Long: `Read the operator's file by the same code as serve, and list every problem with
its file, line and field, and what to write instead. What is legal but unwise is a
warning. Redis and the nodes that a good file names are asked, for two seconds at
most, and what does not answer is a warning too, for serve starts without it.

Exit code 0: the file is good (warnings may be printed); 1: it is not, or with
--strict there is a warning.`,
		Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if path == "" {
				return usageError{errors.New("--config FILE is needed")}
			}
			c, err := loadConfig(path, env)
			if err != nil {
				return explain(env, err)
			}
			content, err := declared(c)
			if err == nil {
				_, err = memory.New(content)
			}
			if err != nil {
				return err
			}
			warnings, err := warningsOf(cmd.Context(), path, c, offline)
			for _, w := range warnings {
				_, _ = fmt.Fprintf(env.err, "warning: %s\n", w)
			}
			if err != nil {
				return fmt.Errorf("%s: %w", path, err)
			}
			if n := len(warnings); strict && n > 0 {
				return fmt.Errorf("%s: warnings, which --strict does not let pass: %d", path, n)
			}
			_, err = fmt.Fprintf(env.out, "%s: good: %d accounts, %d streams, %d keys, %d nodes\n",
				path, len(content.Accounts), len(content.Streams), len(content.Keys), len(c.Ursula.Nodes))
			return err
		},
	}
	cmd.Flags().StringVarP(&path, "config", "c", "", "the operator's file (YAML)")
	cmd.Flags().BoolVar(&offline, "offline", false, "connect to nothing")
	cmd.Flags().BoolVar(&strict, "strict", false, "take a warning for a problem")
	return cmd
}

// warningsOf lists what is legal but unwise in a file: in itself, and on this machine. The
// error is a problem that only this machine shows; the warnings before it are told all the same.
func warningsOf(ctx context.Context, path string, c *config.Config, offline bool) (all []string, err error) {
	for _, w := range c.Warnings(time.Now()) {
		all = append(all, w.String())
	}
	for _, w := range c.Crowded(descriptors()) {
		all = append(all, w.String())
	}
	unwise, err := checkTLS(c, time.Now())
	if err != nil {
		return all, err
	}
	for _, w := range unwise {
		all = append(all, path+": "+w)
	}
	if c.Usage.Export != "" {
		if err := usage.CheckFile(c.Usage.Export); err != nil {
			all = append(all, fmt.Sprintf("%s: %v; serve ends without it", path, noExport(err)))
		}
	}
	if !offline {
		for _, w := range unreached(ctx, c) {
			all = append(all, path+": "+w)
		}
	}
	return all, nil
}
