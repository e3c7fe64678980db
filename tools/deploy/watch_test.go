package deploy

import (
	"encoding/json"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/prometheus/promql/parser"
	"sigs.k8s.io/yaml"
)

type rules struct {
	Groups []struct {
		Rules []struct {
			Alert       string            `json:"alert"`
			Expr        string            `json:"expr"`
			Labels      map[string]string `json:"labels"`
			Annotations map[string]string `json:"annotations"`
		} `json:"rules"`
	} `json:"groups"`
}

type dashboard struct {
	Panels []struct {
		Title, Description, Type string
		Targets                  []struct{ Expr string }
		GridPos                  struct{ H, W, X, Y int }
	}
}

func alerts(t *testing.T) (all rules) {
	t.Helper()
	if err := yaml.Unmarshal([]byte(file(t, "deploy/prometheus/alerts.yaml")), &all); err != nil {
		t.Fatal(err)
	}
	return all
}

// wantMetrics parses an expression by Prometheus' own parser, and wants each metric in it
// to be one that docs/metrics.md has, with no label but its own.
func wantMetrics(t *testing.T, where, expr string) {
	t.Helper()
	// Grafana's, which stand for a duration.
	expr = regexp.MustCompile(`\$__(rate_interval|range)`).ReplaceAllString(expr, "5m")
	tree, err := parser.NewParser(parser.Options{}).ParseExpr(expr)
	if err != nil {
		t.Errorf("%s: %v: %s", where, err, expr)
		return
	}
	page := file(t, "docs/metrics.md")
	parser.Inspect(tree, func(n parser.Node, _ []parser.Node) error {
		v, ok := n.(*parser.VectorSelector)
		if !ok || strings.HasPrefix(v.Name, "process_") || strings.HasPrefix(v.Name, "go_") || v.Name == "up" {
			return nil
		}
		base := regexp.MustCompile(`_(bucket|count|sum)$`).ReplaceAllString(v.Name, "")
		row := regexp.MustCompile("(?m)^\\| `(?:" + v.Name + "|" + base + ")` .*$").FindString(page)
		if row == "" {
			t.Errorf("%s: there is no metric %s", where, v.Name)
		}
		for _, m := range v.LabelMatchers {
			if !slices.Contains([]string{"__name__", "job", "instance"}, m.Name) && !strings.Contains(row, "`"+m.Name+"`") {
				t.Errorf("%s: %s has no label %s", where, v.Name, m.Name)
			}
		}
		return nil
	})
}

// Every expression asks for what there is.
func TestExpressions(t *testing.T) {
	t.Parallel()
	for _, g := range alerts(t).Groups {
		for _, r := range g.Rules {
			wantMetrics(t, r.Alert, r.Expr)
		}
	}
	var d dashboard
	if err := json.Unmarshal([]byte(file(t, "deploy/grafana/sluice.json")), &d); err != nil {
		t.Fatal(err)
	}
	titles := map[string]bool{}
	for _, p := range d.Panels {
		if titles[p.Title] || p.Title == "" {
			t.Errorf("two panels are called %q", p.Title)
		}
		titles[p.Title] = true
		if p.Type != "row" && (p.Description == "" || len(p.Targets) == 0) {
			t.Errorf("%s says nothing of itself, or asks nothing", p.Title)
		}
		if p.GridPos.X+p.GridPos.W > 24 {
			t.Errorf("%s is beyond the right edge", p.Title)
		}
		for _, q := range p.Targets {
			wantMetrics(t, p.Title, q.Expr)
		}
	}
	wantApart(t, d)
}

// wantApart wants no panel over another.
func wantApart(t *testing.T, d dashboard) {
	t.Helper()
	taken := map[[2]int]string{}
	for _, p := range d.Panels {
		for x := p.GridPos.X; x < p.GridPos.X+p.GridPos.W; x++ {
			for y := p.GridPos.Y; y < p.GridPos.Y+p.GridPos.H; y++ {
				if other := taken[[2]int{x, y}]; other != "" {
					t.Errorf("%s lies over %s", p.Title, other)
					return
				}
				taken[[2]int{x, y}] = p.Title
			}
		}
	}
}

// Each alert has its section in the runbook, and each section its alert; each says how
// urgent it is, and where to read on.
func TestRunbookIsWhole(t *testing.T) {
	t.Parallel()
	page := file(t, "docs/runbook.md")
	found := regexp.MustCompile(`(?m)^## (Sluice\w+)$`).FindAllStringSubmatch(page, -1)
	sections, names := make([]string, 0, len(found)), make([]string, 0, len(found))
	for _, m := range found {
		sections = append(sections, m[1])
	}
	for _, g := range alerts(t).Groups {
		for _, r := range g.Rules {
			names = append(names, r.Alert)
			if got, want := r.Annotations["runbook"], "docs/runbook.md#"+strings.ToLower(r.Alert); got != want {
				t.Errorf("%s: runbook %q, want %q", r.Alert, got, want)
			}
			if s := r.Labels["severity"]; s != "page" && s != "ticket" {
				t.Errorf("%s: severity %q", r.Alert, s)
			}
			if r.Annotations["summary"] == "" {
				t.Errorf("%s has no summary", r.Alert)
			}
		}
	}
	if !slices.Equal(names, sections) {
		t.Errorf("alerts %v\nsections %v", names, sections)
	}
	for _, name := range names {
		_, rest, _ := strings.Cut(page, "## "+name+"\n")
		section, _, _ := strings.Cut(rest, "\n## ")
		for _, part := range []string{"**It means**", "**Look**", "**Do**", "```sh\n"} {
			if !strings.Contains(section, part) {
				t.Errorf("%s has no %s", name, part)
			}
		}
		if tests := file(t, "deploy/prometheus/alerts.test.yaml"); !strings.Contains(tests, "alertname: "+name+"\n") {
			t.Errorf("%s is not tried in alerts.test.yaml", name)
		}
	}
}

// Prometheus' own tool finds the rules good, and each alert fires, and does not, as it should.
func TestPromtool(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("promtool"); err != nil {
		missing(t, "promtool", "Debian: apt-get install prometheus")
	}
	dir := root + "/deploy/prometheus"
	if out, err := run(t, dir, nil, "promtool", "check", "rules", "alerts.yaml"); err != nil {
		t.Errorf("%v %s", err, out)
	}
	if out, err := run(t, dir, nil, "promtool", "test", "rules", "alerts.test.yaml"); err != nil {
		t.Errorf("%v %s", err, out)
	}
	if out, err := run(t, dir, nil, "promtool", "check", "config", "--syntax-only", "prometheus.yaml"); err != nil {
		t.Errorf("%v %s", err, out)
	}
}
