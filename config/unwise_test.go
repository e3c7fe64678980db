package config

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// What operators meet in the first weeks is said at its line, with what to write instead, and
// nothing is said of what is right beside it.
func TestUnwise(t *testing.T) {
	const quiet = minimal + signed + proxied
	direct := func(tls string) string { return minimal + signed + "tls: " + tls + "\n" }
	redis := func(more string) string { return quiet + "redis: " + more + "\n" }
	for name, tc := range map[string]struct {
		file, want, says string // "line path"; "" = none
	}{
		"admin on the internet":   {quiet + `admin: {listen: "8.8.8.8:9090", token: "0123456789abcdef0123"}`, "5 admin.listen", "127.0.0.1:9090"},
		"admin in private":        {quiet + `admin: {listen: "10.0.0.1:9090", token: "0123456789abcdef0123"}`, "", ""},
		"admin anywhere":          {quiet + `admin: {listen: ":9090", token: "0123456789abcdef0123"}`, "", ""},
		"a short token":           {quiet + `admin: {token: "0123456789abcdef012"}`, "5 admin.token", "openssl rand -hex 32"},
		"plain on 443":            {quiet + `listen: ":443"`, "5 listen", "tls: {mode: acme}"},
		"plain on 443, of two":    {quiet + `listen: [":8080", "10.0.0.1:443"]`, "5 listen[1]", "port of https"},
		"plain on the internet":   {quiet + `listen: "[2600::1]:8080"`, "5 listen", "internet without TLS"},
		"TLS on 443":              {direct("{mode: files, cert: /c, key: /k}") + `listen: "8.8.8.8:443"`, "", ""},
		"an authority of our own": {direct("{mode: internal}"), "4 tls.mode", "mode: acme"},
		"a proxy unnamed":         {minimal + signed, "1 trusted_proxies", "trusted_proxies: [10.0.0.9]"},
		"proxies of none":         {minimal + signed + "trusted_proxies: []\n", "4 trusted_proxies", "share server.connections_per_address"},
		"every proxy":             {minimal + signed + "trusted_proxies: [0.0.0.0/0]\n", "4 trusted_proxies[0]", "name your proxies"},
		"a node in the open":      {strings.Replace(quiet, `["http://10.0.0.1:4437"]`, `["https://8.8.8.8:4437", "http://8.8.4.4:4437"]`, 1), "2 ursula.nodes[1]", "private address"},
		"nodes in private":        {strings.Replace(quiet, `["http://10.0.0.1:4437"]`, `["http://ursula:4437", "http://100.64.0.1:1", "http://[fd00::1]:1", "http://127.0.0.1:1"]`, 1), "", ""},
		"traces in the open":      {quiet + `trace: {endpoint: "http://8.8.8.8:4318", headers: ["A: b"]}`, "5 trace.endpoint", "https"},
		"traces of no secret":     {quiet + `trace: {endpoint: "http://8.8.8.8:4318"}`, "", ""},
		"a page over http":        {quiet + `cors: {origins: ["https://a.example.com", "http://b.example.com"]}`, "5 cors.origins[1]", "https"},
		"a page of this machine":  {quiet + `cors: {origins: ["http://localhost:3000"]}`, "", ""},
		"Redis of anybody":        {redis(`{url: "redis://10.0.0.9:6379"}`), "5 redis.url", "redis://user:password@host:6379"},
		"Redis by addresses":      {redis(`{addrs: ["10.0.0.9:6379"]}`), "5 redis.addrs", "no password"},
		"Redis here":              {redis(`{url: "redis://localhost:6379"}`), "", ""},
		"Redis with a password":   {redis(`{url: "redis://u:${LEAK}@10.0.0.9:6379"}`), "", ""},
		"Redis in the open":       {redis(`{url: "redis://u:${LEAK}@8.8.8.8:6379"}`), "5 redis.url", "rediss://"},
		"Redis over TLS":          {redis(`{url: "rediss://u:${LEAK}@8.8.8.8:6379"}`), "", ""},
		"replicas of one file":    {minimal + proxied + `redis: {url: "redis://localhost"}` + "\nstore: {url: \"sqlite:/x\"}", "5 store.url", "Postgres"},
		"a long drain":            {quiet + "drain_timeout: 31s", "5 drain_timeout", "up to 36s with drain_delay"},
		"a drain by default":      {quiet + "drain_timeout: 30s", "", ""},
		"no heartbeat":            {quiet + "tails: {heartbeat: 0s}", "5 tails.heartbeat", "heartbeat: 15s"},
		"a slow heartbeat":        {quiet + "tails: {heartbeat: 1m}", "5 tails.heartbeat", "after 60s"},
		"a heartbeat in time":     {quiet + "tails: {heartbeat: 59s}", "", ""},
		"tails of a moment":       {quiet + "tails: {max_age: 59s}", "5 tails.max_age", "max_age: 1h"},
		"tails of a minute":       {quiet + "tails: {max_age: 1m}", "", ""},
		"a store away for long":   {minimal + proxied + "store: {url: \"sqlite:/x\", stale_for: 61m}", "4 store.stale_for", "15m"},
		"any rate":                {quiet + "limits: {default: {requests_per_second: 100000}}", "5 limits.default.requests_per_second", "requests_per_second: 1000"},
		"any burst":               {quiet + "accounts: [{id: acme, limits: {burst: 100000}}]", "5 accounts[0].limits.burst", "limits nothing"},
		"any number of tails":     {quiet + "limits: {default: {open_tails: 1000000}}", "5 limits.default.open_tails", "limits nothing"},
		"large and no more":       {quiet + "limits: {default: {requests_per_second: 99999, burst: 99999, open_tails: 999999}}", "", ""},
		"more than all":           {quiet + "accounts: [{id: acme, limits: {upload_bytes: 257MiB}}]", "5 accounts[0].limits.upload_bytes", "64MiB or less"},
		"as much as all":          {quiet + "accounts: [{id: acme, limits: {upload_bytes: 256MiB}}]", "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			var got, says string
			for _, w := range parse(t, tc.file).Warnings(time.Time{}) {
				got += fmt.Sprintf("%d %s\n", w.Line, w.Path)
				says += w.String()
			}
			if strings.TrimSuffix(got, "\n") != tc.want || !strings.Contains(says, tc.says) || strings.Contains(says, leak) {
				t.Errorf("want %q with %q, got %s%s", tc.want, tc.says, got, says)
			}
		})
	}
}

// Tails that a process has no descriptors for were found when they were refused.
func TestCrowded(t *testing.T) {
	c := parse(t, minimal+"accounts:\n- {id: acme, limits: {open_tails: 513}}\n- {id: beta, limits: {open_tails: 512}}\n- {id: gamma}\n")
	if w := c.Crowded(1024); len(w) != 1 || w[0].Path != "accounts[0].limits.open_tails" || w[0].Line != 4 || !strings.Contains(w[0].Message, "open_tails: 256 or less") {
		t.Errorf("%v", w)
	}
	if w := c.Crowded(16); len(w) != 3 || w[2].Path != "accounts[1].limits.open_tails" {
		t.Errorf("%v", w)
	}
	for _, enough := range []uint64{1026, 0} {
		if w := c.Crowded(enough); w != nil {
			t.Errorf("%d: %v", enough, w)
		}
	}
}
