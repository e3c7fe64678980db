package deploy

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	monitoring "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	apps "k8s.io/api/apps/v1"
	autoscaling "k8s.io/api/autoscaling/v2"
	core "k8s.io/api/core/v1"
	networking "k8s.io/api/networking/v1"
	policy "k8s.io/api/policy/v1"
)

// Where all is asked for all is there: autoscaling in place of a number of replicas, a
// closed network, a budget, and what Prometheus and Grafana are told.
func TestChartParts(t *testing.T) {
	t.Parallel()
	r, err := render(t, "everything-values.yaml", nil)
	if err != nil {
		t.Fatal(err)
	}
	d := of[*apps.Deployment](t, r, "Deployment edge-sluice")
	if d.Spec.Replicas != nil || !strings.Contains(d.Spec.Template.Spec.Containers[0].Image, "@sha256:") {
		t.Errorf("replicas %v, image %s", d.Spec.Replicas, d.Spec.Template.Spec.Containers[0].Image)
	}
	if got := *d.Spec.Template.Spec.TerminationGracePeriodSeconds; got != 150 {
		t.Errorf("%d s to end", got)
	}
	h := of[*autoscaling.HorizontalPodAutoscaler](t, r, "HorizontalPodAutoscaler edge-sluice")
	if h.Spec.ScaleTargetRef.Name != d.Name || *h.Spec.MinReplicas != 3 || h.Spec.MaxReplicas != 10 || len(h.Spec.Metrics) != 2 {
		t.Errorf("%+v", h.Spec)
	}
	b := of[*policy.PodDisruptionBudget](t, r, "PodDisruptionBudget edge-sluice")
	if b.Spec.MaxUnavailable.IntValue() != 1 {
		t.Errorf("%+v", b.Spec)
	}
	n := of[*networking.NetworkPolicy](t, r, "NetworkPolicy edge-sluice")
	if len(n.Spec.PolicyTypes) != 2 || len(n.Spec.Ingress) != 2 || len(n.Spec.Egress) != 2 || len(n.Spec.Ingress[1].From) != 1 || n.Spec.Ingress[1].Ports[0].Port.String() != "admin" {
		t.Errorf("%+v", n.Spec)
	}
	m := of[*monitoring.ServiceMonitor](t, r, "ServiceMonitor edge-sluice")
	a := of[*core.Service](t, r, "Service edge-sluice-admin")
	for key, value := range m.Spec.Selector.MatchLabels {
		if a.Labels[key] != value {
			t.Errorf("the monitor looks for %s=%s, and the Service has %q", key, value, a.Labels[key])
		}
	}
	if a.Labels[m.Spec.JobLabel] != "sluice" {
		t.Errorf("the job is %q", a.Labels[m.Spec.JobLabel])
	}
	for key, value := range d.Spec.Selector.MatchLabels {
		if d.Spec.Template.Labels[key] != value || b.Spec.Selector.MatchLabels[key] != value || n.Spec.PodSelector.MatchLabels[key] != value || a.Spec.Selector[key] != value {
			t.Errorf("not all select %s=%s", key, value)
		}
	}
	rule := of[*monitoring.PrometheusRule](t, r, "PrometheusRule edge-sluice")
	if got, want := len(rule.Spec.Groups[0].Rules), strings.Count(file(t, "deploy/prometheus/alerts.yaml"), "- alert: "); got != want {
		t.Errorf("%d alerts, want %d", got, want)
	}
	if got := of[*core.ConfigMap](t, r, "ConfigMap edge-sluice-dashboard").Data["sluice.json"]; got != strings.TrimSuffix(file(t, "deploy/grafana/sluice.json"), "\n") {
		t.Error("the dashboard is another")
	}
	// By default nobody comes to the admin listener, and the public one is open.
	r, err = render(t, "declared-values.yaml", nil)
	if err != nil {
		t.Fatal(err)
	}
	n = of[*networking.NetworkPolicy](t, r, "NetworkPolicy edge-sluice")
	if len(n.Spec.Ingress) != 1 || n.Spec.Ingress[0].Ports[0].Port.String() != "public" || len(n.Spec.PolicyTypes) != 1 {
		t.Errorf("%+v", n.Spec)
	}
}

// What cannot work, or would put a secret into a ConfigMap, is refused with words.
func TestChartRefuses(t *testing.T) {
	t.Parallel()
	type m = map[string]any
	for says, values := range map[string]m{
		"secrets.adminToken.name": {"secrets": m{"adminToken": m{"name": ""}}},
		"secrets.sealingKey.name": {"secrets": m{"databaseURL": m{"name": "postgres"}}},
		"config.admin.token":      {"config": m{"admin": m{"token": "plain"}}},
		"config.auth.sealing_key": {"config": m{"auth": m{"sealing_key": "plain"}}},
		"config.store.url":        {"config": m{"store": m{"url": "sqlite:/var/lib/sluice/sluice.db"}}},
		"config.redis":            {"config": m{"redis": m{"url": "redis://:pass@10.0.0.1/0"}}},
		"config.drain_timeout":    {"config": m{"drain_timeout": "10m"}},
		"origin":                  {"config": m{"origin": ""}},
		"nodes":                   {"config": m{"ursula": m{"nodes": []any{}}}},
		"additional properties":   {"replicaCount": 3},
		"replicas":                {"replicas": 0},
	} {
		if _, err := render(t, "declared-values.yaml", values); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%v: %v, want a word of %s", values, err, says)
		}
	}
}

// A change that a reload takes up starts no pod anew; one that it does not, does.
func TestChartRestarts(t *testing.T) {
	t.Parallel()
	type m = map[string]any
	sum := func(more m) string {
		r, err := render(t, "plain-values.yaml", more)
		if err != nil {
			t.Fatal(err)
		}
		return of[*apps.Deployment](t, r, "Deployment edge-sluice").Spec.Template.Annotations["checksum/restart"]
	}
	before := sum(nil)
	for _, more := range []m{{"config": m{"limits": m{"default": m{"open_tails": 5}}}}, {"config": m{"auth": m{"token_lifetime": "1m"}}}, {"config": m{"log": m{"level": "debug"}}}} {
		if sum(more) != before {
			t.Errorf("%v starts pods anew", more)
		}
	}
	for _, more := range []m{{"config": m{"origin": "https://other.example.com"}}, {"config": m{"usage": m{"flush": "1m"}}}, {"config": m{"proxy_protocol": "optional"}}, {"secrets": m{"redisURL": m{"name": "redis"}}}, {"tls": m{"secretName": "tls"}}} {
		if sum(more) == before {
			t.Errorf("%v is not taken up", more)
		}
	}
}

func itoa(n int32) string { return strconv.Itoa(int(n)) }

func seconds(t *testing.T, text string) int64 {
	t.Helper()
	d, err := time.ParseDuration(text)
	if err != nil {
		t.Fatal(err)
	}
	return int64(d / time.Second)
}

// pair makes a certificate for the origin of the values, and returns its folder with a
// slash behind it.
func pair(t *testing.T, dir string) string {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), DNSNames: []string{"streams.example.com"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(90 * 24 * time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	for name, block := range map[string]*pem.Block{"tls.crt": {Type: "CERTIFICATE", Bytes: der}, "tls.key": {Type: "PRIVATE KEY", Bytes: private}} {
		if err := os.WriteFile(filepath.Join(dir, name), pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir + "/"
}
