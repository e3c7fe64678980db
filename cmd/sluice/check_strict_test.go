package main

import (
	"path/filepath"
	"strings"
	"testing"
)

// With --strict a pipeline stops at what is legal and unwise; without it, it is told. The
// example has one such thing, the key for tokens, which everybody makes himself.
func TestCheckStrict(t *testing.T) {
	dir := t.TempDir()
	file := func(name, more string) string {
		path := filepath.Join(dir, name)
		writeFile(t, path, "origin: http://localhost:8080\nursula: {nodes: [\"http://127.0.0.1:1\"]}\n"+more)
		return path
	}
	// Where so many may be open there is nothing to say; config's own tests have all cases.
	held, notHeld := exitFailed, "LimitNOFILE"
	if n := descriptors(); n == 0 || n >= 2*900_000 {
		held, notHeld = exitDone, "good: "
	}
	good, unwise := file("good.yaml", ""), file("unwise.yaml", "tails: {heartbeat: 0s}\n")
	crowded := file("crowded.yaml", "accounts: [{id: acme, limits: {open_tails: 900000}}]\n")
	for name, tc := range map[string]struct {
		args string
		code int
		says []string
	}{
		"good":    {"--strict --config " + good, exitDone, []string{"good: 0 accounts"}},
		"unwise":  {"--config " + unwise, exitDone, []string{"warning: " + unwise + ":3: tails.heartbeat: ", "good: "}},
		"strict":  {"--strict --config " + unwise, exitFailed, []string{"warning: " + unwise + ":3: tails.heartbeat: ", "--strict does not let pass: 1"}},
		"crowded": {"--strict --config " + crowded, held, []string{notHeld}},
		"example": {"--config ../../deploy/example.yaml", exitDone, []string{"auth.signing_keys", "good: "}},
	} {
		code, out, errOut := command(t, nil, append([]string{"check", "--offline"}, strings.Fields(tc.args)...)...)
		for _, says := range tc.says {
			if code != tc.code || !strings.Contains(out+errOut, says) {
				t.Errorf("%s: exit %d: %s%s", name, code, out, errOut)
			}
		}
		if n := strings.Count(errOut, "warning: "); n > 1 || name == "good" && n > 0 {
			t.Errorf("%s: %d warnings: %s", name, n, errOut)
		}
	}
}
