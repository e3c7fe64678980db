package main

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"sluice/internal/store"
)

// newStore is the group of commands about the store's files.
func newStore(env environment) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "store",
		Short: "Back up the store",
		Args:  noArguments,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newStoreBackup(env))
	return cmd
}

func newStoreBackup(env environment) *cobra.Command {
	var path string
	cmd := &cobra.Command{
		Use:   "backup --config FILE TO",
		Short: "Copy the SQLite store while the gateway serves from it",
		Long: `Copy the SQLite store that the operator's file names to the new file TO, as of one
moment: what was acknowledged before the command began is in it. The gateway goes
on meanwhile. Beside it comes TO.key, the sealing key, unless the file sets
auth.sealing_key. Keep both where nobody else reads them.

To restore, stop the gateway, put both files in place of the store's, remove its
-wal and -shm files, and start the gateway. docs/operations.md says what changes
that were made after the copy come to. A store in Postgres is copied by pg_dump.`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return usageError{errors.New("one new file to copy to is needed")}
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if path == "" {
				return usageError{errors.New("--config FILE is needed")}
			}
			c, err := loadConfig(path, env)
			if err != nil {
				return explain(env, err)
			}
			if !c.Store.Configured() {
				return fmt.Errorf("%s: there is no store.url: what the file declares is all there is", path)
			}
			if err := store.Backup(cmd.Context(), c.Store.URL.Reveal(), args[0]); err != nil {
				return err
			}
			_, err = fmt.Fprintf(env.out, "copied to %s\n", args[0])
			return err
		},
	}
	cmd.Flags().StringVar(&path, "config", "", "the operator's `FILE`")
	return cmd
}
