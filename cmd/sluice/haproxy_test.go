package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"sluice/internal/realpart"
)

// haproxyConfigs are those that docs/operations.md has operators write: TCP, then HTTP.
func haproxyConfigs(t *testing.T) []string {
	t.Helper()
	blocks := regexp.MustCompile("(?s)```haproxy\n(.*?)```").FindAllStringSubmatch(readFile(t, operationsPage), -1)
	if len(blocks) != 2 {
		t.Fatalf("%d configurations of HAProxy in %s, want 2", len(blocks), operationsPage)
	}
	return []string{blocks[0][1], blocks[1][1]}
}

// startHAProxy runs the real one with a page's configuration, on a port of this machine and
// in front of a replica, and gives its address and the file of its log.
func startHAProxy(t *testing.T, file string, r *replica) (address, log string) {
	t.Helper()
	t.Setenv("PATH", os.Getenv("PATH")+":/usr/sbin") // where Debian has it
	needCommand(t, "haproxy")
	address = freePort(t)
	_, adminPort, _ := strings.Cut(strings.TrimPrefix(r.Admin, "http://"), ":")
	file = strings.NewReplacer("bind :443", "bind "+address, "port 9090", "port "+adminPort, " alpn h2,http/1.1", " alpn http/1.1",
		"10.0.0.21:443", r.address(), "10.0.0.21:8080", r.address()).Replace(file)
	file = regexp.MustCompile(`.*server sluice-2.*\n`).ReplaceAllString(file, "")
	dir := t.TempDir()
	config := filepath.Join(dir, "haproxy.cfg")
	log = filepath.Join(dir, "log")
	writeFile(t, config, file)
	out, err := os.Create(log)
	must(t, err)
	cmd := exec.CommandContext(context.WithoutCancel(t.Context()), "haproxy", "-db", "-f", config)
	cmd.Stdout, cmd.Stderr = out, out
	var p realpart.Process
	must(t, p.Run(cmd), out.Close())
	t.Cleanup(func() {
		p.Kill()
		if t.Failed() {
			t.Logf("HAProxy:\n%s", realpart.Tail(log, 4000))
		}
	})
	return address, log
}

// proxiedReplica is a process of the program with a store, and an account of the API.
func proxiedReplica(t *testing.T, sections string) (r *replica, account, key string) {
	t.Helper()
	file := managedFile([]string{standIn(t)}, "sqlite:"+filepath.Join(t.TempDir(), "sluice.db"), "15m", sections)
	r = startReplica(t, strings.Replace(file, "failed_credentials_per_minute: 0", "failed_credentials_per_minute: 60", 1))
	r.awaitReady(t)
	account = testAccount(t)
	made := r.manage(t, "", http.MethodPost, "/v1/accounts", fields{"id": account})
	want(t, made, http.StatusCreated)
	return r, account, made.member(t, "api_key", "key")
}

// behind is a client of an address of this machine that reaches the gateway through HAProxy.
type behind struct {
	*edge

	local string
}

func (b behind) do(t *testing.T, key, method, path, body string) reply {
	t.Helper()
	return b.doAs(t, throughBalancer(http1(), b.local, ""), key, method, path, []byte(body), "Content-Type", "application/json",
		"X-Forwarded-For", "198.51.100.66", "X-Request-Id", "through-haproxy")
}

// H08, H09: behind a real HAProxy that passes connections on, by both versions of the
// protocol, in clear and with TLS ended here, the log, the audit and the limit of failures
// have the client's address, and none that it made up.
func TestBehindHAProxy(t *testing.T) {
	const client, other = "127.0.0.3", "127.0.0.4" // the balancer's is 127.0.0.1
	page := haproxyConfigs(t)[0]
	for _, over := range []string{"", "tls: {mode: internal}\n"} {
		for _, word := range []string{"send-proxy-v2", "send-proxy"} {
			name := word
			if over != "" {
				name += " with TLS"
			}
			t.Run(name, func(t *testing.T) {
				r, account, key := proxiedReplica(t, over+"proxy_protocol: required\ntrusted_proxies: ["+balancerAddress+"]\n")
				address, _ := startHAProxy(t, strings.Replace(page, "send-proxy-v2", word, 1), r)
				scheme := "http://"
				if over != "" {
					scheme = "https://"
				}
				c := behind{&edge{URL: scheme + address}, client}
				answersThrough(t, c, key)
				want(t, c.do(t, key, http.MethodPost, "/v1/streams", `{"name":"events","content_type":"application/json"}`), http.StatusCreated)
				eventually(t, "the log has the client", func() bool {
					return strings.Contains(r.logged(t), `"client":"`+client+`"`)
				})
				if log := r.logged(t); strings.Contains(log, "198.51.100.66") || strings.Contains(log, `"client":"`+balancerAddress+`"`) || strings.Contains(log, "PROXY header") {
					t.Errorf("the log has what a client says, or the balancer as a client, or a refusal:\n%s", log)
				}
				audit := r.manage(t, "", http.MethodGet, "/v1/audit?action=stream.create&account="+account, nil)
				want(t, audit, http.StatusOK)
				if !strings.Contains(audit.Text, `"from":"`+client+`"`) || !strings.Contains(audit.Text, "through-haproxy") {
					t.Errorf("the audit: %s", audit.Text)
				}
				for range 62 {
					c.do(t, "tnb_bad", http.MethodGet, "/v1/account", "")
				}
				want(t, c.do(t, "tnb_bad", http.MethodGet, "/v1/account", ""), http.StatusTooManyRequests)
				want(t, behind{c.edge, other}.do(t, "tnb_bad", http.MethodGet, "/v1/account", ""), http.StatusUnauthorized)
			})
		}
	}
}

// HAProxy looks at the traffic port itself: what it opens for that is no fault, names nobody,
// and has it be up.
func TestHAProxyChecksThePort(t *testing.T) {
	page := regexp.MustCompile(`.*option httpchk.*\n`).ReplaceAllString(haproxyConfigs(t)[0], "")
	for _, word := range []string{"send-proxy-v2", "send-proxy"} {
		r, _, key := proxiedReplica(t, "proxy_protocol: required\ntrusted_proxies: ["+balancerAddress+"]\nlog: {level: debug}\n")
		file := strings.NewReplacer("send-proxy-v2 check port 9090 inter 1s", word+" check inter 50ms",
			"    mode tcp\n", "    mode tcp\n    log stdout format raw daemon\n    option log-health-checks\n").Replace(page)
		address, log := startHAProxy(t, file, r)
		c := behind{&edge{URL: "http://" + address}, "127.0.0.3"}
		answersThrough(t, c, key)
		eventually(t, "the check is done", func() bool {
			return strings.Contains(readFile(t, log), "Health check for server sluice/sluice-1 succeeded")
		})
		for line := range strings.Lines(r.admin(t, http.MethodGet, "/metrics").Text) {
			if outcome, ok := strings.CutPrefix(line, "sluice_proxy_headers_total{outcome="); ok && !strings.HasPrefix(outcome, `"client"`) && !strings.HasPrefix(outcome, `"balancer"`) {
				t.Errorf("%s: %s", word, line)
			}
		}
	}
}

// Behind an HAProxy that passes requests on it is X-Forwarded-For that tells.
func TestBehindHAProxyOverHTTP(t *testing.T) {
	r, _, key := proxiedReplica(t, "trusted_proxies: ["+balancerAddress+"]\n")
	pair := filepath.Join(t.TempDir(), "streams.pem")
	writeFile(t, pair, anyCertificate(t))
	address, _ := startHAProxy(t, strings.Replace(haproxyConfigs(t)[1], "/etc/haproxy/streams.pem", pair, 1), r)
	c := behind{&edge{URL: "https://" + address}, "127.0.0.3"}
	answersThrough(t, c, key)
	eventually(t, "the log has the client", func() bool { return strings.Contains(r.logged(t), `"client":"127.0.0.3"`) })
	if log := r.logged(t); strings.Contains(log, "198.51.100.66") {
		t.Errorf("the log has what a client says:\n%s", log)
	}
}

// answersThrough waits until HAProxy serves, has found the replica ready, and the key is known.
func answersThrough(t *testing.T, c behind, key string) {
	t.Helper()
	client := throughBalancer(http1(), c.local, "")
	defer client.CloseIdleConnections()
	eventually(t, "HAProxy passes it on", func() bool {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, c.URL+"/v1/account", nil)
		must(t, err)
		req.Header.Set("Authorization", "Bearer "+key)
		req.Header.Set("X-Forwarded-For", "198.51.100.66")
		res, err := client.Do(req)
		if err != nil {
			return false
		}
		_ = res.Body.Close()
		return res.StatusCode == http.StatusOK
	})
}

// anyCertificate is one that nobody trusts, with its key.
func anyCertificate(t *testing.T) string {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "streams.example.com"}, NotAfter: time.Now().Add(time.Hour)}
	raw, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	must(t, err)
	private, err := x509.MarshalPKCS8PrivateKey(key)
	must(t, err)
	return fmt.Sprintf("%s%s", pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: raw}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}))
}
