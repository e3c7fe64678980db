package gateway

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"sluice/internal/tenant"
	"sluice/internal/ursulatest"
)

// matrix is the rig, what its node answers when it is asked without a gateway,
// and what it received.
type matrix struct {
	rig      *rig
	rows     []matrixRow
	accounts map[tenant.State]tenant.AccountID
	token    map[string]string // of a stream's path
	offset   map[string]string
	direct   map[string]answer // by method, target and body

	mu   sync.Mutex
	hits map[string][]string // request id → "METHOD target"
	all  int
}

const matrixBody = `{"n":1}`

func newMatrix(t *testing.T) *matrix {
	m := &matrix{
		rig: newRig(t, rigOptions{}), rows: matrixRows(), direct: map[string]answer{}, hits: map[string][]string{},
		accounts: map[tenant.State]tenant.AccountID{}, token: map[string]string{}, offset: map[string]string{},
	}
	for id, state := range rigAccounts {
		if id != "other" {
			m.accounts[state] = id
		}
	}
	for _, account := range m.accounts {
		for _, stream := range []string{"priv", "pub"} {
			m.prepare(t, tenant.StreamPath(account, tenant.StreamName(stream)))
		}
		missing := tenant.StreamPath(account, "missing")
		m.token[missing], m.offset[missing] = "7", "00000000000000000008"
	}
	for _, account := range m.accounts {
		for _, stream := range []string{"priv", "pub", "missing"} {
			m.askNode(t, tenant.StreamPath(account, tenant.StreamName(stream)))
		}
	}
	m.rig.Cluster.Node(0).SetFault(m.count)
	return m
}

// prepare gives a stream a record, a snapshot and an end, past the gateway, so
// that every answer of the node is final and tails end by themselves.
func (m *matrix) prepare(t *testing.T, path string) {
	t.Helper()
	node := m.rig.Cluster.URLs()[0]
	step := func(method, path string, want int, body string, headers ...string) answer {
		t.Helper()
		res := send(t, method, node+path, "", strings.NewReader(body), append(headers, "Content-Type", rigType)...)
		if res.StatusCode != want {
			t.Fatalf("%s %s at the node: %d %s", method, path, res.StatusCode, res.Text)
		}
		return res
	}
	end := step("POST", path, 200, matrixBody, "Producer-Id", "matrix", "Producer-Epoch", "0", "Producer-Seq", "0").Header.Get("Stream-Next-Offset")
	step("PUT", path+"/snapshot/"+end, 204, matrixBody)
	step("POST", path, 204, "", "Stream-Closed", "true")
	m.offset[path], m.token[path] = end, step("HEAD", path, 200, "").Header.Get("Stream-Incarnation")
}

// askNode notes the node's own answer to each row, the second of two, which all
// later ones must equal.
func (m *matrix) askNode(t *testing.T, path string) {
	t.Helper()
	for _, row := range m.rows {
		if row.class >= rowLifecycle {
			continue
		}
		var res [3]answer
		for i := range res {
			res[i] = send(t, row.method, m.rig.Cluster.URLs()[0]+m.fill(row.target, path), "", bodyOf(row), headersOf(row)...)
		}
		if res[1].StatusCode != res[2].StatusCode || res[1].code() != res[2].code() {
			t.Fatalf("%s of %s changes the node: %d, then %d", row, path, res[1].StatusCode, res[2].StatusCode)
		}
		if row.class == rowReadsImmutable && !strings.HasSuffix(path, "missing") && (res[2].StatusCode != http.StatusOK || res[2].Header.Get("Stream-Immutable") != "true") {
			t.Fatalf("%s of %s at the node: %d %v, want it marked", row, path, res[2].StatusCode, res[2].Header)
		}
		m.direct[row.method+" "+m.fill(row.target, path)] = res[2]
	}
}

func (m *matrix) fill(target, path string) string {
	account, _, _ := strings.Cut(path[1:], "/")
	return strings.NewReplacer("{stream}", path, "{account}", account, "{token}", m.token[path], "{offset}", m.offset[path]).Replace(target)
}

func bodyOf(row matrixRow) io.Reader {
	if row.method == "POST" || row.method == "PUT" {
		return strings.NewReader(matrixBody)
	}
	return http.NoBody
}

func headersOf(row matrixRow) []string {
	headers := row.headers
	if row.method == "POST" || row.method == "PUT" {
		headers = append(slices.Clone(headers), "Content-Type", rigType)
	}
	return headers
}

// count is a fault that breaks nothing: it notes what reached the node. The pool
// asks who the node is with no request id.
func (m *matrix) count(_ http.ResponseWriter, r *http.Request) bool {
	if id := r.Header.Get("X-Request-Id"); id != "" {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.hits[id] = append(m.hits[id], r.Method+" "+r.RequestURI)
		m.all++
	}
	return false
}

func (m *matrix) hitsOf(id string) []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.hits[id]
}

var _ ursulatest.Fault = (&matrix{}).count

// Every route × credential × stream × account has the answer of design §3–§5,
// and the node sees exactly one request where it is forwarded, none where it is
// refused.
//
// A16: status, headers or body told a stranger whether a stream exists. A18: a
// broken credential was served as none on a public stream. H17: a read-only key
// wrote. H20: a refused HEAD had another length than its GET. K03: refusals
// could be cached. P01, P04, P05, P09: what did not parse had no JSON answer.
func TestMatrix(t *testing.T) {
	m := newMatrix(t)
	forwarded := make(chan int, 16)
	t.Run("credentials", func(t *testing.T) {
		for _, credential := range []string{
			"none", "malformed", "unknown", "expired", "revoked", "read", "narrowed", "covering", "agent", "other", "full",
		} {
			t.Run(credential, func(t *testing.T) {
				t.Parallel()
				w := &matrixWalk{matrix: m, client: matrixClient(t), credential: credential, lengths: map[string]int64{}, private: map[string]string{}}
				w.walk(t)
				forwarded <- w.forwarded
			})
		}
	})
	close(forwarded)
	want := 0
	for n := range forwarded {
		want += n
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.all != want || want == 0 {
		t.Errorf("%d requests reached the node, want %d", m.all, want)
	}
}

func matrixClient(t *testing.T) *http.Client {
	t.Helper()
	transport := &http.Transport{DisableCompression: true}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport, CheckRedirect: client().CheckRedirect}
}

// matrixWalk is one credential's way through the table.
type matrixWalk struct {
	*matrix
	client     *http.Client
	credential string
	n          int
	forwarded  int
	lengths    map[string]int64  // of refused GETs, for their HEADs
	private    map[string]string // refusals of the private stream, for the missing one
}

func (w *matrixWalk) walk(t *testing.T) {
	for _, state := range []tenant.State{tenant.Active, tenant.Unpaid, tenant.Revoked} {
		for _, stream := range []string{"pub", "priv", "missing"} {
			for _, row := range w.rows {
				w.check(t, matrixCell{row, w.credential, stream, state})
			}
		}
	}
}

func (w *matrixWalk) check(t *testing.T, c matrixCell) {
	t.Helper()
	account := w.accounts[c.state]
	path := tenant.StreamPath(account, tenant.StreamName(c.stream))
	target := w.fill(c.row.target, path)
	w.n++
	id := fmt.Sprintf("%s-%d", c.credential, w.n)
	res := w.ask(t, c, account, target, id)
	want := c.expect()
	hits := w.hitsOf(id)
	if want.status == 0 {
		w.forwarded++
		if len(hits) != 1 || hits[0] != c.row.method+" "+target {
			t.Errorf("%s: the node saw %q, want the request once", c, hits)
		}
		checkForwarded(t, c, res, w.direct[c.row.method+" "+target])
		return
	}
	if len(hits) != 0 {
		t.Errorf("%s: the node saw %q, want nothing", c, hits)
	}
	checkRefused(t, c, want, res)
	w.checkSame(t, c, res)
}

func (w *matrixWalk) ask(t *testing.T, c matrixCell, account tenant.AccountID, target, id string) answer {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	// The target is set as it is: url.Parse would refuse some, or repair them.
	req, err := http.NewRequestWithContext(ctx, c.row.method, w.rig.URL, bodyOf(c.row))
	if err != nil {
		t.Fatal(err)
	}
	req.URL.Opaque = target
	req.Header.Set("X-Request-Id", id)
	headers := headersOf(c.row)
	for i := 0; i < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	if key := w.key(c.credential, account); key != "" {
		req.Header.Set("Authorization", "Bearer "+key)
	}
	res, err := w.client.Do(req)
	if err != nil {
		t.Fatalf("%s: %v", c, err)
	}
	defer func() { _ = res.Body.Close() }()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatalf("%s: body: %v", c, err)
	}
	if got := res.Header.Get("X-Request-Id"); got != id {
		t.Errorf("%s: X-Request-Id %q, want %q", c, got, id)
	}
	return answer{res, string(text)}
}

func (w *matrixWalk) key(credential string, account tenant.AccountID) string {
	switch credential {
	case "none":
		return ""
	case "malformed", "unknown":
		return w.rig.Keys[credential]
	case "other":
		return w.rig.Keys["other.full"]
	default:
		return w.rig.Keys[string(account)+"."+credential]
	}
}

// checkForwarded holds a node's answer, as the client has it, to the answer the
// node gave without a gateway.
func checkForwarded(t *testing.T, c matrixCell, res, direct answer) {
	t.Helper()
	if res.StatusCode != direct.StatusCode || res.code() != direct.code() || mediaType(res) != mediaType(direct) {
		t.Errorf("%s: got %d %q, the node says %d %q", c, res.StatusCode, res.Text, direct.StatusCode, direct.Text)
	}
	cacheControl := "no-store"
	if c.row.class == rowReadsImmutable && c.credential == "none" && c.stream == "pub" &&
		direct.Header.Get("Stream-Immutable") == "true" && direct.StatusCode == http.StatusOK {
		cacheControl = "public, max-age=300, immutable"
	}
	for name, want := range map[string]string{
		"Cache-Control": cacheControl, "Ursula-Protocol": "11", "Ursula-Cluster-Id": "ursulatest", "X-Content-Type-Options": "nosniff",
		"Content-Security-Policy": "sandbox; default-src 'none'; frame-ancestors 'none'", "Www-Authenticate": "",
	} {
		if got := res.Header.Get(name); got != want {
			t.Errorf("%s: %s: %q, want %q", c, name, got, want)
		}
	}
}

// mediaType is the Content-Type without its parameters: a bootstrap's boundary is
// another each time.
func mediaType(a answer) string {
	media, _, _ := strings.Cut(a.Header.Get("Content-Type"), ";")
	return media
}

// refusalHeaders are all that a refusal of the table may carry.
var refusalHeaders = []string{
	"Allow", "Cache-Control", "Content-Length", "Content-Security-Policy", "Content-Type", "Cross-Origin-Resource-Policy",
	"Date", "Www-Authenticate", "X-Content-Type-Options", "X-Request-Id",
}

func checkRefused(t *testing.T, c matrixCell, want matrixVerdict, res answer) {
	t.Helper()
	if res.StatusCode != want.status {
		t.Errorf("%s: got %d %s, want %d %s", c, res.StatusCode, res.Text, want.status, want.code)
		return
	}
	for name := range res.Header {
		if !slices.Contains(refusalHeaders, name) {
			t.Errorf("%s: a refusal with %s", c, name)
		}
	}
	for name, value := range map[string]string{"Content-Type": "application/json", "Cache-Control": "no-store", "Allow": c.row.allow} {
		if got := res.Header.Get(name); got != value {
			t.Errorf("%s: %s: %q, want %q", c, name, got, value)
		}
	}
	challenge := res.Header.Get("WWW-Authenticate")
	if (challenge != "") != (want.status == 401) || !strings.Contains(challenge, want.challenge) ||
		want.challenge == "Bearer" && strings.Contains(challenge, "error=") {
		t.Errorf("%s: WWW-Authenticate: %q", c, challenge)
	}
	if res.Close {
		t.Errorf("%s: the connection is closed", c)
	}
	if c.row.method == http.MethodHead {
		if res.Text != "" || res.ContentLength <= 0 {
			t.Errorf("%s: a HEAD with the body %q and the length %d", c, res.Text, res.ContentLength)
		}
		return
	}
	checkErrorBody(t, c, want.code, res.Text)
}

// checkErrorBody wants the shape of design §4 and nothing else, and a message
// that names nothing of the request or of the inside.
func checkErrorBody(t *testing.T, c matrixCell, code, text string) {
	t.Helper()
	var body map[string]map[string]string
	if err := json.Unmarshal([]byte(text), &body); err != nil || len(body) != 1 {
		t.Errorf("%s: body %q: %v", c, text, err)
		return
	}
	if fields := slices.Sorted(maps.Keys(body["error"])); !slices.Equal(fields, []string{"code", "message"}) || body["error"]["code"] != code {
		t.Errorf("%s: body %q, want the code %s", c, text, code)
	}
	message := body["error"]["message"]
	for _, inside := range []string{"127.0.0.1", "tbo_", "acme", "poor", "gone", "priv", "missing"} {
		if message == "" || strings.Contains(message, inside) {
			t.Errorf("%s: message %q", c, message)
		}
	}
}

// checkSame compares what may not differ: a HEAD's length with its GET's, and
// everything about a missing stream with a private one.
func (w *matrixWalk) checkSame(t *testing.T, c matrixCell, res answer) {
	t.Helper()
	of := fmt.Sprint(c.row.target, c.stream, c.state)
	switch c.row.method {
	case http.MethodGet:
		w.lengths[of] = int64(len(res.Text))
	case http.MethodHead:
		if w.lengths[of] != res.ContentLength {
			t.Errorf("%s: length %d, its GET has %d", c, res.ContentLength, w.lengths[of])
		}
	}
	h := res.Header.Clone()
	h.Del("X-Request-Id")
	h.Del("Date")
	whole := fmt.Sprint(res.StatusCode, h, res.Text)
	of = fmt.Sprint(c.row, c.state)
	switch c.stream {
	case "priv":
		w.private[of] = whole
	case "missing":
		if w.private[of] != whole {
			t.Errorf("%s: got %s, the private stream %s", c, whole, w.private[of])
		}
	}
}
