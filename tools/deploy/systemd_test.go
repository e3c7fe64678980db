package deploy

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// exposureMost is what `systemd-analyze security` may say at the most, times ten: 1.2 as
// it stands, of 9.6 for a unit that says nothing.
const exposureMost = "15"

// The units are read by systemd's own tool, which says nothing of them and calls the
// service well contained.
func TestSystemd(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("systemd-analyze"); err != nil {
		missing(t, "systemd-analyze", "Debian: apt-get install systemd")
	}
	dir, binary := t.TempDir(), program(t)
	units := []string{"sluice.service", "sluice.socket", "sluice-admin.socket", "sluice-http.socket"}
	for i, name := range units {
		text := file(t, "deploy/systemd/"+name)
		write(t, filepath.Join(dir, name), strings.ReplaceAll(text, "/usr/local/bin/sluice", binary))
		units[i] = filepath.Join(dir, name)
	}
	if out, err := run(t, dir, nil, "systemd-analyze", append([]string{"verify", "--man=no"}, units...)...); err != nil || out != "" {
		t.Errorf("%v %s", err, out)
	}
	if out, err := run(t, dir, nil, "systemd-analyze", "security", "--offline=true", "--no-pager", "--threshold="+exposureMost, units[0]); err != nil {
		t.Errorf("%v %s", err, out)
	}
	// The tool has to be able to say no.
	write(t, filepath.Join(dir, "bare.service"), "[Service]\nExecStart="+binary+"\nNoSuchThing=1\n")
	if out, _ := run(t, dir, nil, "systemd-analyze", "verify", "--man=no", filepath.Join(dir, "bare.service")); !strings.Contains(out, "NoSuchThing") {
		t.Errorf("a bad unit: %s", out)
	}
	if _, err := run(t, dir, nil, "systemd-analyze", "security", "--offline=true", "--no-pager", "--threshold="+exposureMost, filepath.Join(dir, "bare.service")); err == nil {
		t.Error("a bare unit is called well contained")
	}
}

// The file that shows every key is good as it stands.
func TestExample(t *testing.T) {
	t.Parallel()
	path, err := filepath.Abs(filepath.Join(root, "deploy/example.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path); err != nil {
		t.Fatal(err)
	}
	wantGood(t, program(t), path, nil, "warning: "+path+":52: auth.signing_keys", "auth.signing_keys")
}
