package main

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
)

// check called a file good whose usage.export lies in no folder, or is one; serve ended with
// the system's words alone.
func TestExportThatCannotBeWritten(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "sluice.yaml")
	for export, says := range map[string]string{
		filepath.Join(dir, "none", "usage.jsonl"): "no such file or directory",
		dir:                                "is no regular file",
		filepath.Join(file, "usage.jsonl"): "is no folder",
		filepath.Join(dir, "usage.jsonl"):  "",
	} {
		text := fmt.Sprintf("listen: \"127.0.0.1:0\"\nadmin: {listen: \"127.0.0.1:0\"}\norigin: http://localhost:8080\n"+
			"ursula: {nodes: [\"http://127.0.0.1:1\"]}\nusage: {export: %q}\n", export)
		writeFile(t, file, text)
		code, _, errOut := command(t, nil, "check", "--offline", "--config", file)
		if code != exitDone || !strings.Contains(errOut, says) || strings.Contains(errOut, "usage.export: ") != (says != "") {
			t.Errorf("check of %s: exit %d: %s", export, code, errOut)
		}
		if says == "" {
			continue
		}
		code, _, errOut = command(t, nil, "serve", "--config", file)
		if code != exitFailed || !strings.Contains(errOut, "usage.export: ") || !strings.Contains(errOut, "a folder that is there") {
			t.Errorf("serve with %s: exit %d: %s", export, code, errOut)
		}
	}
}
