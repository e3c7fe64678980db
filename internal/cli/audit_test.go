package cli

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"sluice/internal/syncbuf"
)

// record is one as the API gives it; rest are the members that differ.
func aRecord(id int, rest string) string {
	return fmt.Sprintf(`{"id":%d,"at":"2027-06-01T10:00:0%d.5Z",%s}`, id, id%10, rest)
}

const (
	byKey      = `"actor":{"kind":"key","key_id":"key_1","account":"acme"},"account":"acme","action":"api_key.update","target":"key_2","from":"2001:db8::7","request_id":"r","details":{"access":{"from":"write","to":"read"},"streams":{"from":null,"to":["a*","b"]}}`
	byOperator = `"actor":{"kind":"operator","key_id":null,"account":null},"account":"acme","action":"account.create","target":"acme","from":null,"request_id":null,"details":{"expires_at":{"from":null,"to":"2028-01-01T00:00:00Z"},"limits.burst":{"from":7,"to":null},"old_hint":{"from":"aBcD","to":null},"state":{"to":"active"}}`
	bySystem   = `"actor":{"kind":"system","key_id":null,"account":null},"account":null,"action":"signing_keys.rotate","target":null,"from":null,"request_id":null,"details":{}`
	expired    = `"actor":{"kind":"system","key_id":null,"account":null},"account":"acme","action":"stream.expire","target":"x\u001b[2J","from":null,"request_id":null,"details":{"public":{"from":true}}`
)

func recordsPage(next string, records ...string) answer {
	return answer{200, `{"records":[` + strings.Join(records, ",") + `],"next_cursor":` + next + `}`, nil}
}

func TestAudit(t *testing.T) {
	key := newTestKey(t)
	for name, tc := range map[string]struct {
		args    string
		answers []answer
		asked   []string
		out     string
	}{
		"an owner's": {
			"audit",
			[]answer{recordsPage("null", aRecord(3, byKey), aRecord(2, expired), aRecord(1, byOperator))},
			[]string{"GET /v1/audit?limit=50"},
			"TIME                  ACTOR     ACTION          TARGET  FROM         DETAILS\n" +
				"2027-06-01T10:00:03Z  key_1     api_key.update  key_2   2001:db8::7  access: write -> read; streams: all -> [a*,b]\n" +
				"2027-06-01T10:00:02Z  system    stream.expire   x[2J    -            public: true\n" +
				"2027-06-01T10:00:01Z  operator  account.create  acme    -            expires_at: never -> 2028-01-01T00:00:00Z; limits.burst: 7 -> default; old_hint: aBcD -> none; state: active\n",
		},
		"the operator's": {
			"audit --all-accounts --limit 0",
			[]answer{recordsPage(`"c"`, aRecord(2, byKey)), recordsPage("null", aRecord(1, bySystem))},
			[]string{"GET /v1/audit?limit=200", "GET /v1/audit?cursor=c&limit=200"},
			"TIME                  ACCOUNT  ACTOR   ACTION               TARGET  FROM         DETAILS\n" +
				"2027-06-01T10:00:02Z  acme     key_1   api_key.update       key_2   2001:db8::7  access: write -> read; streams: all -> [a*,b]\n" +
				"2027-06-01T10:00:01Z  -        system  signing_keys.rotate  -       -            -\n",
		},
		"of one account, as JSON": {
			"audit --account acme --json",
			[]answer{recordsPage("null", aRecord(2, byKey), strings.Replace(aRecord(1, bySystem), ",", ",\n ", 1))},
			[]string{"GET /v1/audit?account=acme&limit=50"},
			aRecord(2, byKey) + "\n" + aRecord(1, bySystem) + "\n",
		},
		"filters": {
			"audit --since 2027-06-01 --until 2027-06-02T12:00:00+02:00 --action stream.delete --actor key_1 --target orders --limit 7",
			[]answer{recordsPage("null")},
			[]string{"GET /v1/audit?action=stream.delete&actor=key_1&limit=7&since=2027-06-01T00%3A00%3A00Z&target=orders&until=2027-06-02T10%3A00%3A00Z"},
			"TIME  ACTOR  ACTION  TARGET  FROM  DETAILS\n",
		},
		"no more than are wanted": {
			"audit --limit 2 --json",
			[]answer{recordsPage(`"c"`, aRecord(3, byKey), aRecord(2, byKey))},
			[]string{"GET /v1/audit?limit=2"},
			aRecord(3, byKey) + "\n" + aRecord(2, byKey) + "\n",
		},
	} {
		t.Run(name, func(t *testing.T) {
			a := newAPI(t, tc.answers...)
			code, out, errOut := command(t, a.env(key), strings.Fields(tc.args)...)
			if code != exitDone || out != tc.out || errOut != "" || !slices.Equal(a.calls(), tc.asked) {
				t.Errorf("exit %d, asked %q, err %q, out\n%s", code, a.calls(), errOut, out)
			}
			bearer := map[bool]string{true: "s3cret", false: key}[strings.Contains(tc.args, "account")]
			if a.bearers[0] != bearer {
				t.Errorf("asked with another credential")
			}
		})
	}
}

func TestAuditUsage(t *testing.T) {
	for args, says := range map[string]string{
		"audit --since yesterday":                     "--since: write how long ago, as in 7_days, a date as in 2027-06-01, or a time",
		"audit --until 7_moons":                       "--until: write a number and a unit",
		"audit --limit -1":                            "not negative",
		"audit --limit x":                             `--limit "x": write a whole number`,
		"audit --since 2027-06-02 --until 2027-06-01": "--until is not after --since",
		"audit --action stream.eat":                   "stream.expire",
		"audit --account x":                           "--account: ",
		"audit --account acme --all-accounts":         "leave one out",
		"audit --follow --until 2027-06-01":           "leave --until out",
		"audit acme":                                  `unexpected argument "acme"`,
		"audit --all-accounts --admin-url nowhere":    "--admin-url",
	} {
		code, out, errOut := command(t, map[string]string{"SLUICE_URL": "https://streams.example.com", "TONBO_API_KEY": newTestKey(t)}, strings.Fields(args)...)
		want(t, code, out, errOut, exitUsage, "", says)
	}
	a := newAPI(t, answer{400, `{"error":{"code":"INVALID_QUERY","message":"No.","field":"actor"}}`, nil})
	code, out, errOut := command(t, a.env(newTestKey(t)), "audit", "--actor", "key_1")
	want(t, code, out, errOut, exitFailed, "", "correct --actor\n")
	now := time.Date(2027, 6, 8, 12, 0, 0, 0, time.UTC)
	if got, err := parsePast("7_days", now); err != nil || !got.Equal(now.AddDate(0, 0, -7)) {
		t.Errorf("7_days ago is %v, %v", got, err)
	}
}

// With --follow the oldest come first, then each that is new once, until Ctrl-C, which is
// no failure.
func TestAuditFollows(t *testing.T) {
	a := newAPI(t,
		recordsPage("null", aRecord(2, byKey), aRecord(1, byKey)),
		recordsPage(`"c"`, aRecord(4, byKey), aRecord(3, byKey)), recordsPage("null", aRecord(2, byKey), aRecord(1, byKey)))
	var out, errOut syncbuf.Buffer
	done := make(chan int)
	go func() {
		done <- run(t.Context(), environment(a.env(newTestKey(t)), nil, &out, &errOut), []string{"audit", "--follow", "--json", "--limit", "2"})
	}()
	deadline := time.After(30 * time.Second)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for strings.Count(out.String(), "\n") < 4 {
		select {
		case code := <-done:
			t.Fatalf("ended with %d: %s", code, errOut.String())
		case <-deadline:
			t.Fatalf("after 30 s: %q", out.String())
		case <-tick.C:
		}
	}
	if err := syscall.Kill(os.Getpid(), syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	if code := <-done; code != exitDone {
		t.Errorf("exit %d: %s", code, errOut.String())
	}
	lines := make([]string, 0, 4)
	for id := range 4 {
		lines = append(lines, aRecord(id+1, byKey))
	}
	if got := out.String(); got != strings.Join(lines, "\n")+"\n" {
		t.Errorf("out\n%s", got)
	}
	if got := a.calls(); len(got) < 3 || got[0] != "GET /v1/audit?limit=2" || got[1] != "GET /v1/audit?limit=200" || got[2] != "GET /v1/audit?cursor=c&limit=200" {
		t.Errorf("asked %q", got)
	}
}
