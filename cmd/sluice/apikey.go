package main

import (
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"sluice/auth"
	"sluice/config"
	"sluice/internal/tenant"
)

func newGenerate(env environment) *cobra.Command {
	var asJSON bool
	var name string
	cmd := &cobra.Command{
		Use:   "generate",
		Short: "Make a key and its digest for the operator's file, offline",
		Long: `Make a new API key and print it with the entry for the operator's file.

The key itself is shown here once and kept nowhere: give it to whoever will use
it. The file holds its digest only, which nobody can use as a key.`,
		Example: "  sluice api-key generate --name ci",
		Args:    noArguments,
		RunE: func(*cobra.Command, []string) error {
			if err := checkKeyName(name); err != nil {
				return usageError{err}
			}
			key, err := auth.GenerateKey(rand.Reader)
			if err != nil {
				return fmt.Errorf("no randomness: %w", err)
			}
			digest := tenant.DigestOf(key.Reveal()).String()
			if asJSON {
				return json.NewEncoder(env.out).Encode(map[string]string{"name": name, "key": key.Reveal(), "digest": digest, "hint": auth.Hint(key.Reveal())})
			}
			_, err = fmt.Fprintf(env.out, `TONBO_API_KEY=%s

For the operator's file, under the account's keys:
  - {name: %q, digest: %q}
`, key.Reveal(), name, digest)
			return err
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON: name, key, digest, hint")
	cmd.Flags().StringVar(&name, "name", "ci", "the key's name in the printed entry")
	return cmd
}

// checkKeyName holds the name to what the operator's file takes.
func checkKeyName(name string) error {
	text := fmt.Sprintf("origin: https://a.example\nursula: {nodes: [\"http://a.example:1\"]}\naccounts:\n- id: acme\n  keys: [{name: %q, digest: %q}]\n",
		name, tenant.DigestOf(name))
	_, err := config.Parse("name", []byte(text), config.Options{Grammar: grammar()})
	if err != nil {
		return errors.New("--name: 1 to 100 bytes, no control characters, no space at either end")
	}
	return nil
}
