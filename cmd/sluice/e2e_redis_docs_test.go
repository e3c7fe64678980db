package main

import (
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"sluice/config"
	"sluice/internal/redistest"
)

const operationsPage = "../../docs/operations.md"

// Every redis section that docs/operations.md prints is one that check takes.
func TestPrintedRedisSections(t *testing.T) {
	blocks := regexp.MustCompile("(?s)```yaml\n(redis:.*?)```").FindAllStringSubmatch(readFile(t, operationsPage), -1)
	modes := map[string]bool{}
	for _, block := range blocks {
		c, err := config.Parse("f", []byte("origin: https://a.example\nursula: {nodes: [\"http://a.example:1\"]}\n"+block[1]), config.Options{
			Grammar: grammar(), Env: func(string) (string, bool) {
				return "redis://user:password@10.0.0.9:26379?sentinel_password=secret", true
			},
		})
		if err != nil {
			t.Errorf("%s\n%v", block[1], err)
			continue
		}
		modes[c.Redis.MasterName+c.Redis.Mode] = true
	}
	if len(modes) != 3 {
		t.Errorf("the page has %v, want a single server, Sentinel and a Cluster", modes)
	}
}

// The user that docs/operations.md has an operator make may do all that is asked of
// Redis, on a single server and in a Cluster, and is refused nothing.
func TestPrintedRedisUserSuffices(t *testing.T) {
	line := regexp.MustCompile(`(?m)^ACL SETUSER .*$`).FindString(readFile(t, operationsPage))
	words := strings.Fields(strings.Replace(line, ">PASSWORD", ">secret", 1))
	if len(words) < 10 {
		t.Fatalf("the page has %q", line)
	}
	type redis struct {
		servers  []*redistest.Server
		section  string
		replicas int
	}
	one := redistest.Start(t)
	user := fmt.Sprintf("url: redis://%s:secret@", words[2])
	tests := map[string]redis{"single": {[]*redistest.Server{one}, user + one.Addr, 1}}
	if soak() {
		c := redistest.StartCluster(t)
		addrs := c.Addrs()
		tests["single, two replicas"] = redis{[]*redistest.Server{one}, user + one.Addr, 2}
		tests["cluster"] = redis{c.Nodes, fmt.Sprintf(`%s%s, mode: cluster, addrs: ["%s"]`, user, addrs[0], strings.Join(addrs[1:], `", "`)), 2}
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			command := make([]any, len(words))
			for i, word := range words {
				command[i] = word
			}
			for _, server := range tc.servers {
				if err := server.Client(t).Do(t.Context(), command...).Err(); err != nil {
					t.Fatalf("%s: %v", line, err)
				}
			}
			a := newPayer(t, "requests_per_second: 1000, burst: 1000, open_tails: 2")
			all := startReplicas(t, tc.replicas, replicaFile([]string{standIn(t)}, tc.section, a))
			c := loadClient(t)
			for _, r := range all {
				for _, kind := range []string{"read", "read", "tail", "upload"} {
					if o := r.try(c, a, kind); !o.ok() {
						t.Error(o)
					}
				}
			}
			fill(t, all, c, a, 2)
			full(t, all, c, a)
			for _, server := range tc.servers {
				refused, err := server.Client(t).Do(t.Context(), "ACL", "LOG").Slice()
				if err != nil || len(refused) != 0 {
					t.Errorf("refused: %v, %v", refused, err)
				}
			}
			for _, r := range all {
				if got := withoutSlow(r.losses(t)); len(got) > 0 {
					t.Errorf("the replica did without Redis: %q", got)
				}
				if err := r.ends(t, syscall.SIGTERM); err != nil {
					t.Errorf("exit: %v", err)
				}
			}
		})
	}
}

// What a Redis says that does not let the gateway in is in the log, and nothing of the
// password: an operator has to see which of the two it is.
func TestWhyRedisIsNotUsed(t *testing.T) {
	server := redistest.Start(t)
	if err := server.Client(t).Do(t.Context(), "ACL", "SETUSER", "sluice", "on", ">secret", "~sluice:*", "+@all", "-select").Err(); err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct{ url, says string }{
		"wrong password": {"redis://sluice:hunter2@" + server.Addr, "WRONGPASS"},
		"no such right":  {"redis://sluice:secret@" + server.Addr + "/3", "NOPERM"},
	} {
		t.Run(name, func(t *testing.T) {
			e := &edge{Account: testAccount(t), Key: newTestKey(t), Reads: newTestKey(t)}
			e.start(t, edgeFile(e, []string{standIn(t)}, fmt.Sprintf("redis: {url: %q}\n", tc.url)), nil)
			want(t, e.do(t, http.MethodGet, e.path("json"), nil), http.StatusOK)
			if log := e.Log.String(); strings.Count(log, saysLost) != 1 || !strings.Contains(log, tc.says) || strings.Contains(log, "hunter2") {
				t.Errorf("want one line of the loss that says %s:\n%s", tc.says, log)
			}
		})
	}
}
