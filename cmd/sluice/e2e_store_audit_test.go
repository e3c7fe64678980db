package main

import (
	"net/http"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// What is changed through a replica behind a proxy is in `sluice audit`: by whom, from where
// as the trusted proxy says, and what it was before. So is what the file declares, at a start
// and at a reload.
func TestAuditEndToEnd(t *testing.T) {
	account := testAccount(t)
	r := startReplica(t, managedFile([]string{standIn(t)}, "sqlite:"+filepath.Join(t.TempDir(), "sluice.db"), "15m",
		"trusted_proxies: [127.0.0.1]\naccounts: [{id: stated, status: active}]\n"))
	r.awaitReady(t)
	made := r.manage(t, "", http.MethodPost, "/v1/accounts", fields{"id": account})
	want(t, made, http.StatusCreated)
	key := made.member(t, "api_key", "key")
	through := func(method, path, body, forwarded string, status int) reply {
		t.Helper()
		got := ask(t, method, r.URL+path, strings.NewReader(body), "Authorization", "Bearer "+key, "Content-Type", "application/json",
			"X-Forwarded-For", forwarded, "X-Request-Id", "deploy-7")
		want(t, got, status)
		return got
	}
	eventually(t, "the key is known", func() bool { return r.manage(t, key, http.MethodGet, "/v1/account", nil).StatusCode == http.StatusOK })
	// The left-most address is whatever a client says.
	through(http.MethodPost, "/v1/streams", `{"name":"events","content_type":"application/json"}`, "1.2.3.4, 203.0.113.9", http.StatusCreated)
	through(http.MethodPatch, "/v1/streams/events", `{"public":true}`, "2001:db8::5", http.StatusOK)
	through(http.MethodPost, "/v1/streams", `{"name":"events","content_type":"text/plain"}`, "203.0.113.9", http.StatusConflict)
	id := r.managed(t, key, http.MethodGet, "/v1/audit?action=stream.update", nil)
	want(t, id, http.StatusOK)

	writeFile(t, r.path, strings.Replace(readFile(t, r.path), "status: active", "status: unpaid", 1))
	want(t, r.admin(t, http.MethodPost, "/reload"), http.StatusOK)
	env := map[string]string{"SLUICE_URL": r.URL, "SLUICE_ADMIN_URL": r.Admin, "TONBO_API_KEY": key}
	says := func(args string, lines ...string) {
		t.Helper()
		pattern := regexp.MustCompile(`^` + strings.Join(lines, `\n`) + `\n$`)
		var out, errOut string
		eventually(t, "sluice "+args+" prints what matches "+pattern.String(), func() bool {
			var code int
			code, out, errOut = command(t, env, strings.Fields(args)...)
			if code != exitDone {
				t.Fatalf("sluice %s: exit %d: %s", args, code, errOut)
			}
			return pattern.MatchString(out)
		})
		t.Logf("$ sluice %s\n%s", args, out)
	}
	const at = `20\d\d-\d\d-\d\dT\d\d:\d\d:\d\dZ`
	says("audit",
		`TIME +ACTOR +ACTION +TARGET +FROM +DETAILS`,
		at+` +key_[0-9a-f]{24} +stream.update +events +2001:db8::5 +public: false -> true`,
		at+` +key_[0-9a-f]{24} +stream.create +events +203.0.113.9 +content_type: application/json; public: false`,
		at+` +operator +account.create +`+account+` +- +api_key.hint: \w{4}; api_key.id: key_[0-9a-f]{24}; state: active`,
	)
	says("audit --account stated --since 1_hours",
		`TIME +ACCOUNT +ACTOR +ACTION +TARGET +FROM +DETAILS`,
		at+` +stated +file +account.update +stated +- +state: active -> unpaid`,
		at+` +stated +file +account.create +stated +- +state: active`,
	)
	says("audit --all-accounts --action account.create --limit 1", `TIME.*`, at+` +`+account+` +operator +account.create +`+account+` +127.0.0.1 +.*`)
	says("audit --all-accounts --action signing_keys.rotate", `TIME.*`, at+` +- +system +signing_keys.rotate +- +- +keys: \[\] -> \[.+\]`)
	says("audit --actor "+regexp.MustCompile(`key_[0-9a-f]+`).FindString(id.Text)+" --target events --until 2999-01-01 --json --limit 1",
		`\{"id":\d+,"at":"[^"]+","actor":\{"kind":"key","key_id":"key_[0-9a-f]{24}","account":"`+account+`"\},"account":"`+account+
			`","action":"stream.update","target":"events","from":"2001:db8::5","request_id":"deploy-7","details":\{"public":\{"from":false,"to":true\}\}\}`)
}
