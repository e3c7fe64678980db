package main

import (
	"fmt"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"sluice/internal/pebbletest"
	"sluice/internal/postgrestest"
	"sluice/internal/ursulatest"
)

// securedFleet are replicas of one store that have their certificates of Pebble.
type securedFleet struct {
	t        *testing.T
	pebble   *pebbletest.Server
	replicas []*replica
	domains  []string
}

// newSecuredFleet starts replicas behind a load balancer each for HTTP and HTTPS, so that a
// challenge may be asked of another replica than the one that opened it.
func newSecuredFleet(t *testing.T, n int, life time.Duration, domains ...string) *securedFleet {
	t.Helper()
	nodes := ursulatest.New(ursulatest.Options{})
	if err := nodes.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = nodes.Close() })
	database := postgrestest.Start(t).Database(t, "")
	public, plain := make([]string, n), make([]string, n)
	for i := range n {
		public[i], plain[i] = freePort(t), freePort(t)
	}
	f := &securedFleet{t: t, domains: domains}
	f.pebble = pebbletest.Start(t, pebbletest.Options{HTTPPort: balance(t, plain...), TLSPort: balance(t, public...), Life: life})
	for i := range n {
		section := fmt.Sprintf("tls: {mode: acme, domains: [%s], email: ops@example.com, http_listen: %q, ca: %q, ca_root: %q}\n",
			strings.Join(domains, ", "), plain[i], f.pebble.URL, f.pebble.RootFile)
		file := strings.Replace(managedFile(nodes.URLs(), database, "15m", sealedAuth+section), "listen: 127.0.0.1:0\n", "listen: "+public[i]+"\n", 1)
		r := startReplica(t, file)
		r.URL = "https://" + public[i]
		f.replicas = append(f.replicas, r)
	}
	for _, r := range f.replicas {
		r.awaitReady(t)
	}
	return f
}

// orders wants each name ordered so often.
func (f *securedFleet) orders(want int) {
	f.t.Helper()
	for _, name := range f.domains {
		if n := f.pebble.Orders(name); n != want {
			f.t.Errorf("%s was ordered %d times, want %d", name, n, want)
		}
	}
}

// serve wants each replica to serve a valid certificate for each name, and gives their
// serial numbers, of which all replicas have to have the same once same is set.
func (f *securedFleet) serve() (serials map[string]string, same bool) {
	f.t.Helper()
	serials, same = make(map[string]string), true
	for _, name := range f.domains {
		for _, r := range f.replicas {
			c, err := presented(f.t, r.URL, name, f.pebble.Issues)
			if err != nil {
				f.t.Fatalf("%s at %s: %v", name, r.URL, err)
			}
			serial := c.SerialNumber.String()
			if before, ok := serials[name]; ok && before != serial {
				same = false
			}
			serials[name] = serial
		}
	}
	return serials, same
}

// renewed waits until all replicas serve another certificate than the one before for each
// name. Meanwhile each handshake has to be good.
func (f *securedFleet) renewed(before map[string]string, within time.Duration) map[string]string {
	f.t.Helper()
	deadline := time.Now().Add(within)
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		now, same := f.serve()
		for name := range before {
			same = same && now[name] != before[name]
		}
		if same {
			return now
		}
		if time.Now().After(deadline) {
			f.t.Fatalf("not renewed by all within %v", within)
		}
		<-tick.C
	}
}

func (f *securedFleet) failing(name string) bool {
	failing := false
	for _, r := range f.replicas {
		failing = failing || r.gauge(f.t, `sluice_certificate_failing{domain="`+name+`"}`) == 1
	}
	return failing
}

// C01, C03, C06: replicas ordered each name once each, or served what a peer had replaced;
// the redirect ate challenges; and with the authority away over a renewal the valid
// certificate went out of use. With SLUICE_SOAK=1 certificates live for 2 minutes.
func TestReplicasShareCertificates(t *testing.T) {
	life := 30 * time.Second
	if os.Getenv("SLUICE_SOAK") == "1" {
		life = 2 * time.Minute
	}
	f := newSecuredFleet(t, 2, life, "streams.example.com", "other.example.com")
	first, _ := f.serve()
	f.orders(1)
	second := f.renewed(first, life)
	f.orders(2)
	// Both were there when it asked anew.
	for _, r := range f.replicas {
		if r.lines(t, `"message":"answered a challenge"`) == 0 {
			t.Error("a replica answered no challenge: the balancer leads to one alone")
		}
		if strings.Contains(r.logged(t), "PRIVATE KEY") {
			t.Error("a private key is in the log")
		}
	}

	f.pebble.Down(t)
	for !f.failing("streams.example.com") || !f.failing("other.example.com") {
		if now, _ := f.serve(); now["streams.example.com"] != second["streams.example.com"] {
			t.Fatal("a certificate came from nowhere")
		}
	}
	for _, r := range f.replicas {
		if !answersWith(t, r.Admin+"/readyz", http.StatusOK, 5*time.Second) {
			t.Error("a replica with a valid certificate is not ready")
		}
	}
	f.pebble.Up(t)
	f.renewed(second, life)
	eventually(t, "the gauge is down again", func() bool { return !f.failing("streams.example.com") && !f.failing("other.example.com") })
	f.orders(3)
}

// C06: there is nobody to order of, at the first start. The gateway says what it lacks,
// answers /livez, refuses handshakes, and is ready as soon as there is a certificate.
func TestNoCertificateYet(t *testing.T) {
	nodes, public, plain := standIn(t), freePort(t), freePort(t)
	pebble := pebbletest.Start(t, pebbletest.Options{HTTPPort: balance(t, plain), TLSPort: balance(t, public), Life: time.Hour})
	pebble.Down(t)
	e := &edge{Account: testAccount(t), Key: newTestKey(t), Reads: newTestKey(t)}
	file := edgeFile(e, []string{nodes}, fmt.Sprintf("tls: {mode: acme, http_listen: %q, ca: %q, ca_root: %q, storage: %q}\n", plain, pebble.URL, pebble.RootFile, t.TempDir()))
	log, err := os.Create(t.TempDir() + "/log")
	if err != nil {
		t.Fatal(err)
	}
	p, _ := runProcess(t, e, strings.Replace(file, "listen: 127.0.0.1:0\n", "listen: "+public+"\n", 1), log)
	p.URL = "https://" + public
	eventually(t, "it lives", func() bool { return answersWith(t, p.Admin+"/livez", http.StatusNoContent, time.Second) })
	eventually(t, "it says what is missing", func() bool {
		return strings.Contains(p.admin(t, http.MethodGet, "/readyz").Text, `"certificates":"1 of 1 without a certificate that is valid now"`)
	})
	if _, err := presented(t, p.URL, "streams.example.com", pebble.Issues); err == nil || !strings.Contains(err.Error(), "internal error") {
		t.Errorf("a handshake: %v", err)
	}
	if _, err := presented(t, p.URL, "foreign.example.com", pebble.Issues); err == nil || !strings.Contains(err.Error(), "unrecognized name") {
		t.Errorf("a foreign name: %v", err)
	}
	pebble.Up(t)
	eventually(t, "it is ready", func() bool { return answersWith(t, p.Admin+"/readyz", http.StatusOK, time.Second) })
	c, err := presented(t, p.URL, "streams.example.com", pebble.Issues)
	if err != nil || len(c.DNSNames) != 1 {
		t.Errorf("%v", err)
	}
}
