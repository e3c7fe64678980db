package main

import (
	"context"
	"encoding/base64"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"go.yaml.in/yaml/v3"

	"sluice/internal/postgrestest"
	"sluice/internal/realpart"
	"sluice/internal/redistest"
	"sluice/internal/ursulatest/realursula"
)

// composition is what a trial needs of compose.yaml.
type composition struct {
	Services map[string]struct {
		Command     []string
		Environment map[string]string
	}
}

func readComposition(t *testing.T) (c composition) {
	t.Helper()
	must(t, yaml.Unmarshal([]byte(readFile(t, "../../deploy/compose/compose.yaml")), &c))
	return c
}

// startComposed runs the nodes of compose.yaml by their own command lines and their one
// file, in which names and folders are what they are here, and returns their addresses.
func startComposed(t *testing.T, c composition) (addresses map[string]string) {
	t.Helper()
	binary := realursula.Binary(t)
	addresses = map[string]string{}
	for _, name := range []string{"ursula-1", "ursula-2", "ursula-3"} {
		addresses[name] = freePort(t)
	}
	for name, address := range addresses {
		dir := t.TempDir()
		file := readFile(t, "../../deploy/compose/ursula.toml")
		file = strings.Replace(file, "0.0.0.0:4437", address, 1)
		file = strings.Replace(file, "cluster_id", fmt.Sprintf("admin_listen = %q\ncluster_id", freePort(t)), 1) // each has a machine of its own there
		file = strings.Replace(file, "/var/lib/ursula/", dir+"/", 1)
		for other, at := range addresses {
			file = strings.Replace(file, other+":4437", at, 1)
		}
		writeFile(t, filepath.Join(dir, "ursula.toml"), file)
		args := strings.Split(strings.Replace(strings.Join(c.Services[name].Command, "\n"), "/etc/ursula/", dir+"/", 1), "\n")
		log, err := os.Create(filepath.Join(dir, "log"))
		must(t, err)
		cmd := exec.CommandContext(context.WithoutCancel(t.Context()), binary, args...)
		cmd.Dir, cmd.Stdout, cmd.Stderr = dir, log, log
		var node realpart.Process
		must(t, node.Run(cmd), log.Close())
		t.Cleanup(func() {
			if t.Failed() {
				t.Logf("log of %s:\n%s", name, realpart.Tail(log.Name(), 4<<10))
			}
			node.Kill()
		})
	}
	return addresses
}

// What compose.yaml starts, started here without Docker: the three nodes become one
// cluster, Redis and Postgres take their parts, and the gateway of its file is ready and
// serves an account that the operator makes.
func TestComposition(t *testing.T) {
	c := readComposition(t)
	nodes := startComposed(t, c)
	redis := redistest.Start(t, c.Services["redis"].Command[1:]...)
	database := postgrestest.Start(t).Database(t, "")
	file := readFile(t, "../../deploy/compose/sluice/sluice.yaml")
	file = strings.Replace(file, `listen: ":8080"`, "listen: 127.0.0.1:0", 1)
	for name, address := range nodes {
		file = strings.Replace(file, name+":4437", address, 1)
	}
	file = strings.Replace(file, "redis:6379", redis.Addr, 1)
	address := freePort(t)
	file = strings.Replace(file, `listen: ":9090"`, fmt.Sprintf("listen: %q", address), 1)
	// Its variables are those that Compose gives it, with what is chosen once.
	const token = "composed-token-composed-token-01"
	given := map[string]string{
		"SLUICE_ORIGIN": "http://localhost:8080", "SLUICE_ADMIN_TOKEN": token, "DATABASE_URL": database,
		"SLUICE_SEALING_KEY": base64.StdEncoding.EncodeToString([]byte(sealing)),
	}
	for name := range c.Services["sluice"].Environment {
		t.Setenv(name, given[name])
	}
	r := startReplica(t, file)
	r.Admin = "http://" + address
	r.awaitReady(t)
	env := map[string]string{"SLUICE_URL": r.URL, "SLUICE_ADMIN_URL": r.Admin, "SLUICE_ADMIN_TOKEN": token}
	code, out, errOut := command(t, env, "account", "create", "acme")
	if code != exitDone {
		t.Fatalf("%d %s%s", code, out, errOut)
	}
	_, key, _ := strings.Cut(out, "TONBO_API_KEY=")
	env["TONBO_API_KEY"] = strings.Fields(key)[0]
	if code, out, errOut := command(t, env, "stream", "create", "events", "--content-type", "text/plain"); code != exitDone {
		t.Fatalf("%d %s%s", code, out, errOut)
	}
	res := r.doAs(t, http1(), env["TONBO_API_KEY"], http.MethodPost, "/acme/s.events", []byte("hello"), "Content-Type", "text/plain")
	want(t, res, http.StatusNoContent)
	if got := r.doAs(t, http1(), env["TONBO_API_KEY"], http.MethodGet, "/acme/s.events", nil); got.Text != "hello" {
		t.Errorf("%d %q", got.StatusCode, got.Text)
	}
	metrics := ask(t, http.MethodGet, r.Admin+"/metrics", http.NoBody, "Authorization", "Bearer "+token).Text
	for _, line := range []string{"sluice_redis_degraded 0\n", "sluice_store_lost 0\n"} {
		if !strings.Contains(metrics, line) {
			t.Errorf("no %s", line)
		}
	}
	if up := strings.Count(metrics, "\nsluice_upstream_node_up{"); up != 3 || regexp.MustCompile(`(?m)^sluice_upstream_node_up\{.*\} 0$`).MatchString(metrics) {
		t.Errorf("of %d nodes not all are up", up)
	}
}

// unit are the settings of a systemd unit's file, by name; of those given twice the last.
func unit(t *testing.T, name string) map[string]string {
	t.Helper()
	settings := map[string]string{}
	for line := range strings.Lines(readFile(t, "../../deploy/systemd/"+name)) {
		if key, value, ok := strings.Cut(strings.TrimSpace(line), "="); ok && !strings.HasPrefix(key, "#") {
			settings[key] = value
		}
	}
	return settings
}

// The units of deploy/systemd, played without systemd: the sockets have the names that
// the program knows them by, ExecReload reloads, the signal of an upgrade makes another
// process the service's own, and a stop is over in the time that there is for it.
func TestUnits(t *testing.T) {
	t.Parallel()
	service := unit(t, "sluice.service")
	var names []string
	for socket := range strings.FieldsSeq(service["Sockets"]) {
		settings := unit(t, socket)
		if settings["Service"] != "sluice.service" {
			t.Errorf("%s is of %s", socket, settings["Service"])
		}
		name := settings["FileDescriptorName"]
		if name == "" {
			name = socket // systemd.socket(5)
		}
		names = append(names, name)
		_, port, err := net.SplitHostPort(settings["ListenStream"])
		if name == "admin" && (err != nil || port != "9090" || !strings.HasPrefix(settings["ListenStream"], "127.0.0.1:")) {
			t.Errorf("the admin listener is at %s", settings["ListenStream"])
		}
	}
	if service["Type"] != "notify" || service["KillMode"] != "mixed" {
		t.Errorf("Type=%s KillMode=%s", service["Type"], service["KillMode"])
	}
	e := &edge{Account: testAccount(t), Key: newTestKey(t), Reads: newTestKey(t)}
	s, r := startActivated(t, e, edgeFile(e, []string{standIn(t)}, ""), names...)
	go s.listen()
	s.hears(t, "READY=1")
	r.awaitReady(t)
	want(t, e.do(t, http.MethodGet, e.path("json"), nil), http.StatusOK)
	reload := exec.CommandContext(t.Context(), "sh", "-c", strings.ReplaceAll(service["ExecReload"], "$MAINPID", fmt.Sprint(r.cmd.Process.Pid)))
	if out, err := reload.CombinedOutput(); err != nil {
		t.Fatalf("%v %s", err, out)
	}
	s.hears(t, "RELOADING=1")
	s.hears(t, "READY=1")
	next := r.upgrade(t, r.cmd.Process.Pid, 0)
	s.hears(t, fmt.Sprintf("MAINPID=%d\n", next))
	want(t, e.do(t, http.MethodGet, e.path("json"), nil), http.StatusOK)
	must(t, syscall.Kill(next, syscall.SIGTERM))
	s.hears(t, "STOPPING=1")
	eventually(t, "it has ended", func() bool { return !runs(next) })
	if service["TimeoutStopSec"] != "45" {
		t.Errorf("TimeoutStopSec=%s: the defaults drain for 35 s", service["TimeoutStopSec"])
	}
}
