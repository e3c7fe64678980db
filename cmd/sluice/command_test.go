package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sluice/auth"
	"sluice/internal/tenant"
	"sluice/internal/ursulatest"
)

func standIn(t *testing.T) string {
	t.Helper()
	cluster := ursulatest.New(ursulatest.Options{})
	if err := cluster.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cluster.Close() })
	return cluster.URLs()[0]
}

// Exit codes are for scripts: 0 done, 1 refused or failed, 2 wrong use.
func TestExitCodes(t *testing.T) {
	dir := t.TempDir()
	bad := filepath.Join(dir, "bad.yaml")
	writeFile(t, bad, "origin: https://a.example\nursula: {nodes: [\"http://127.0.0.1:1\"]}\nlimits: {default: {burst: ten}}\nlistne: \":1\"\n")
	good := filepath.Join(dir, "good.yaml")
	writeFile(t, good, "origin: https://a.example\nursula: {nodes: [\"http://127.0.0.1:1\"]}\nadmin: {token: \"${TOKEN}\"}\n")
	for name, tc := range map[string]struct {
		args []string
		env  map[string]string
		code int
		out  []string
		err  []string
	}{
		"no command":       {nil, nil, exitDone, []string{"Usage:", "dev", "serve", "check"}, nil},
		"help":             {[]string{"serve", "--help"}, nil, exitDone, []string{"--config"}, nil},
		"version":          {[]string{"version"}, nil, exitDone, []string{"sluice "}, nil},
		"unknown command":  {[]string{"server"}, nil, exitUsage, nil, []string{`unknown command "server"`, `"serve"`}},
		"unknown flag":     {[]string{"check", "--confg", good}, nil, exitUsage, nil, []string{"--confg", "sluice check --help"}},
		"extra argument":   {[]string{"version", "now"}, nil, exitUsage, nil, []string{`"now"`}},
		"dev's listen":     {[]string{"dev", "--listen", "nonsense"}, nil, exitUsage, nil, []string{`--listen "nonsense"`}},
		"dev's admin":      {[]string{"dev", "--admin-listen", "127.0.0.1:x"}, nil, exitUsage, nil, []string{`--admin-listen "127.0.0.1:x"`}},
		"dev's node":       {[]string{"dev", "--ursula", "nonsense"}, nil, exitUsage, nil, []string{`--ursula "nonsense"`}},
		"dev's level":      {[]string{"dev", "--log-level", "loud"}, nil, exitUsage, nil, []string{"--log-level: "}},
		"completion":       {[]string{"completion", "bash"}, nil, exitDone, []string{"__start_sluice"}, nil},
		"completing":       {[]string{"__complete", "stream", "sh"}, nil, exitDone, []string{"show\t"}, nil},
		"a missing name":   {[]string{"stream", "show"}, nil, exitUsage, nil, []string{"NAME is missing", "sluice stream show --help"}},
		"no key":           {[]string{"stream", "list", "--url", "https://a.example"}, nil, exitUsage, nil, []string{"TONBO_API_KEY is not set"}},
		"unknown stream":   {[]string{"stream", "make"}, nil, exitUsage, nil, []string{"there is: stream append, "}},
		"unknown api-key":  {[]string{"api-key", "make"}, nil, exitUsage, nil, []string{"api-key generate"}},
		"no file named":    {[]string{"check"}, nil, exitUsage, nil, []string{"--config"}},
		"serve, no file":   {[]string{"serve"}, nil, exitUsage, nil, []string{"--config"}},
		"missing file":     {[]string{"check", "--config", filepath.Join(dir, "none.yaml")}, nil, exitFailed, nil, []string{"none.yaml"}},
		"bad file":         {[]string{"check", "--config", bad}, nil, exitFailed, nil, []string{"bad.yaml:3: limits.default.burst", "bad.yaml:4: listne", `listen`}},
		"serve a bad file": {[]string{"serve", "--config", bad}, nil, exitFailed, nil, []string{"bad.yaml:3:", "bad.yaml:4:"}},
		"good file":        {[]string{"check", "--offline", "--config", good}, map[string]string{"TOKEN": "abc"}, exitDone, []string{"good", "1 nodes"}, nil},
		"unset variable":   {[]string{"check", "--config", good}, nil, exitFailed, nil, []string{"good.yaml:3: admin.token", "TOKEN"}},
	} {
		t.Run(name, func(t *testing.T) {
			code, out, errOut := command(t, tc.env, tc.args...)
			if code != tc.code {
				t.Errorf("exit %d, want %d\nout %s\nerr %s", code, tc.code, out, errOut)
			}
			for _, h := range tc.out {
				if !strings.Contains(out, h) {
					t.Errorf("output lacks %q: %s", h, out)
				}
			}
			for _, h := range tc.err {
				if !strings.Contains(errOut, h) {
					t.Errorf("error output lacks %q: %s", h, errOut)
				}
			}
			if strings.Contains(out+errOut, "abc\"") {
				t.Error("the token is printed")
			}
		})
	}
}

func writeFile(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestGenerateKey(t *testing.T) {
	code, out, _ := command(t, nil, "api-key", "generate", "--json")
	var got struct{ Key, Digest, Hint string }
	if err := json.Unmarshal([]byte(out), &got); err != nil || code != exitDone {
		t.Fatalf("exit %d, %v: %s", code, err, out)
	}
	if err := auth.CheckKey(got.Key); err != nil {
		t.Errorf("%s: %v", got.Key, err)
	}
	if got.Digest != tenant.DigestOf(got.Key).String() || got.Hint != got.Key[len(got.Key)-4:] {
		t.Errorf("digest or hint of another key: %+v", got)
	}
	// The printed entry is one that the file takes.
	_, out, _ = command(t, nil, "api-key", "generate", "--name", "batch job")
	_, entry, _ := strings.Cut(out, "keys:\n")
	file := filepath.Join(t.TempDir(), "f.yaml")
	writeFile(t, file, "origin: https://a.example\nursula: {nodes: [\"http://127.0.0.1:1\"]}\naccounts:\n- id: acme\n  keys:\n"+entry)
	if code, out, errOut := command(t, nil, "check", "--offline", "--config", file); code != exitDone || !strings.Contains(out, "1 keys") {
		t.Errorf("exit %d: %s%s", code, out, errOut)
	}
}
