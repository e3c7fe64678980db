package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"sluice/auth"
	"sluice/internal/refusal"
	"sluice/internal/tenant"
	"sluice/internal/usage"
	"sluice/ratelimit"
)

// explain asks about a request with the key of that name.
func (rg *rig) explain(t *testing.T, method, url, keyName string, headers ...string) Explanation {
	t.Helper()
	if text := rg.Keys[keyName]; text != "" {
		headers = append(headers, "Authorization: Bearer "+text)
	}
	x, err := rg.Gateway.Explain(t.Context(), Question{Method: method, URL: url, Headers: headers})
	if err != nil {
		t.Fatal(err)
	}
	return x
}

// last is what the last step said.
func (x Explanation) last() ExplainedStep { return x.Steps[len(x.Steps)-1] }

// With the rate used up it is 429 and says how long, as often as it is asked; and a thousand
// questions take nothing of a rate, of tails and of uploads.
func TestExplainTakesNothing(t *testing.T) {
	still := time.Now()
	limits := ratelimit.NewMemory(ratelimit.MemoryOptions{Now: func() time.Time { return still }})
	meter := usage.NewMeter(usage.Options{})
	rg := newRig(t, rigOptions{
		limits: func(l *tenant.Limits) { l.RequestsPerSecond, l.Burst, l.OpenTails, l.Uploads = 2, 3, 1, 1 },
		change: func(o *Options) {
			o.Limiter, o.Tails, o.Uploads, o.FailedPerMinute, o.Meter = limits, limits, limits, 5, meter
			o.Failures = limits
		},
	})
	const read, tail = "/acme/s.priv?offset=-1", "/acme/s.priv?offset=now&live=sse"
	for range 300 {
		for _, x := range []Explanation{
			rg.explain(t, "GET", read, key), rg.explain(t, "GET", tail, key), rg.explain(t, "POST", "/acme/s.priv", key, "Content-Length: 2000000"),
		} {
			if x.Outcome != Forwarded {
				t.Fatalf("%+v", x)
			}
		}
		if x := rg.explain(t, "GET", read, "unknown"); x.Status != 401 || x.Code != string(refusal.InvalidCredential) || !strings.Contains(x.last().Why, "unknown API key") {
			t.Fatalf("%+v", x)
		}
	}
	if n := limits.Subjects(); n != 0 || limits.OpenTails() != 0 || limits.OpenUploads() != 0 || rg.Cluster.Hits() != 0 {
		t.Fatalf("%d buckets, %d tails, %d uploads, %d requests at the node", n, limits.OpenTails(), limits.OpenUploads(), rg.Cluster.Hits())
	}
	if lines := rg.requestLines(t); len(lines) != 0 {
		t.Errorf("the log has %v", lines)
	}
	for range 3 {
		if res := rg.Do(t, "GET", read, key, ""); res.StatusCode != 200 {
			t.Fatalf("%d %s", res.StatusCode, res.Text)
		}
	}
	for range 100 {
		if x := rg.explain(t, "GET", read, key); x.Status != 429 || x.Code != string(refusal.RateLimited) || x.Headers["Retry-After"] != "1" || x.last().Step != stepRate {
			t.Fatalf("%+v", x)
		}
	}
	still = still.Add(time.Second)
	if x := rg.explain(t, "GET", read, key); x.Outcome != Forwarded || !slices.ContainsFunc(x.Steps, func(s ExplainedStep) bool {
		return s.Step == stepRate && strings.HasPrefix(s.Why, "1 requests are left")
	}) {
		t.Errorf("a second later: %+v", x)
	}
}

// What is held now is seen: tails, uploads, and the memory for bodies.
func TestExplainSeesWhatIsHeld(t *testing.T) {
	rg := newRig(t, rigOptions{limits: func(l *tenant.Limits) { l.OpenTails, l.Uploads, l.UploadBytes = 1, 2, 3<<20 }})
	owner := ratelimit.Subject{Account: "acme"}
	tail, err := rg.Limits.Acquire(t.Context(), owner, 1)
	if err != nil {
		t.Fatal(err)
	}
	const sse, large = "/acme/s.priv?offset=now&live=sse", "Content-Length: 2097152"
	if x := rg.explain(t, "GET", sse, key); x.Status != 429 || x.Code != string(refusal.LiveReadsExhausted) {
		t.Errorf("with its tail open: %+v", x)
	}
	tail.Release()
	if x := rg.explain(t, "GET", sse, key); x.Outcome != Forwarded {
		t.Errorf("with no tail open: %+v", x)
	}
	limits := ratelimit.UploadLimits{Uploads: 2, Bytes: 3 << 20}
	upload, err := rg.Limits.AcquireUpload(t.Context(), owner, limits, 2<<20)
	if err != nil {
		t.Fatal(err)
	}
	if x := rg.explain(t, "POST", "/acme/s.priv", key, large); x.Code != string(refusal.UploadBytesExhausted) {
		t.Errorf("with another upload under way: %+v", x)
	}
	upload.Release()
	held := &reservation{budget: rg.Budget}
	if err := held.resize(t.Context(), 48<<20); err != nil {
		t.Fatal(err)
	}
	defer held.release()
	if x := rg.explain(t, "POST", "/acme/s.priv", key, "Content-Length: 8388608"); x.Outcome != Forwarded {
		t.Errorf("with room for it: %+v", x)
	}
	if err := held.resize(t.Context(), 56<<20); err != nil {
		t.Fatal(err)
	}
	if x := rg.explain(t, "POST", "/acme/s.priv", key, "Content-Length: 8388608"); x.Outcome != Forwarded {
		t.Errorf("with just room for it: %+v", x)
	}
	held.release()
	rg.Budget.used.Store(60 << 20) // as many small ones would
	if x := rg.explain(t, "POST", "/acme/s.priv", key, "Content-Length: 8388608"); x.Status != 503 || x.Code != string(refusal.UploadBudgetExhausted) {
		t.Errorf("without room for it: %+v", x)
	}
	rg.Budget.used.Store(0)
}

// No credential is repeated, wherever it stands in the question.
func TestExplainPrintsNoSecret(t *testing.T) {
	rg := newRig(t, rigOptions{origins: []string{"https://app.example.com"}})
	text, token := rg.Keys[key], rg.token(t, key)
	for _, q := range []Question{
		{URL: "/acme/s.priv", Headers: []string{"Authorization: Bearer " + text}},
		{URL: "/acme/s.priv", Headers: []string{"Authorization: Bearer " + token}},
		{URL: "/acme/s.priv?key=" + text, Headers: []string{"Authorization: Bearer " + text, "X-Mine: " + text, "Cookie: a=" + token, "Origin: " + text}},
		{URL: "/acme/s." + text},
		{URL: "/" + text + "/s.x"},
		{Method: "DELETE", URL: "/acme/s.priv/" + token},
		{Method: text, URL: "/acme/s.priv"},
		{URL: "/acme/s.priv", Headers: []string{"Authorization: Bearer " + text + "x"}},
		{Method: "OPTIONS", URL: "/acme/s.priv", Headers: []string{"Origin: https://app.example.com", "Access-Control-Request-Method: POST", "Access-Control-Request-Headers: " + text}},
		{URL: "/acme/s.priv", Headers: []string{text}},
		{URL: "/acme/s.priv", Client: text},
		{URL: "/acme/s.priv\n" + text},
	} {
		x, err := rg.Gateway.Explain(t.Context(), q)
		said, marshalErr := json.Marshal(x)
		if marshalErr != nil {
			t.Fatal(marshalErr)
		}
		if err != nil && !errors.Is(err, ErrQuestion) {
			t.Errorf("%v", err)
		}
		for _, secret := range []string{text, token, text[4:20]} {
			if strings.Contains(string(said)+fmt.Sprint(err), secret) {
				t.Errorf("it repeats a credential: %s %v", said, err)
			}
		}
	}
}

// A key that is asked about is not used, nor is a token of it remembered.
func TestExplainUsesNoKey(t *testing.T) {
	used := make(chan string, 100)
	rg := newRig(t, rigOptions{change: func(o *Options) {
		o.Authenticator = auth.New(auth.Options{Directory: o.Directory, Now: time.Now, Origin: rigOrigin, Used: func(id string) { used <- id }})
	}})
	token := rg.token(t, key)
	for len(used) > 0 {
		<-used
	}
	before := rg.Options.Authenticator.TokenStats()
	for _, credential := range []string{rg.Keys[key], token} {
		x, err := rg.Gateway.Explain(context.Background(), Question{URL: "/acme/s.priv", Headers: []string{"Authorization: Bearer " + credential}})
		if err != nil || x.Outcome != Forwarded {
			t.Fatalf("%v %+v", err, x)
		}
	}
	if len(used) > 0 || rg.Options.Authenticator.TokenStats() != before {
		t.Errorf("%d uses were told, the memory of tokens is %+v, was %+v", len(used), rg.Options.Authenticator.TokenStats(), before)
	}
	if res := rg.Do(t, http.MethodGet, "/acme/s.priv?offset=-1", key, ""); res.StatusCode != 200 || len(used) != 1 {
		t.Errorf("a real request: %d, %d uses", res.StatusCode, len(used))
	}
}

// Each step says why, in the order of the chain, and what a node would get.
func TestExplainSaysWhy(t *testing.T) {
	rg := newRig(t, rigOptions{})
	x := rg.explain(t, "GET", rigOrigin+"/acme/s.pub/incarnation/7/chunk/0", "other.full", "X-Forwarded-For: 192.0.2.1", "Cookie: a=b", "Accept: */*")
	var said strings.Builder
	for _, s := range x.Steps {
		fmt.Fprintf(&said, "%s %s: %s\n", s.Step, s.Outcome, s.Why)
	}
	want := `scope passed: client 127.0.0.1: it is not in trusted_proxies, so that what it forwards for is not believed
cors skipped: cors.origins is empty: no header of CORS is sent
route passed: read_chunk of stream pub of account acme: a read of what never changes
own skipped: it is about a stream
authenticate passed: key other/full of account other: reads and writes all streams
authorize passed: the stream is public: anybody reads it, and is counted with the strangers
account passed: account acme is active
lifecycle skipped: it makes and deletes no stream
size skipped: no body
rate passed: 999999 requests of the strangers of this account are left after this one, of 1000000 at once and 1000000 a second
tail skipped: no live read
live skipped: no live read
body skipped: no body
change skipped: it makes and deletes no stream
proxy passed: goes to any node, since all have it
`
	if said.String() != want {
		t.Errorf("got\n%s\nwant\n%s", said.String(), want)
	}
	f := x.Forwarded
	if f.Method+" "+f.Target != "GET /acme/s.pub/incarnation/7/chunk/0" || f.CacheControl != "no-store" || f.Headers["Accept"] != "*/*" || f.Headers["Cookie"] != "" {
		t.Errorf("%+v", f)
	}
	if x := rg.explain(t, "GET", "/acme/s.pub/incarnation/7/chunk/0", ""); x.Forwarded == nil || x.Forwarded.CacheControl != "public, max-age=300, immutable" {
		t.Errorf("a stranger: %+v", x.Forwarded)
	}
	for url, why := range map[string]string{
		"/other/s.priv": "another account's stream",
		"/acme/s.priv":  "",
	} {
		if x := rg.explain(t, "GET", url, key); why != "" && !strings.Contains(x.last().Why, why) {
			t.Errorf("%s: %+v", url, x.last())
		}
	}
}
