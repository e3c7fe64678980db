package main

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
)

// newManaged is the whole program on an empty store, whose origin is where it listens.
func newManaged(t *testing.T, node string) (public, admin string) {
	t.Helper()
	address := freePort(t)
	e := &edge{Account: testAccount(t)}
	e.start(t, fmt.Sprintf("listen: %q\norigin: http://%s\nadmin: {listen: \"127.0.0.1:0\"}\nursula: {nodes: [%q]}\nstore: {url: %q}\ndrain_delay: 0s\ndrain_timeout: 1s\nusage: {flush: 1s}\n",
		address, address, node, "sqlite:"+filepath.Join(t.TempDir(), "sluice.db")), nil)
	return e.URL, e.Admin
}

// The commands and the API agree on what they send each other: the golden tests of the
// commands would not notice if the API went another way.
func TestManagementCommandsEndToEnd(t *testing.T) {
	public, admin := newManaged(t, standIn(t))
	env := map[string]string{"SLUICE_URL": public, "SLUICE_ADMIN_URL": admin}
	for _, step := range []struct {
		args string // after "~": what changed before is in force within a second (design §10)
		code int
		says string // on either output
	}{
		{"account create beta --limit burst=7", exitDone, "TONBO_API_KEY=tbo_"},
		{"account create beta", exitFailed, "ACCOUNT_ALREADY_EXISTS_CONFLICT"},
		{"account show beta", exitDone, "Limit burst: 7 (its own)\n"},
		{"account list", exitDone, "beta  active  no"},
		{"account update beta --state unpaid --limit open_tails=3 --limit burst=default", exitDone, "State: unpaid\n"},
		{"~account show", exitFailed, "PAYMENT_REQUIRED"},
		{"account update beta --state active", exitDone, "Limit open_tails: 3 (its own)\n"},
		{"~account show", exitDone, "ID: beta\nState: active\n"},
		{"account update beta --limit burst=99999999", exitFailed, "correct --limit burst=…"},
		{"account show nope", exitFailed, "ACCOUNT_NOT_FOUND"},
		{"api-key create ops --read-only --stream a --stream b.*", exitDone, "TONBO_API_KEY=tbo_"},
		{"api-key create ops", exitFailed, "API_KEY_ALREADY_EXISTS_CONFLICT"},
		{"api-key create agent --agent --expires-in 2_hours --account beta", exitDone, "TONBO_API_KEY=tbo_"},
		{"api-key list --account beta", exitDone, "a,b.*"},
		{"api-key show ops", exitDone, "Access: read\nStreams: a,b.*\nActs as: user\n"},
		{"api-key narrow ops --stream a --name ops-a", exitDone, "Name: ops-a\nAccess: read\nStreams: a\n"},
		{"api-key narrow ops-a --stream b.c", exitFailed, "streams"},
		{"api-key narrow ops-a --name ops", exitDone, "Streams: a\n"},
		{"api-key narrow ops", exitUsage, "--read-only"},
		{"api-key rotate ops", exitDone, "TONBO_API_KEY=tbo_"},
		{"api-key rotate ops", exitFailed, "--end-older ends the older secret at once"},
		{"api-key rotate ops --end-older --overlap 2_hours", exitDone, "TONBO_API_KEY=tbo_"},
		{"api-key show ops", exitDone, "Old secret: …"},
		{"api-key rotate ops --now --end-older", exitDone, "TONBO_API_KEY=tbo_"},
		{"api-key revoke ops", exitDone, "Revoked: ops (key_"},
		{"api-key revoke ops", exitFailed, "there is no key of the name or ID"},
		{"api-key create ops --expires-in 15_days", exitDone, "TONBO_API_KEY=tbo_"},
		{"api-key list", exitDone, "revoked"},
		{"stream create x --content-type text/plain --public --expires-in 2_hours", exitDone, "State: active\nURL: " + public + "/beta/s.x\nIncarnation: "},
		{"stream create x --content-type text/plain", exitFailed, "STREAM_ALREADY_EXISTS_CONFLICT"},
		{"stream create y --content-type text/plain --expires-in 10_seconds", exitUsage, "15_minutes"},
		{"stream create y --content-type nonsense", exitFailed, "correct --content-type"},
		{"stream create y --content-type text/plain --account beta", exitDone, "State: active\n"},
		{"stream list --prefix x", exitDone, "x     active  yes     text/plain"},
		{"stream update x --public=false", exitDone, "Public: no\n"},
		{"stream update y --public", exitDone, "Public: yes\n"},
		{"stream show nope", exitFailed, "STREAM_NOT_FOUND"},
		{"stream delete x --yes", exitDone, "Deleted: x\n"},
		{"stream delete x --yes", exitFailed, "STREAM_NOT_FOUND"},
		{"stream delete y --account beta --yes --json", exitDone, `"state":"deleting"`},
		{"~usage", exitDone, "management  "},
		{"usage --class append --json", exitDone, `Z","usage":[]}`},
		{"usage --account beta --class management", exitDone, "HOUR  "},
		{"usage --since yesterday", exitUsage, "--since: write how long ago"},
		{"usage now", exitUsage, "unexpected argument"},
		{"usage export", exitDone, `{"position":1,"replica":"`},
		{"usage export --after 1000000", exitDone, ""},
		{"account delete beta --yes", exitDone, "Deleted: beta\n"},
		{"account create beta", exitFailed, "ACCOUNT_ALREADY_EXISTS_CONFLICT"},
		{"~stream list", exitFailed, "put a valid one into TONBO_API_KEY"},
	} {
		args, soon := strings.CutPrefix(step.args, "~")
		code, out, errOut := command(t, env, strings.Fields(args)...)
		if soon {
			eventually(t, step.says, func() bool {
				code, out, errOut = command(t, env, strings.Fields(args)...)
				return code == step.code && strings.Contains(out+errOut, step.says)
			})
		}
		if code != step.code || !strings.Contains(out+errOut, step.says) {
			t.Fatalf("sluice %s: exit %d, want %d and %q\n%s%s", step.args, code, step.code, step.says, out, errOut)
		}
		if strings.HasPrefix(step.args, "account create") && code == exitDone {
			env["TONBO_API_KEY"] = strings.TrimSpace(strings.TrimPrefix(out, "TONBO_API_KEY="))
		}
	}
}
