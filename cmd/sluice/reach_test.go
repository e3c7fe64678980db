package main

import (
	"encoding/base64"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"sluice/internal/redistest"
)

// L03: check said "good" of a file whose Redis or nodes do not answer, and the first
// who heard of it were the customers. It is a warning each, since serve starts; no
// password is repeated.
func TestCheckTellsWhatDoesNotAnswer(t *testing.T) {
	node := standIn(t)
	server := redistest.Start(t)
	replica := redistest.Start(t, "--replicaof", strings.ReplaceAll(server.Addr, ":", " "))
	frozen := redistest.Start(t)
	if err := frozen.Pause(); err != nil {
		t.Fatal(err)
	}
	locked := redistest.Start(t)
	if err := locked.Client(t).ConfigSet(t.Context(), "requirepass", "secret-word").Err(); err != nil {
		t.Fatal(err)
	}
	cluster := redistest.StartCluster(t)
	sentinel := redistest.StartSentinel(t)
	dead := "http://" + redistest.Refusing(t)
	at := func(addr string) string { return "url: \"redis://" + addr + "\"" }
	list := func(addrs []string) string { return `addrs: ["` + strings.Join(addrs, `", "`) + `"]` }
	for name, tc := range map[string]struct {
		node, redis string
		want        []string // a part of each warning
	}{
		"all answer":          {node, at(server.Addr), nil},
		"no Redis named":      {node, "", nil},
		"a Cluster":           {node, list(cluster.Addrs()), nil},
		"a Sentinel":          {node, list([]string{sentinel.Addr}) + ", master_name: " + sentinel.MasterName, nil},
		"nobody listens":      {dead, at(redistest.Refusing(t)), []string{"redis: does not answer", "ursula.nodes[0]: " + dead}},
		"Redis hangs":         {node, at(frozen.Addr), []string{"i/o timeout"}},
		"a replica":           {node, at(replica.Addr), []string{"is a replica"}},
		"a wrong password":    {node, at("u:secret-wrong@" + locked.Addr), []string{"WRONGPASS"}},
		"a node that is none": {"http://" + server.Addr, at(server.Addr), []string{"does not answer as an Ursula node"}},
	} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "sluice.yaml")
			text := fmt.Sprintf("origin: http://localhost:8080\nursula: {nodes: [%q]}\n", tc.node)
			if tc.redis != "" {
				text += "redis: {" + tc.redis + "}\n"
			}
			writeFile(t, file, text)
			code, out, errOut := command(t, nil, "check", "--config", file)
			if code != exitDone || !strings.Contains(out, "good") || strings.Contains(errOut, "secret") {
				t.Errorf("exit %d: %s%s", code, out, errOut)
			}
			lines := strings.Split(strings.TrimSpace(errOut), "\n")
			if errOut == "" {
				lines = nil
			}
			if len(lines) != len(tc.want) {
				t.Fatalf("%d warnings, want %d:\n%s", len(lines), len(tc.want), errOut)
			}
			for i, want := range tc.want {
				if !strings.HasPrefix(lines[i], "warning: "+file+": ") || !strings.Contains(lines[i], want) {
					t.Errorf("warning %q, want one of %q", lines[i], want)
				}
			}
		})
	}
	for url, want := range map[string]string{
		"sqlite:" + filepath.Join(t.TempDir(), "store.db"):               "",
		"sqlite:" + filepath.Join(t.TempDir(), "none", "store.db"):       "the directory of store.url is not there",
		"postgres://u:secret-word@" + redistest.Refusing(t) + "/x":       "store: connect: ",
		"postgres://u:secret-word@" + server.Addr + "/x?sslmode=disable": "store: connect: ", // no Postgres
	} {
		file := filepath.Join(t.TempDir(), "sluice.yaml")
		writeFile(t, file, fmt.Sprintf("origin: http://localhost:8080\nursula: {nodes: [%q]}\nstore: {url: %q}\nauth: {sealing_key: %q}\n",
			node, url, base64.StdEncoding.EncodeToString(make([]byte, 32))))
		code, _, errOut := command(t, nil, "check", "--config", file)
		if code != exitDone || !strings.Contains(errOut, want) || strings.Contains(errOut, "secret") || (errOut == "") != (want == "") {
			t.Errorf("%s: exit %d: %s", url, code, errOut)
		}
	}
	if code, _, errOut := command(t, nil, "check", "--offline", "--config", offlineFile(t, dead)); code != exitDone || errOut != "" {
		t.Errorf("offline: exit %d: %s", code, errOut)
	}
}

func offlineFile(t *testing.T, node string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "sluice.yaml")
	writeFile(t, file, fmt.Sprintf("origin: http://localhost:8080\nursula: {nodes: [%q]}\n", node))
	return file
}
