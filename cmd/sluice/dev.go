package main

import (
	"context"
	"crypto/rand"
	_ "embed"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"text/template"
	"time"

	"github.com/spf13/cobra"
	"go.uber.org/zap"

	"sluice/auth"
	"sluice/config"
	"sluice/internal/telemetry"
	"sluice/internal/tenant"
	"sluice/internal/ursulatest"
)

//go:embed dev.tmpl
var devTemplate string

// devOptions are the flags of sluice dev.
type devOptions struct {
	listen, admin, ursula, level string
	tls, protocol                bool
	origins                      []string
}

// devValues fill in the template: the configuration and what is printed.
type devValues struct {
	Origin, Account, Key, Digest, Node, Listen, Admin, Level, StandIn, Open, Store, TLS, CA, Protocol string

	Origins []string
}

// devPatience bounds the wait for the node and the streams at the start.
const devPatience = 10 * time.Second

func newDev(env environment) *cobra.Command {
	var o devOptions
	cmd := &cobra.Command{
		Use:   "dev",
		Short: "Run the whole thing in one process, with nothing to install",
		Long: `Run the gateway in front of a stand-in for Ursula that keeps everything in
memory, with an account, a key, a private and a public stream, and print a
quickstart ready to paste. Accounts, streams and keys can be managed, in a store that
ends with it. For trying things out: nothing is kept.`,
		Example: "  sluice dev\n  sluice dev --ursula http://127.0.0.1:4437",
		Args:    noArguments,
		RunE:    func(cmd *cobra.Command, _ []string) error { return dev(cmd.Context(), o, env) },
	}
	cmd.Flags().StringVar(&o.listen, "listen", "127.0.0.1:8080", "address of the gateway; port 0 is a free one")
	cmd.Flags().StringVar(&o.admin, "admin-listen", "127.0.0.1:0", "address of the admin listener")
	cmd.Flags().StringVar(&o.ursula, "ursula", "", "URL of a real Ursula node to use in place of the stand-in")
	cmd.Flags().BoolVar(&o.tls, "tls", false, "serve https, with certificates of an authority that ends with it")
	cmd.Flags().BoolVar(&o.protocol, "protocol", false, "let clients create and delete streams at their own URL (streams.lifecycle: protocol)")
	cmd.Flags().StringSliceVar(&o.origins, "cors-origin", nil, "origin whose pages may use the gateway, such as http://127.0.0.1:3000; may be repeated")
	cmd.Flags().StringVar(&o.level, "log-level", "warn", "debug, info (a line a request), warn or error")
	return cmd
}

// check says which flag has no such value.
func (o devOptions) check() error {
	for _, flag := range [][2]string{{"--listen", o.listen}, {"--admin-listen", o.admin}} {
		_, port, err := net.SplitHostPort(flag[1])
		if err == nil {
			_, err = strconv.ParseUint(port, 10, 16)
		}
		if err != nil {
			return usageError{fmt.Errorf("%s %q: write an address and a port, as in 127.0.0.1:8080", flag[0], flag[1])}
		}
	}
	if o.ursula != "" {
		u, err := url.Parse(o.ursula)
		if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" || strings.Trim(u.Path, "/") != "" || u.RawQuery != "" || u.Fragment != "" || u.User != nil {
			return usageError{fmt.Errorf("--ursula %q: write the URL of a node, as in http://127.0.0.1:4437", o.ursula)}
		}
	}
	if _, err := telemetry.ParseLevel(o.level); err != nil {
		return usageError{fmt.Errorf("--log-level: %w", err)}
	}
	return nil
}

func dev(ctx context.Context, o devOptions, env environment) error {
	if err := o.check(); err != nil {
		return err
	}
	var lc net.ListenConfig
	public, err := lc.Listen(ctx, "tcp", o.listen)
	if err != nil {
		return fmt.Errorf("%w; choose another address with --listen", err)
	}
	defer func() { _ = public.Close() }()
	v := devValues{Origin: "http://" + visit(public.Addr()), Account: "demo", Node: o.ursula, Listen: o.listen, Admin: o.admin, Level: o.level, Origins: o.origins}
	if o.protocol {
		v.Protocol = "yes"
	}
	if o.ursula == "" {
		v.StandIn = "yes"
		cluster := ursulatest.New(ursulatest.Options{ClusterID: "sluice-dev"})
		if err := cluster.Start(); err != nil { //nolint:contextcheck // the stand-in ends with Close
			return err
		}
		defer func() { _ = cluster.Close() }()
		v.Node = cluster.URLs()[0]
	} else if v.Account, err = freshAccount(); err != nil {
		return err
	}
	if a, ok := public.Addr().(*net.TCPAddr); ok && !a.IP.IsLoopback() {
		v.Open = "yes"
	}
	key, err := auth.GenerateKey(rand.Reader)
	if err != nil {
		return err
	}
	v.Key, v.Digest = key.Reveal(), tenant.DigestOf(key.Reveal()).String()
	folder, err := os.MkdirTemp("", "sluice-dev-")
	if err != nil {
		return fmt.Errorf("a folder for the store: %w", err)
	}
	defer func() { _ = os.RemoveAll(folder) }()
	v.Store = filepath.Join(folder, "store.db")
	if o.tls {
		v.Origin, v.TLS = "https://"+visit(public.Addr()), filepath.Join(folder, "tls")
		v.CA = filepath.Join(v.TLS, "ca.pem")
	}
	return runDev(ctx, v, public, env)
}

// visit is the address to go to on this machine for a listener's: one that
// stands for every interface is no address to go to.
func visit(a net.Addr) string {
	t, ok := a.(*net.TCPAddr)
	if ok && t.IP.IsUnspecified() {
		return net.JoinHostPort("127.0.0.1", strconv.Itoa(t.Port))
	}
	return a.String()
}

// freshAccount makes an account id that a real node has not seen: its streams
// outlive this process.
func freshAccount() (string, error) {
	var raw [4]byte
	if _, err := rand.Read(raw[:]); err != nil {
		return "", err
	}
	return "demo-" + hex.EncodeToString(raw[:]), nil
}

func runDev(ctx context.Context, v devValues, public net.Listener, env environment) error {
	t, err := template.New("dev").Parse(devTemplate)
	if err != nil {
		return err
	}
	file, err := render(t, "config", v)
	if err != nil {
		return err
	}
	c, err := config.Parse("sluice-dev.yaml", []byte(file), config.Options{Grammar: grammar()})
	if err != nil {
		return fmt.Errorf("these flags make no configuration: %w", err)
	}
	level := zap.NewAtomicLevel()
	lines := telemetry.NewQueue(env.err)
	defer lines.Close()
	log := telemetry.NewLogger(lines, level)
	defer zap.RedirectStdLog(log)()
	//nolint:contextcheck // an App ends with Close
	app, err := newApp(appOptions{Config: c, Log: log, Level: level, Lost: lines.Dropped, Public: []net.Listener{public}})
	if err != nil {
		return err
	}
	defer app.Close() //nolint:contextcheck // the last uses of keys are written after whatever ended it
	wait, cancel := context.WithTimeout(ctx, devPatience)
	defer cancel()
	if err := app.keeper.Wait(wait); err != nil {
		return fmt.Errorf("%s does not answer; is an Ursula node running there? (%w)", v.Node, err)
	}
	if err := app.knows(wait, v.Key); err != nil {
		return fmt.Errorf("the key of %s cannot be looked up: %w", v.Account, err)
	}
	v.Admin = app.admin.Addr().String()
	text, err := render(t, "banner", v)
	if err != nil {
		return err
	}
	if _, err := fmt.Fprint(env.out, text); err != nil {
		return err
	}
	return app.serveUntilSignalled(ctx, nil, nil)
}

// knows looks a key up until that is answered: the first look-up is the slowest, and on a
// busy machine the first command that was pasted got a 503 for it.
func (a *App) knows(ctx context.Context, key string) error {
	again := time.NewTicker(50 * time.Millisecond)
	defer again.Stop()
	for {
		_, err := a.authenticator.Authenticate(ctx, []string{"Bearer " + key})
		if !errors.Is(err, auth.ErrUnavailable) {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-again.C:
		}
	}
}

func render(t *template.Template, name string, v devValues) (string, error) {
	var b strings.Builder
	err := t.ExecuteTemplate(&b, name, v)
	return b.String(), err
}
