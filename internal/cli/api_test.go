package cli

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// api answers calls of the Management API as a test scripts them, in order, and keeps
// what it was asked.
type api struct {
	*httptest.Server
	mu      sync.Mutex
	answers []answer
	asked   []string // METHOD target body
	bearers []string
}

// answer is one answer: a status, a body, and headers as pairs.
type answer struct {
	status  int
	body    string
	headers []string
}

func newAPI(t *testing.T, answers ...answer) *api {
	t.Helper()
	a := &api{answers: answers}
	a.Server = httptest.NewServer(a)
	t.Cleanup(a.Close)
	return a
}

func (a *api) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	a.mu.Lock()
	a.asked = append(a.asked, strings.TrimSpace(r.Method+" "+r.RequestURI+" "+string(body)))
	a.bearers = append(a.bearers, strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer "))
	next := answer{status: http.StatusTeapot, body: `{"error":{"code":"UNSCRIPTED","message":"the test has no answer for it"}}`}
	if len(a.answers) > 0 {
		next, a.answers = a.answers[0], a.answers[1:]
	}
	a.mu.Unlock()
	if next.status == 0 { // the answer is lost
		panic(http.ErrAbortHandler)
	}
	for i := 0; i+1 < len(next.headers); i += 2 {
		w.Header().Set(next.headers[i], next.headers[i+1])
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(next.status)
	_, _ = io.WriteString(w, next.body)
}

// calls is what it was asked until now.
func (a *api) calls() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return append([]string(nil), a.asked...)
}

// env is the environment of an owner and of an operator of this API.
func (a *api) env(key string) map[string]string {
	return map[string]string{"TONBO_API_KEY": key, "SLUICE_URL": a.URL, "SLUICE_ADMIN_URL": a.URL, "SLUICE_ADMIN_TOKEN": "s3cret"}
}

const (
	orders    = `{"name":"orders","url":"https://streams.example.com/acme/s.orders","content_type":"application/json","region":"eu","public":false,"state":"active","incarnation":"17","declared":false,"created_at":"2027-06-01T10:00:00Z","expires_at":null}`
	news      = `{"name":"news","url":"https://streams.example.com/acme/s.news","content_type":"text/plain","region":"eu","public":true,"state":"active","incarnation":"18","declared":true,"created_at":"2027-06-01T11:00:00Z","expires_at":"2027-07-01T11:00:00Z"}`
	ciKey     = `{"id":"k_1","name":"ci","hint":"aBcD","access":"read","streams":["orders","logs.*"],"acts_as":"user","declared":false,"created_at":"2027-06-01T10:00:00Z","expires_at":null,"last_used_at":"2027-06-01T12:34:00Z","revoked_at":null,"old_hint":"wXyZ","old_until":"2027-06-02T10:00:00Z"}`
	fileKey   = `{"id":"acme/ci","name":"file","hint":"0000","access":"write","streams":null,"acts_as":"agent","declared":true,"created_at":"2027-06-01T10:00:00Z","expires_at":"2020-01-01T00:00:00Z","last_used_at":null,"revoked_at":null,"old_hint":null,"old_until":null}`
	goneKey   = `{"id":"k_0","name":"ci","hint":"1111","access":"write","streams":null,"acts_as":"user","declared":false,"created_at":"2027-06-01T09:00:00Z","expires_at":null,"last_used_at":null,"revoked_at":"2027-06-01T09:30:00Z","old_hint":null,"old_until":null}`
	acme      = `{"id":"acme","state":"active","limits":{"requests_per_second":200,"burst":100,"open_tails":16,"uploads":8,"upload_bytes":67108864,"request_bytes":8388608},"own_limits":{"requests_per_second":200},"declared":false,"created_at":"2027-06-01T10:00:00Z"}`
	notThere  = `{"error":{"code":"STREAM_NOT_FOUND","message":"There is no such stream."}}`
	keysOfTwo = `{"api_keys":[` + goneKey + `,` + ciKey + `],"next_cursor":"c2"}`
	keysRest  = `{"api_keys":[` + fileKey + `],"next_cursor":null}`
)

// What each command asks the API, and what it prints of the answer.
func TestManagementCommands(t *testing.T) {
	key, fresh := newTestKey(t), newTestKey(t)
	withKey := func(shape string) string { return strings.TrimSuffix(shape, "}") + `,"key":"` + fresh + `"}` }
	for name, tc := range map[string]struct {
		args    string
		answers []answer
		asked   []string
		out     string
		err     string // the whole of it
	}{
		"stream create": {
			"stream create orders --content-type application/json --public",
			[]answer{{201, orders, nil}},
			[]string{`POST /v1/streams {"content_type":"application/json","name":"orders","public":true}`},
			"Name: orders\nState: active\nURL: https://streams.example.com/acme/s.orders\nIncarnation: 17\nContent type: application/json\nPublic: no\nRegion: eu\nCreated: 2027-06-01T10:00:00Z\n", "",
		},
		"stream create, waiting": {
			"stream create orders --content-type=application/json --json --region eu",
			[]answer{{201, strings.Replace(strings.Replace(orders, "active", "creating", 1), `"17"`, "null", 1), nil}, {200, orders, nil}},
			[]string{`POST /v1/streams {"content_type":"application/json","name":"orders","region":"eu"}`, "GET /v1/streams/orders"},
			orders + "\n", "",
		},
		"stream create for an account": {
			"stream create orders --content-type application/json --account acme --json",
			[]answer{{201, orders, nil}},
			[]string{`POST /v1/accounts/acme/streams {"content_type":"application/json","name":"orders"}`},
			orders + "\n", "",
		},
		"stream list": {
			"stream list --prefix o",
			[]answer{{200, `{"streams":[` + orders + `],"next_cursor":"a b"}`, nil}, {200, `{"streams":[` + news + `],"next_cursor":null}`, nil}},
			[]string{"GET /v1/streams?limit=200&prefix=o", "GET /v1/streams?cursor=a+b&limit=200&prefix=o"},
			"NAME    STATE   PUBLIC  CONTENT TYPE      CREATED               EXPIRES\n" +
				"orders  active  no      application/json  2027-06-01T10:00:00Z  -\n" +
				"news    active  yes     text/plain        2027-06-01T11:00:00Z  2027-07-01T11:00:00Z\n", "",
		},
		"stream list as JSON": {
			"stream list --json",
			[]answer{{200, `{"streams":[` + orders + `],"next_cursor":"c"}`, nil}, {200, `{"streams":[` + news + `],"next_cursor":null}`, nil}},
			[]string{"GET /v1/streams?limit=200", "GET /v1/streams?cursor=c&limit=200"},
			`{"next_cursor":null,"streams":[` + orders + "," + news + "]}\n", "",
		},
		"an empty list as JSON": {"stream list --json", []answer{{200, `{"streams":[],"next_cursor":null}`, nil}}, []string{"GET /v1/streams?limit=200"}, `{"next_cursor":null,"streams":[]}` + "\n", ""},
		"stream show": {
			"stream show news",
			[]answer{{200, news, nil}},
			[]string{"GET /v1/streams/news"},
			"Name: news\nState: active\nURL: https://streams.example.com/acme/s.news\nIncarnation: 18\nContent type: text/plain\nPublic: yes\nRegion: eu\nCreated: 2027-06-01T11:00:00Z\nExpires: 2027-07-01T11:00:00Z\nDeclared: yes, in the operator's file\n", "",
		},
		"stream show as JSON": {"stream show news --json", []answer{{200, news + "\n", nil}}, []string{"GET /v1/streams/news"}, news + "\n", ""},
		"stream update":       {"stream update orders --public=true --json", []answer{{200, orders, nil}}, []string{`PATCH /v1/streams/orders {"public":true}`}, orders + "\n", ""},
		"stream update, off":  {"stream update orders --public=false --json", []answer{{200, orders, nil}}, []string{`PATCH /v1/streams/orders {"public":false}`}, orders + "\n", ""},
		"stream delete": {
			"stream delete orders --yes",
			[]answer{{202, strings.Replace(orders, "active", "deleting", 1), nil}, {200, strings.Replace(orders, "active", "deleting", 1), nil}, {404, notThere, nil}},
			[]string{"DELETE /v1/streams/orders", "GET /v1/streams/orders", "GET /v1/streams/orders"},
			"Deleted: orders\n", "",
		},
		"api-key create": {
			"api-key create ci --read-only --stream orders --stream logs.*",
			[]answer{{201, withKey(ciKey), nil}},
			[]string{`POST /v1/api-keys {"access":"read","name":"ci","streams":["orders","logs.*"]}`},
			"TONBO_API_KEY=" + fresh + "\n", "This key is shown here once: keep it.\n",
		},
		"api-key create for an account": {
			"api-key create ci --agent --account acme --json",
			[]answer{{201, withKey(ciKey), nil}},
			[]string{`POST /v1/accounts/acme/api-keys {"acts_as":"agent","name":"ci"}`},
			withKey(ciKey) + "\n", "",
		},
		"api-key list": {
			"api-key list",
			[]answer{{200, keysOfTwo, nil}, {200, keysRest, nil}},
			[]string{"GET /v1/api-keys?limit=200", "GET /v1/api-keys?cursor=c2&limit=200"},
			"NAME  ID       HINT   STATE    ACCESS  STREAMS        ACTS AS  LAST USED             EXPIRES\n" +
				"ci    k_0      …1111  revoked  write   all            user     -                     -\n" +
				"ci    k_1      …aBcD  active   read    orders,logs.*  user     2027-06-01T12:34:00Z  -\n" +
				"file  acme/ci  …0000  expired  write   all            agent    -                     2020-01-01T00:00:00Z\n", "",
		},
		"api-key show, by name": {
			"api-key show ci",
			[]answer{{200, keysOfTwo, nil}, {200, keysRest, nil}},
			[]string{"GET /v1/api-keys?limit=200", "GET /v1/api-keys?cursor=c2&limit=200"},
			"Name: ci\nID: k_1\nState: active\nHint: …aBcD\nAccess: read\nStreams: orders,logs.*\nActs as: user\nCreated: 2027-06-01T10:00:00Z\nLast used: 2027-06-01T12:34:00Z\nOld secret: …wXyZ, good until 2027-06-02T10:00:00Z\n", "",
		},
		"api-key show, by ID, a revoked one": {
			"api-key show k_0 --json", []answer{{200, keysOfTwo, nil}, {200, keysRest, nil}}, []string{"GET /v1/api-keys?limit=200", "GET /v1/api-keys?cursor=c2&limit=200"}, goneKey + "\n", "",
		},
		"api-key narrow": {
			"api-key narrow acme/ci --read-only --stream orders --agent --name less",
			[]answer{{200, keysRest, nil}, {200, strings.Replace(ciKey, "k_1", "acme/ci", 1), nil}},
			[]string{"GET /v1/api-keys?limit=200", `PATCH /v1/api-keys/acme%2Fci {"access":"read","acts_as":"agent","name":"less","streams":["orders"]}`},
			"Name: ci\nAccess: read\nStreams: orders,logs.*\nActs as: user\n", "",
		},
		"api-key rotate": {
			"api-key rotate ci --overlap 2_hours",
			[]answer{{200, keysOfTwo, nil}, {200, keysRest, nil}, {200, withKey(ciKey), nil}},
			[]string{"GET /v1/api-keys?limit=200", "GET /v1/api-keys?cursor=c2&limit=200", `POST /v1/api-keys/k_1/rotate {"overlap_seconds":7200}`},
			"TONBO_API_KEY=" + fresh + "\n", "This key is shown here once: keep it.\n",
		},
		"api-key rotate at once": {
			"api-key rotate acme/ci --now",
			[]answer{{200, keysRest, nil}, {200, strings.Replace(withKey(ciKey), "k_1", "acme/ci", 1), nil}},
			[]string{"GET /v1/api-keys?limit=200", `POST /v1/api-keys/acme%2Fci/rotate {"end_older":true,"overlap_seconds":0}`},
			"TONBO_API_KEY=" + fresh + "\n", "This key is shown here once: keep it.\n",
		},
		"api-key revoke": {
			"api-key revoke ci --account acme",
			[]answer{{200, keysOfTwo, nil}, {200, keysRest, nil}, {204, "", nil}},
			[]string{"GET /v1/accounts/acme/api-keys?limit=200", "GET /v1/accounts/acme/api-keys?cursor=c2&limit=200", "DELETE /v1/accounts/acme/api-keys/k_1"},
			"Revoked: ci (k_1)\n", "",
		},
		"account create": {
			"account create acme --limit requests_per_second=200 --limit upload_bytes=0",
			[]answer{{201, strings.TrimSuffix(acme, "}") + `,"api_key":` + withKey(ciKey) + "}", nil}},
			[]string{`POST /v1/accounts {"id":"acme","limits":{"requests_per_second":200,"upload_bytes":0}}`},
			"TONBO_API_KEY=" + fresh + "\n", "This key is shown here once: keep it.\n",
		},
		"account list": {
			"account list --prefix ac",
			[]answer{{200, `{"accounts":[` + acme + `],"next_cursor":null}`, nil}},
			[]string{"GET /v1/accounts?limit=200&prefix=ac"},
			"ID    STATE   DECLARED  CREATED\nacme  active  no        2027-06-01T10:00:00Z\n", "",
		},
		"account show": {
			"account show acme",
			[]answer{{200, acme, nil}},
			[]string{"GET /v1/accounts/acme"},
			"ID: acme\nState: active\nCreated: 2027-06-01T10:00:00Z\nLimit requests_per_second: 200 (its own)\nLimit burst: 100\nLimit open_tails: 16\nLimit uploads: 8\nLimit upload_bytes: 64 MiB\nLimit request_bytes: 8 MiB\n", "",
		},
		"account show, the owner's": {
			"account show",
			[]answer{{200, `{"id":"acme","state":"unpaid","limits":{"burst":1},"use":{"open_tails":3}}`, nil}},
			[]string{"GET /v1/account"},
			"ID: acme\nState: unpaid\nLimit burst: 1\nOpen tails now: 3\n", "",
		},
		"account update": {
			"account update acme --state unpaid --limit burst=default --json",
			[]answer{{200, acme, nil}},
			[]string{`PATCH /v1/accounts/acme {"limits":{"burst":null},"state":"unpaid"}`},
			acme + "\n", "",
		},
		"account delete": {"account delete acme --yes", []answer{{204, "", nil}}, []string{"DELETE /v1/accounts/acme"}, "Deleted: acme\n", ""},
	} {
		t.Run(name, func(t *testing.T) {
			a := newAPI(t, tc.answers...)
			code, out, errOut := command(t, a.env(key), strings.Fields(tc.args)...)
			if code != exitDone || errOut != tc.err {
				t.Errorf("exit %d, err %q, want %q", code, errOut, tc.err)
			}
			if diff := cmp.Diff(tc.out, out); diff != "" {
				t.Errorf("output (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(tc.asked, a.asked); diff != "" {
				t.Errorf("asked (-want +got):\n%s", diff)
			}
			for i, b := range a.bearers {
				want := key
				if strings.Contains(a.asked[i], "/v1/accounts") {
					want = "s3cret"
				}
				if b != want {
					t.Errorf("call %d carries another credential", i)
				}
			}
		})
	}
}

// A key is printed at its creation and rotation, and nowhere else; of an answer that
// holds something else in its place nothing is printed.
func TestOnlyNewKeysArePrinted(t *testing.T) {
	key, fresh := newTestKey(t), newTestKey(t)
	leaky := strings.TrimSuffix(ciKey, "}") + `,"key":"` + fresh + `"}`
	for _, args := range []string{"api-key list", "api-key show ci", "api-key revoke ci"} {
		a := newAPI(t, answer{200, `{"api_keys":[` + leaky + `],"next_cursor":null}`, nil}, answer{204, "", nil})
		_, out, errOut := command(t, a.env(key), strings.Fields(args)...)
		if strings.Contains(out+errOut, fresh) || strings.Contains(out+errOut, key) {
			t.Errorf("%s prints a key", args)
		}
	}
	a := newAPI(t, answer{201, strings.Replace(leaky, fresh, "\x1b[2Jhello", 1), nil})
	if code, out, _ := command(t, a.env(key), "api-key", "create", "ci"); code != exitFailed || out != "" {
		t.Errorf("exit %d, out %q", code, out)
	}
	a = newAPI(t, answer{201, strings.Replace(leaky, fresh, "hello", 1), nil})
	if code, out, _ := command(t, a.env(key), "api-key", "create", "ci"); code != exitFailed || out != "" {
		t.Errorf("exit %d, out %q", code, out)
	}
}

// Each failure says what to do next; nothing is on standard output, and no key anywhere.
func TestManagementFailures(t *testing.T) {
	key := newTestKey(t)
	refusal := func(status int, code, message, field string, headers ...string) answer {
		body, _ := json.Marshal(map[string]any{"error": map[string]string{"code": code, "message": message, "field": field}})
		return answer{status, string(body), append(headers, "X-Request-Id", "req-1")}
	}
	for name, tc := range map[string]struct {
		args   string
		answer answer
		says   string
	}{
		"a bad key":              {"stream list", refusal(401, "INVALID_CREDENTIAL", "A valid key is needed.", ""), "sluice: INVALID_CREDENTIAL: A valid key is needed. (request id req-1); put a valid one into TONBO_API_KEY (--key-file)\n"},
		"a bad admin token":      {"account list", refusal(401, "INVALID_CREDENTIAL", "No.", ""), "put a valid one into SLUICE_ADMIN_TOKEN (--admin-token-file)\n"},
		"a narrowed key":         {"api-key create x", refusal(403, "FORBIDDEN", "No.", ""), "use another key in TONBO_API_KEY (--key-file): managing takes one that acts as a user, writes, and is not narrowed"},
		"no such stream":         {"stream show x", answer{404, notThere, nil}, "sluice: STREAM_NOT_FOUND: There is no such stream; 'sluice stream list' shows what there is\n"},
		"deleting what is not":   {"stream delete x --yes", answer{404, notThere, nil}, "'sluice stream list' shows what there is\n"},
		"no such account":        {"account show acme", refusal(404, "ACCOUNT_NOT_FOUND", "No.", ""), "'sluice account list' shows what there is\n"},
		"a taken name":           {"stream create x --content-type text/plain", refusal(409, "STREAM_ALREADY_EXISTS_CONFLICT", "Taken.", ""), "sluice: STREAM_ALREADY_EXISTS_CONFLICT: Taken. (request id req-1)\n"},
		"a name on its way out":  {"stream create x --content-type text/plain", refusal(409, "STREAM_ALREADY_EXISTS_CONFLICT", "Deleting.", "", "Retry-After", "2"), "; try again in 2s\n"},
		"a bad expiry":           {"stream create x --content-type text/plain --expires-in 1_minutes", refusal(400, "INVALID_REQUEST", "Too soon.", "expires_at"), "(field expires_at) (request id req-1); correct --expires-in\n"},
		"a bad content type":     {"stream create x --content-type text", refusal(400, "INVALID_REQUEST", "No.", "content_type"), "; correct --content-type\n"},
		"a bad limit":            {"account create acme --limit burst=99999999", refusal(400, "INVALID_REQUEST", "No.", "limits.burst"), "; correct --limit burst=…\n"},
		"not the admin listener": {"account list", refusal(404, "NOT_FOUND", "No such route.", ""), "is SLUICE_ADMIN_URL (--admin-url) right?\n"},
		"a page":                 {"stream list", answer{502, "<html>", nil}, "sluice: status 502, Bad Gateway; trying again in "},
		"a redirect":             {"stream list", answer{302, "", []string{"Location", "/x"}}, "it redirects (status 302), and the key goes to no other place; is SLUICE_URL (--url) right?\n"},
		"another program":        {"stream list", answer{200, `{"hello":1}`, nil}, "is no list of streams"},
		"half an answer":         {"stream show x", answer{200, `{"name":`, nil}, "its answer is no JSON"},
		"a key too many":         {"stream list", refusal(401, "INVALID_CREDENTIAL", "not "+key, ""), "INVALID_CREDENTIAL: not <key>"},
	} {
		t.Run(name, func(t *testing.T) {
			a := newAPI(t, tc.answer, refusal(403, "X", "the second answer", ""))
			code, out, errOut := command(t, a.env(key), strings.Fields(tc.args)...)
			if code != exitFailed || out != "" {
				t.Errorf("exit %d, out %q", code, out)
			}
			if !strings.Contains(errOut, tc.says) || strings.Contains(errOut, key) {
				t.Errorf("err %q, want %q", errOut, tc.says)
			}
		})
	}
}

// A change whose answer is lost is made once, and what to do about it is said.
func TestLostAnswers(t *testing.T) {
	key := newTestKey(t)
	for args, says := range map[string]string{
		"stream create x --content-type text/plain": "it may have been done all the same: see 'sluice stream show x'",
		"api-key create x":                          "revoke it, and create another",
		"account create acme":                       "'sluice api-key create NAME --account acme'",
	} {
		for name, lost := range map[string]answer{
			"broken": {status: 0},
			"unsure": {503, `{"error":{"code":"STORE_UNAVAILABLE","message":"Later."}}`, []string{"Retry-After", "1"}},
		} {
			a := newAPI(t, lost)
			code, out, errOut := command(t, a.env(key), strings.Fields(args)...)
			if code != exitFailed || out != "" || !strings.Contains(errOut, says) || len(a.calls()) != 1 {
				t.Errorf("%s, %s: exit %d, asked %q, err %q", args, name, code, a.calls(), errOut)
			}
		}
	}
}

// Wrong use is found before anything is sent.
func TestManagementWrongUse(t *testing.T) {
	key := newTestKey(t)
	a := newAPI(t)
	for name, tc := range map[string]struct {
		args string
		env  map[string]string // in the place of what is set
		says string
	}{
		"no name":                {"stream show", nil, "NAME is missing"},
		"two names":              {"stream show a b", nil, `unexpected argument "b"`},
		"a bad name":             {"stream show a/b", nil, "NAME"},
		"no content type":        {"stream create x", nil, "--content-type is missing"},
		"a Go duration":          {"stream create x --content-type text/plain --expires-in 15m", nil, "--expires-in: write a number and a unit"},
		"nothing to update":      {"stream update x", nil, "--public=true or --public=false"},
		"a public that is none":  {"stream update x --public=maybe", nil, "it is true or false"},
		"deleting, no terminal":  {"stream delete x", nil, "add --yes"},
		"an account, the same":   {"account delete acme", nil, "add --yes"},
		"no key":                 {"stream list", map[string]string{"TONBO_API_KEY": ""}, "TONBO_API_KEY is not set"},
		"a bad key":              {"stream list", map[string]string{"TONBO_API_KEY": "hunter2"}, "TONBO_API_KEY holds no API key"},
		"no URL":                 {"stream list", map[string]string{"SLUICE_URL": ""}, "SLUICE_URL is not set"},
		"http to a stranger":     {"stream list --url http://streams.example.com", nil, "--plain-http"},
		"no admin URL":           {"account list", map[string]string{"SLUICE_ADMIN_URL": ""}, "SLUICE_ADMIN_URL is not set"},
		"no scheme at all":       {"account list --admin-url 127.0.0.1:9090", nil, "--admin-url is no http or https URL: it is the admin listener's URL, as in http://127.0.0.1:9090"},
		"the token in clear":     {"account list --admin-url http://10.0.0.1:9090", nil, "would send the admin token in clear"},
		"a port of none":         {"stream list --url http://127.0.0.1:99999", nil, "from 1 to 65535"},
		"seconds of a key":       {"api-key create x --expires-in 90_seconds", nil, "as in 15_minutes, 1_hours or 30_days"},
		"seconds of an overlap":  {"api-key rotate x --overlap 90_seconds", nil, "as in 15_minutes"},
		"a bad admin token":      {"account list", map[string]string{"SLUICE_ADMIN_TOKEN": "a\nb"}, "SLUICE_ADMIN_TOKEN"},
		"no key file":            {"stream list --key-file /no/such/file", nil, "--key-file: open /no/such/file"},
		"a key on the line":      {"stream list --api-key x", nil, "--api-key"},
		"a bad account":          {"api-key create x --account A", nil, "--account"},
		"a bad account ID":       {"account show A", nil, "ID"},
		"a limit without number": {"account create acme --limit burst", nil, "--limit"},
		"a limit of nothing":     {"account create acme --limit speed=7", nil, "requests_per_second"},
		"a new default":          {"account create acme --limit burst=default", nil, "--limit"},
		"a negative limit":       {"account create acme --limit burst=-1", nil, "--limit"},
		"a bad state":            {"account update acme --state gone", nil, "active, unpaid or revoked"},
		"no change":              {"account update acme", nil, "--state or --limit"},
		"an empty stream list":   {"api-key create x --stream a/b", nil, "--stream"},
		"nothing to narrow":      {"api-key narrow x", nil, "--read-only"},
		"now and later":          {"api-key rotate x --now --overlap 1_hours", nil, "contradict"},
		"no such command":        {"stream make x", nil, "there is: stream append, "},
		"json and long-poll":     {"stream tail x --json --long-poll", nil, "--long-poll"},
		"a bad producer":         {"stream append x --producer-id=", nil, "--producer-id"},
		"pieces of nothing":      {"stream append x --piece-size 0", nil, "--piece-size"},
		"an empty offset":        {"stream read x --offset=", nil, "--offset"},
		"another gateway":        {"stream read https://elsewhere.example/acme/s.x", nil, "at another gateway"},
		"no stream's URL":        {"stream read " + a.URL + "/acme/x", nil, "no stream's URL"},
		"the name in the URL":    {"stream read acme/s.x", nil, `without the "s."`},
	} {
		t.Run(name, func(t *testing.T) {
			env := a.env(key)
			for k, v := range tc.env {
				env[k] = v
			}
			code, out, errOut := command(t, env, strings.Fields(tc.args)...)
			if code != exitUsage || out != "" || !strings.Contains(errOut, tc.says) || !strings.Contains(errOut, "--help") {
				t.Errorf("exit %d, out %q, err %q, want %q", code, out, errOut, tc.says)
			}
			if strings.Contains(errOut, key) || strings.Contains(errOut, "hunter2") {
				t.Error("a credential is printed")
			}
		})
	}
	if len(a.asked) > 0 {
		t.Errorf("asked %q", a.asked)
	}
}
