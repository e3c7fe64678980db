package deploy

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/compose-spec/compose-go/v2/cli"
	"github.com/compose-spec/compose-go/v2/types"
)

var composeEnv = []string{ //nolint:gochecknoglobals // of tests
	"SLUICE_ADMIN_TOKEN=0123456789abcdef0123456789abcdef", "SLUICE_SEALING_KEY=MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=", "POSTGRES_PASSWORD=pass",
}

func loadCompose(t *testing.T, env []string) (*types.Project, error) {
	t.Helper()
	options, err := cli.NewProjectOptions([]string{filepath.Join(root, "deploy/compose/compose.yaml")}, cli.WithEnv(env), cli.WithInterpolation(true))
	if err != nil {
		t.Fatal(err)
	}
	return options.LoadProject(t.Context())
}

// The file is read by Compose's own library: it holds what it should, keeps nodes,
// Redis and Postgres to themselves, and starts with no secret that nobody chose.
func TestCompose(t *testing.T) {
	t.Parallel()
	if _, err := loadCompose(t, nil); err == nil || !strings.Contains(err.Error(), "is made as the top of compose.yaml says") {
		t.Errorf("without secrets: %v", err)
	}
	p, err := loadCompose(t, composeEnv)
	if err != nil {
		t.Fatal(err)
	}
	if got := p.ServiceNames(); !slices.Equal(got, []string{"postgres", "redis", "sluice", "ursula-1", "ursula-2", "ursula-3"}) {
		t.Errorf("services: %v", got)
	}
	for name, s := range p.Services {
		ours := name == "sluice"
		if (len(s.Ports) > 0) != ours {
			t.Errorf("%s publishes %v", name, s.Ports)
		}
		for _, port := range s.Ports {
			if port.HostIP != "127.0.0.1" {
				t.Errorf("%s is published at %q", name, port.HostIP)
			}
		}
		if _, outside := s.Networks["edge"]; outside != ours {
			t.Errorf("%s is in the networks %v", name, s.Networks)
		}
		if s.Restart != types.RestartPolicyUnlessStopped {
			t.Errorf("%s: restart %q", name, s.Restart)
		}
		if (ours || strings.HasPrefix(name, "ursula")) && (!s.ReadOnly || !slices.Equal(s.CapDrop, []string{"ALL"}) || !slices.Contains(s.SecurityOpt, "no-new-privileges:true")) {
			t.Errorf("%s may do more than it needs", name)
		}
		if s.Privileged || s.NetworkMode == "host" {
			t.Errorf("%s is not contained", name)
		}
	}
	if !p.Networks["storage"].Internal {
		t.Error("the network of the nodes is not internal")
	}
	gateway := p.Services["sluice"]
	if grace := gateway.StopGracePeriod; grace == nil || grace.String() != "45s" {
		t.Errorf("it has %v to stop, which is not above 5s and 30s", grace)
	}
	env := make([]string, 0, len(gateway.Environment))
	for name, value := range gateway.Environment {
		env = append(env, name+"="+*value)
	}
	// http is named plainly: the whole thing is on this machine.
	// Its Redis is in a network of its own.
	wantGood(t, program(t), filepath.Join(root, "deploy/compose/sluice/sluice.yaml"), env, "redis.url: has no password")
}
