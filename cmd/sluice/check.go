package main

import (
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"sluice/internal/store/memory"
	"sluice/internal/usage"
)

func newCheck(env environment) *cobra.Command {
	var path string
	var offline bool
	cmd := &cobra.Command{
		Use:   "check --config FILE",
		Short: "Check the operator's file, as serve would read it",
		Long: `Read the operator's file by the same code as serve, and list every problem with
its file, line and field, and what to write instead. Redis and the nodes that a
good file names are asked, for two seconds at most, and what does not answer is a
warning, for serve starts without it.

Exit code 0: the file is good (warnings may be printed); 1: it is not.`,
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
			for _, w := range c.Warnings(time.Now()) {
				_, _ = fmt.Fprintf(env.err, "warning: %s\n", w)
			}
			unwise, err := checkTLS(c, time.Now())
			if err != nil {
				return fmt.Errorf("%s: %w", path, err)
			}
			for _, w := range unwise {
				_, _ = fmt.Fprintf(env.err, "warning: %s: %s\n", path, w)
			}
			if c.Usage.Export != "" {
				if err := usage.CheckFile(c.Usage.Export); err != nil {
					_, _ = fmt.Fprintf(env.err, "warning: %s: %v; serve ends without it\n", path, noExport(err))
				}
			}
			if !offline {
				for _, w := range unreached(cmd.Context(), c) {
					_, _ = fmt.Fprintf(env.err, "warning: %s: %s\n", path, w)
				}
			}
			_, err = fmt.Fprintf(env.out, "%s: good: %d accounts, %d streams, %d keys, %d nodes\n",
				path, len(content.Accounts), len(content.Streams), len(content.Keys), len(c.Ursula.Nodes))
			return err
		},
	}
	cmd.Flags().StringVarP(&path, "config", "c", "", "the operator's file (YAML)")
	cmd.Flags().BoolVar(&offline, "offline", false, "connect to nothing")
	return cmd
}
