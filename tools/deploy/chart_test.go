package deploy

import (
	"errors"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	monitoring "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	"helm.sh/helm/v4/pkg/chart/common"
	"helm.sh/helm/v4/pkg/chart/common/util"
	"helm.sh/helm/v4/pkg/chart/v2/lint"
	"helm.sh/helm/v4/pkg/chart/v2/lint/support"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	"helm.sh/helm/v4/pkg/engine"
	apps "k8s.io/api/apps/v1"
	autoscaling "k8s.io/api/autoscaling/v2"
	core "k8s.io/api/core/v1"
	networking "k8s.io/api/networking/v1"
	policy "k8s.io/api/policy/v1"
	"sigs.k8s.io/yaml"
)

const chartDir = root + "/deploy/helm/sluice"

// kinds are the types that manifests are decoded into, by apiVersion and kind.
func kinds() map[string]any {
	return map[string]any{
		"v1 ConfigMap": &core.ConfigMap{}, "v1 Service": &core.Service{}, "v1 ServiceAccount": &core.ServiceAccount{},
		"apps/v1 Deployment": &apps.Deployment{}, "policy/v1 PodDisruptionBudget": &policy.PodDisruptionBudget{},
		"autoscaling/v2 HorizontalPodAutoscaler":  &autoscaling.HorizontalPodAutoscaler{},
		"networking.k8s.io/v1 NetworkPolicy":      &networking.NetworkPolicy{},
		"monitoring.coreos.com/v1 ServiceMonitor": &monitoring.ServiceMonitor{}, "monitoring.coreos.com/v1 PrometheusRule": &monitoring.PrometheusRule{},
	}
}

// release is a chart rendered: its objects by kind and name.
type release map[string]any

func (r release) names() []string { return slices.Sorted(maps.Keys(r)) }

// of is an object that has to be there.
func of[T any](t *testing.T, r release, name string) T {
	t.Helper()
	got, ok := r[name].(T)
	if !ok {
		t.Fatalf("no %s among %v", name, r.names())
	}
	return got
}

var errUnknown = errors.New("a kind that is not known here")

// render renders the chart with a file of values, with more over them, and decodes what
// comes of it strictly.
func render(t *testing.T, values string, more map[string]any) (release, error) {
	t.Helper()
	chart, err := loader.Load(chartDir)
	if err != nil {
		t.Fatal(err)
	}
	given := valuesOf(t, values)
	given = loader.MergeMaps(given, more)
	all, err := util.ToRenderValues(chart, given, common.ReleaseOptions{Name: "edge", Namespace: "streams", IsInstall: true, Revision: 1}, nil)
	if err != nil {
		return nil, err
	}
	files, err := engine.Engine{Strict: true}.RenderWithContext(t.Context(), chart, all)
	if err != nil {
		return nil, err
	}
	found := release{}
	for path, text := range files {
		if strings.HasSuffix(path, "NOTES.txt") {
			continue
		}
		for _, one := range regexp.MustCompile(`(?m)^---$`).Split(text, -1) {
			if strings.TrimSpace(one) == "" {
				continue
			}
			if err := found.add(one); err != nil {
				t.Fatalf("%s: %v\n%s", path, err, one)
			}
		}
	}
	return found, nil
}

func (r release) add(text string) error {
	var head struct {
		APIVersion string `json:"apiVersion"`
		Kind       string `json:"kind"`
		Metadata   struct {
			Name string `json:"name"`
		} `json:"metadata"`
	}
	if err := yaml.Unmarshal([]byte(text), &head); err != nil {
		return err
	}
	object, ok := kinds()[head.APIVersion+" "+head.Kind]
	if !ok {
		return errors.Join(errUnknown, errors.New(head.APIVersion+" "+head.Kind))
	}
	r[head.Kind+" "+head.Metadata.Name] = object
	return yaml.UnmarshalStrict([]byte(text), object)
}

func valuesOf(t *testing.T, name string) map[string]any {
	t.Helper()
	values := map[string]any{}
	if name == "" {
		return values
	}
	if err := yaml.UnmarshalStrict([]byte(file(t, "deploy/helm/sluice/ci/"+name)), &values); err != nil {
		t.Fatal(err)
	}
	return values
}

// valueFiles are those that the chart is tried with.
func valueFiles(t *testing.T) []string {
	t.Helper()
	all, err := os.ReadDir(filepath.Join(chartDir, "ci"))
	if err != nil || len(all) < 3 {
		t.Fatal(len(all), err)
	}
	names := make([]string, 0, len(all))
	for _, f := range all {
		names = append(names, f.Name())
	}
	return names
}

// Helm's own linter has nothing against the chart.
func TestChartLint(t *testing.T) {
	t.Parallel()
	for _, name := range valueFiles(t) {
		result := lint.RunAll(chartDir, valuesOf(t, name), "streams")
		for _, m := range result.Messages {
			if m.Severity > support.InfoSev {
				t.Errorf("%s: %v", name, m)
			}
		}
	}
}

// With each file of values the program in the pods may do nothing that it does not need,
// is asked at the paths that there are, has time to drain, and reads a good file.
func TestChart(t *testing.T) {
	t.Parallel()
	binary := program(t)
	for _, name := range valueFiles(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r, err := render(t, name, nil)
			if err != nil {
				t.Fatal(err)
			}
			t.Log(r.names())
			pod := of[*apps.Deployment](t, r, "Deployment edge-sluice").Spec.Template.Spec
			wantContained(t, pod)
			wantProbes(t, pod)
			wantReferences(t, r, pod)
			wantFile(t, r, pod, binary)
		})
	}
}

func wantContained(t *testing.T, pod core.PodSpec) {
	t.Helper()
	outer, inner := pod.SecurityContext, pod.Containers[0].SecurityContext
	if !*outer.RunAsNonRoot || *outer.RunAsUser != 65532 || outer.SeccompProfile.Type != core.SeccompProfileTypeRuntimeDefault {
		t.Errorf("pod: %+v", outer)
	}
	if !*inner.ReadOnlyRootFilesystem || *inner.AllowPrivilegeEscalation || *inner.Privileged || !slices.Equal(inner.Capabilities.Drop, []core.Capability{"ALL"}) || len(inner.Capabilities.Add) != 0 {
		t.Errorf("container: %+v", inner)
	}
	if *pod.AutomountServiceAccountToken || pod.HostNetwork || pod.HostPID || pod.HostIPC || len(pod.Containers) != 1 {
		t.Error("the pod has more than it needs")
	}
	for _, v := range pod.Volumes {
		if v.HostPath != nil {
			t.Errorf("volume %s is the machine's", v.Name)
		}
	}
	if pod.Containers[0].Resources.Limits.Memory().IsZero() || pod.Containers[0].Resources.Requests.Cpu().IsZero() {
		t.Error("no limit of memory, or nothing asked of the processor")
	}
}

func wantProbes(t *testing.T, pod core.PodSpec) {
	t.Helper()
	c := pod.Containers[0]
	ports := map[string]int32{}
	for _, p := range c.Ports {
		ports[p.Name] = p.ContainerPort
	}
	if ports["admin"] != 9090 || ports["public"] < 1024 {
		t.Errorf("ports: %v; those below 1024 need a capability", ports)
	}
	for path, probe := range map[string]*core.Probe{"/livez": c.LivenessProbe, "/readyz": c.ReadinessProbe} {
		if probe.HTTPGet.Path != path || probe.HTTPGet.Port.String() != "admin" {
			t.Errorf("%s: %+v", path, probe.HTTPGet)
		}
	}
	// A start waits 30 s for the store, and is not to be killed over it.
	if s := c.StartupProbe; s.HTTPGet.Path != "/livez" || s.PeriodSeconds*s.FailureThreshold < 40 {
		t.Errorf("start: %+v", s)
	}
}

// wantReferences wants secrets by reference alone: no Secret is made, and no variable
// has a value.
func wantReferences(t *testing.T, r release, pod core.PodSpec) {
	t.Helper()
	for _, e := range pod.Containers[0].Env {
		if e.Value != "" || e.ValueFrom == nil || e.ValueFrom.SecretKeyRef == nil || e.ValueFrom.SecretKeyRef.Name == "" {
			t.Errorf("%s is not by reference", e.Name)
		}
	}
	for _, name := range r.names() {
		if strings.HasPrefix(name, "Secret ") {
			t.Errorf("%s", name)
		}
	}
	// The admin listener is reached by a Service of the cluster's inside alone.
	if s := of[*core.Service](t, r, "Service edge-sluice"); len(s.Spec.Ports) != 1 || s.Spec.Ports[0].TargetPort.String() != "public" {
		t.Errorf("public: %+v", s.Spec.Ports)
	}
	if s := of[*core.Service](t, r, "Service edge-sluice-admin"); s.Spec.ClusterIP != "None" || s.Spec.Type != "" {
		t.Errorf("admin: %+v", s.Spec)
	}
}

// wantFile has the program read the file that the pods are given, as they are given it.
func wantFile(t *testing.T, r release, pod core.PodSpec, binary string) {
	t.Helper()
	text := of[*core.ConfigMap](t, r, "ConfigMap edge-sluice").Data["sluice.yaml"]
	samples := map[string]string{
		"SLUICE_ADMIN_TOKEN": strings.Repeat("t", 32), "DATABASE_URL": "postgres://sluice:pass@postgres:5432/sluice?sslmode=verify-full",
		"SLUICE_SEALING_KEY": "MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=", "REDIS_URL": "rediss://:pass@redis:6379/0", "TRACE_TOKEN": "token",
	}
	env := make([]string, 0, len(samples))
	for _, e := range pod.Containers[0].Env {
		env = append(env, e.Name+"="+samples[e.Name])
	}
	dir := t.TempDir()
	tls := pair(t, dir)
	// The folder of the Secret is another here.
	text = strings.ReplaceAll(text, "/etc/sluice-tls/", tls)
	path := filepath.Join(dir, "sluice.yaml")
	write(t, path, text)
	// Without a store nobody can have a key for tokens yet; and one of the origins is http.
	// What stands before the pods is not the chart's to know, and its grace period is longer
	// than the stop, which the manifests are held to.
	wantGood(t, binary, path, env, "auth.signing_keys", "in clear over http", "trusted_proxies: is empty", "drain_timeout: makes a stop last")
	var drains struct {
		Listen  string `json:"listen"`
		Delay   string `json:"drain_delay"`
		Timeout string `json:"drain_timeout"`
	}
	if err := yaml.Unmarshal([]byte(text), &drains); err != nil {
		t.Fatal(err)
	}
	if need := seconds(t, drains.Delay) + seconds(t, drains.Timeout); *pod.TerminationGracePeriodSeconds <= need {
		t.Errorf("the pod has %d s to end, and drains for %d", *pod.TerminationGracePeriodSeconds, need)
	}
	if port := pod.Containers[0].Ports[0]; drains.Listen != ":"+itoa(port.ContainerPort) {
		t.Errorf("it listens on %s, and the port is %d", drains.Listen, port.ContainerPort)
	}
}
