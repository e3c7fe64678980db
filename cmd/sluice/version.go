package main

import (
	"fmt"
	"runtime/debug"

	"github.com/spf13/cobra"
)

func newVersion(env environment) *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "Print the version and what it was built from", Args: noArguments,
		RunE: func(*cobra.Command, []string) error {
			_, err := fmt.Fprintln(env.out, version())
			return err
		},
	}
}

// version is what `sluice version` says.
func version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "sluice (unknown build)"
	}
	return "sluice " + release() + " " + info.GoVersion
}

// release is read from what the Go tool stamped into the binary.
func release() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "(unknown)"
	}
	revision, dirty := "", ""
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			revision = " " + s.Value[:min(12, len(s.Value))]
		case "vcs.modified":
			if s.Value == "true" {
				dirty = "+changes"
			}
		}
	}
	v := info.Main.Version
	if v == "" {
		v = "(devel)"
	}
	return v + revision + dirty
}
