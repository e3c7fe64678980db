package config

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"go.yaml.in/yaml/v3"

	"sluice/internal/secret"
)

const minimal = "origin: https://streams.example.com\nursula: {nodes: [\"http://10.0.0.1:4437\"]}\n"

// signed adds a key for tokens, without which there is a warning.
const signed = "auth: {signing_keys: [\"${SIGNING_KEY}\"]}\n"

// proxied adds the proxy that ends TLS, without which there is another.
const proxied = "trusted_proxies: [10.0.0.9]\n"

func parse(t *testing.T, text string) *Config {
	t.Helper()
	c, err := Parse("sluice.yaml", []byte(text), testOptions())
	if err != nil {
		t.Fatalf("Parse: %v", err)
	}
	return c
}

// same compares the values of two configurations.
func same(t *testing.T, got, want *Config) {
	t.Helper()
	opts := []cmp.Option{
		cmpopts.IgnoreUnexported(Config{}),
		cmp.Comparer(func(a, b secret.Secret) bool { return a.Reveal() == b.Reveal() }),
		cmp.Comparer(func(a, b netip.Prefix) bool { return a == b }),
	}
	if diff := cmp.Diff(want, got, opts...); diff != "" {
		t.Errorf("configuration differs (-want +got):\n%s", diff)
	}
}

func defaults() *Config {
	return &Config{
		Listen: []string{":8080"},
		Origin: "https://streams.example.com",
		Admin:  Admin{Listen: "127.0.0.1:9090"},
		TLS:    TLS{Mode: "off", CA: defaultCA},
		Ursula: Ursula{Nodes: []string{"http://10.0.0.1:4437"}},
		Auth:   Auth{TokenLifetime: 10 * time.Minute, ExchangePerSecond: 10},
		Tails:  Tails{Heartbeat: 15 * time.Second},
		Audit:  Audit{Keep: 9600 * time.Hour},
		Usage:  Usage{Flush: 30 * time.Second, ChunkBytes: 64 * KiB, KeepBatches: 35 * 24 * time.Hour, KeepHours: 400 * 24 * time.Hour},
		Store:  Store{StaleFor: 15 * time.Minute, KnownKeys: 100_000},
		Server: Server{ConnectionsPerAddress: 1024, FailedCredentialsPerMinute: 60, HeaderBytes: 32 * KiB, Idle: 2 * time.Minute, TailsPerConnection: 200},
		Limits: Limits{
			Default: DefaultLimits{RequestsPerSecond: 50, Burst: 100, OpenTails: 16, Uploads: 8, UploadBytes: 64 * MiB, RequestBytes: 8 * MiB},
			Floor:   Floor{RequestsPerSecond: 50, OpenTails: 16}, BodyBudget: 256 * MiB,
		},
		Streams:       Streams{Lifecycle: "managed"},
		ProxyProtocol: "off",
		DrainDelay:    5 * time.Second,
		DrainTimeout:  30 * time.Second,
		Watch:         true,
		Log:           Log{Level: "info", Sample: 1},
		Trace:         Trace{Sample: 0.01, ParentsPerSecond: 10},
	}
}

func TestDefaults(t *testing.T) {
	same(t, parse(t, minimal), defaults())
	same(t, parse(t, "\ufeff"+strings.ReplaceAll(minimal, "\n", "\r\n")), defaults())

	c := parse(t, minimal+`accounts: [{id: acme, streams: [{name: s}], keys: [{name: k, digest: "sha256:x"}]}]`)
	want := defaults()
	want.Accounts = []Account{{
		ID: "acme", Status: "active",
		Streams: []Stream{{Name: "s", ContentType: "application/octet-stream"}},
		Keys:    []Key{{Name: "k", Digest: "sha256:x", Access: "write", ActsAs: "user"}},
	}}
	same(t, c, want)
}

func ptr[T any](v T) *T { return &v }

func TestGoodFiles(t *testing.T) {
	minimalFile := defaults()

	full := defaults()
	full.Listen = []string{":8443", "127.0.0.1:8081"}
	full.Origin = "https://streams.example.com:8443"
	full.Admin = Admin{Listen: "0.0.0.0:9090", Token: secret.New("from-env-0123456789")}
	full.Ursula.Nodes = []string{"http://10.0.0.1:4437", "https://node-2.internal", "http://[fd00::1]:4437"}
	full.Region = "eu"
	full.Auth = Auth{
		TokenLifetime: time.Hour, ExchangePerSecond: 1,
		SigningKeys: []secret.Secret{secret.New(twoLines), secret.New("-----BEGIN SOMETHING-----\nthe other\n")},
		Issuers: []Issuer{
			{Issuer: "https://login.example.com/", Audience: "streams", AccountClaim: "https://example.com/account", Accounts: []string{"acme"}},
			{
				Issuer: "https://sso.example.com", Audience: "https://streams.example.com", JWKSURL: "https://sso.example.com/keys?v=1",
				AccountClaim: "tenant", Accounts: []string{"acme", "beta"},
			},
		},
	}
	full.CORS.Origins = []string{"https://app.example.com", "http://localhost:3000", "https://[fd00::1]:8443", "capacitor://localhost"}
	full.Tails = Tails{Heartbeat: 20 * time.Second, MaxAge: 2 * time.Hour}
	full.Usage = Usage{
		Export: "/var/lib/sluice/usage.jsonl", Flush: 10 * time.Second, ChunkBytes: 4 * KiB, StreamReads: 100,
		KeepBatches: 48 * time.Hour, KeepHours: 72 * time.Hour,
	}
	full.Server = Server{Connections: 5000, ConnectionsPerAddress: 50, HeaderBytes: 64 * KiB, Idle: 5 * time.Minute, TailsPerConnection: 100}
	full.Audit.Keep = 24 * time.Hour
	full.Redis = Redis{URL: secret.New("rediss://user:word@10.0.0.9:6380/2"), Addrs: []string{"10.0.0.10:26379"}, MasterName: "limits", Mode: "sentinel"}
	full.Limits = Limits{
		Default: DefaultLimits{RequestsPerSecond: 10, Burst: 20, OpenTails: 4, Uploads: 2, UploadBytes: 16 * MiB, RequestBytes: 4 * MiB},
		Floor:   Floor{RequestsPerSecond: 5, OpenTails: 2}, BodyBudget: 64 * MiB,
	}
	full.TrustedProxies = []netip.Prefix{
		netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("192.168.0.9/32"), netip.MustParsePrefix("::1/128"), netip.MustParsePrefix("2001:db8::/32"),
	}
	full.ProxyProtocol = ProxyOptional
	full.DrainDelay, full.DrainTimeout, full.Watch = 7*time.Second, 90*time.Second, false
	full.Admin.Pprof = true
	full.Trace = Trace{
		Endpoint: "https://collector.example.com:4318/otlp/v1/traces", Sample: 1,
		Headers: []secret.Secret{secret.New("Authorization: Bearer from-env-0123456789"), secret.New("x-team:seven")},
	}
	full.Log.Sample = 0.25
	full.Log.Level = "debug"
	full.Accounts = []Account{
		{
			ID: "acme", Status: "unpaid",
			Limits:  AccountLimits{RequestsPerSecond: ptr(200), Burst: ptr(400), OpenTails: ptr(0), Uploads: ptr(1), UploadBytes: ptr(2 * MiB), RequestBytes: ptr(MiB)},
			Streams: []Stream{{Name: "events", ContentType: "application/json", Public: true}, {Name: "raw", ContentType: "application/octet-stream"}},
			Keys: []Key{
				{
					Name: "ci", Digest: "sha256:ca978112ca1bbdcafac231b39a23dc4da786eff8147c4e72b9807785afee48bb", Access: "read",
					Streams: []string{"events", "logs.*"}, ActsAs: "agent", ExpiresAt: time.Date(2027, 6, 1, 0, 0, 0, 0, time.UTC),
				},
				{Name: "all", Digest: "sha256:3e23e8160039594a33894f6564e1b1348bbd7a0088d42c4acb73eeaed59c009d", Access: "write", ActsAs: "user"},
			},
		},
		{ID: "beta", Status: "active", Limits: AccountLimits{Burst: ptr(7)}},
	}

	odd := defaults()
	odd.Listen = []string{":0"}
	odd.Region = "a${b}$c"
	odd.Admin.Token = secret.New("from-file-0123456789")
	odd.Auth.SigningKeys = []secret.Secret{secret.New(strings.TrimSuffix(twoLines, "\n"))}
	odd.CORS.Origins = []string{"*"}

	stored := defaults()
	stored.Store = Store{URL: secret.New("postgres://sluice:word@10.0.0.5:5432/sluice"), StaleFor: time.Minute, KnownKeys: 5000}
	stored.Streams.Lifecycle = Protocol
	stored.Auth.SealingKey = secret.New("MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE=")

	acme, files := defaults(), defaults()
	acme.TLS = TLS{
		Mode: TLSACME, Domains: []string{"other.example.com", "streams.example.com"}, Email: "ops@example.com", HTTPListen: ":80",
		CA: "https://ca.example.com/directory", CARoot: "/etc/root.pem", Storage: filepath.Join("testdata", "state"),
	}
	files.TLS = TLS{Mode: TLSFiles, Cert: filepath.Join("testdata", "tls", "tls.crt"), Key: "/etc/tls.key", HTTPListen: ":80", CA: defaultCA}
	want := map[string]*Config{"good-store.yml": stored, "good-minimal.yml": minimalFile, "good-full.yml": full, "good-bom-crlf-file.yml": odd, "good-tls-acme.yml": acme, "good-tls-files.yml": files}
	for _, file := range testFiles(t, "good-*.yml") {
		t.Run(filepath.Base(file), func(t *testing.T) {
			c, err := Load(file, testOptions())
			if err != nil {
				t.Fatal(err)
			}
			w, ok := want[filepath.Base(file)]
			if !ok {
				t.Fatal("this file is not in the table")
			}
			same(t, c, w)
		})
	}
}

func TestLoadWrapsTheSystemsError(t *testing.T) {
	_, err := Load(filepath.Join(t.TempDir(), "none.yml"), Options{})
	var invalid *Invalid
	if !errors.Is(err, fs.ErrNotExist) || errors.As(err, &invalid) {
		t.Errorf("got %v, want fs.ErrNotExist", err)
	}
}

// O04: a file that an editor is still writing was taken as it stood. Whatever
// part of a file is there, it is refused with the file's name where it is not whole.
func TestHalfWrittenFiles(t *testing.T) {
	data, err := os.ReadFile(filepath.Join("testdata", "good-full.yml"))
	if err != nil {
		t.Fatal(err)
	}
	for n := range data {
		_, err := Parse("half.yml", data[:n], testOptions())
		var invalid *Invalid
		if err != nil && (!errors.As(err, &invalid) || len(invalid.Problems) == 0 || !strings.HasPrefix(err.Error(), "half.yml:")) {
			t.Fatalf("first %d bytes: got %v, want problems that name the file", n, err)
		}
		part := string(data[:n])
		if err == nil && strings.Count(part, "{") > strings.Count(part, "}") {
			t.Errorf("first %d bytes are accepted with a bracket open: …%q", n, part[max(0, n-40):])
		}
	}
}

// M02: keys, the admin token and passwords came out in logs through printed
// configurations and through the very messages about bad ones.
func TestSecretsAreNeverPrinted(t *testing.T) {
	good := parse(t, minimal+`admin: {token: "${LEAK}"}`)
	if good.Admin.Token.Reveal() != leak {
		t.Fatal("the token was not read")
	}
	var out strings.Builder
	fmt.Fprintf(&out, "%v %+v %#v", good, *good, good.Admin)
	for _, encode := range []func(any) ([]byte, error){json.Marshal, yaml.Marshal} {
		b, err := encode(good)
		if err != nil {
			t.Fatal(err)
		}
		out.Write(b)
	}
	key := "tbo_" + strings.Repeat("k", 40)
	for _, bad := range []string{
		"admin: {token: [" + key + "]}",
		"admin: " + key,
		"admin: {" + key + ": 1}",
		key + ": 1",
		"region: 1\nlog: {level: " + key + "}",
		`admin: {token: "${` + key + `}"}`,
		`admin: {token: "a ${LEAK}"}`,
		"admin: {token: file:" + key + "}",
		"auth: {signing_keys: [" + key + "bad]}",
		"auth: {signing_keys: " + key + "}",
		`auth: {signing_keys: [{x: "${LEAK}"}, "${LEAK}", "${LEAK}"]}`,
		`auth: {issuers: [{issuer: "bad ${LEAK}", jwks_url: "https://u:` + leak + `@bad.example.com"}]}`,
		`cors: {origins: ["https://u:` + leak + `@h", "${LEAK}"]}`,
		`admin: {listen: "${LEAK}"}`,
		`drain_timeout: "x${LEAK}"`,
		`trusted_proxies: ["${LEAK}"]`,
		`streams: {lifecycle: "${LEAK}"}`,
		"accounts: [{id: acme, keys: [{name: bad, digest: bad" + key + "}]}]",
		"accounts: [{id: acme, keys: [{name: ci, digest: [" + key + "]}]}]",
		"accounts: [{id: acme, keys: [" + key + "]}]",
		"accounts: [{id: acme, keys: [{name: *" + key + "}]}]",
		"accounts: [{id: bad" + key + "}]",
		"store: {url: postgres://u:" + leak + "@h/d}",
		"ursula: {nodes: [http://u:" + leak + "@h:1/x]}",
		"origin: http://u:" + leak + "@h",
	} {
		text := bad
		if !strings.HasPrefix(bad, "ursula") {
			text += "\nursula: {nodes: [http://n:1]}"
		}
		_, err := Parse("f", []byte(text+"\n"), testOptions())
		if err == nil {
			t.Errorf("accepted: %s", bad)
			continue
		}
		out.WriteString(err.Error())
	}
	for _, secret := range []string{leak, key, key[4:]} {
		if strings.Contains(out.String(), secret) {
			t.Errorf("printed %q:\n%s", secret, out.String())
		}
	}
}

// L10: limits of 0 and limits left out were taken for one another. 0 closes,
// absent is the default, and the odd ones are remarked on.
func TestLimitsOfZeroAndAbsent(t *testing.T) {
	c := parse(t, minimal+signed+proxied+`limits: {default: {requests_per_second: 5, burst: 6, open_tails: 0}}
accounts:
  - {id: acme, limits: {requests_per_second: 0}}
  - {id: beta, limits: {burst: 1}}
`)
	want := []DefaultLimits{
		{RequestsPerSecond: 0, Burst: 6, OpenTails: 0, Uploads: 8, UploadBytes: 64 * MiB, RequestBytes: 8 * MiB},
		{RequestsPerSecond: 5, Burst: 1, OpenTails: 0, Uploads: 8, UploadBytes: 64 * MiB, RequestBytes: 8 * MiB},
	}
	for i, a := range c.Accounts {
		if got := a.Limits.Over(c.Limits.Default); got != want[i] {
			t.Errorf("%s: got %+v, want %+v", a.ID, got, want[i])
		}
	}
	warnings := c.Warnings(time.Time{})
	paths := make([]string, len(warnings))
	for i, w := range warnings {
		paths[i] = fmt.Sprintf("%d %s", w.Line, w.Path)
	}
	if diff := cmp.Diff([]string{"5 limits.default.open_tails", "7 accounts[0].limits.requests_per_second"}, paths); diff != "" {
		t.Errorf("warnings (-want +got):\n%s", diff)
	}
}

func TestWarnings(t *testing.T) {
	at := time.Date(2027, 6, 1, 0, 0, 0, 0, time.UTC)
	c := parse(t, strings.Replace(minimal, "https", "http", 1)+`trusted_proxies: ["::/0"]
accounts:
  - id: acme
    keys:
      - name: ci
        digest: "sha256:x"
        expires_at: 2027-06-01T00:00:00Z
`)
	list := func(now time.Time) (lines []string) {
		for _, w := range c.Warnings(now) {
			head, _, _ := strings.Cut(w.String(), ": ")
			lines = append(lines, head+" "+w.Path)
		}
		return lines
	}
	odd := []string{"sluice.yaml:1 origin", "sluice.yaml:1 auth.signing_keys", "sluice.yaml:3 trusted_proxies[0]"}
	if diff := cmp.Diff(odd, list(at.Add(-time.Second))); diff != "" {
		t.Errorf("before the expiry (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(slices.Concat(odd, []string{"sluice.yaml:9 accounts[0].keys[0].expires_at"}), list(at)); diff != "" {
		t.Errorf("at the expiry (-want +got):\n%s", diff)
	}
	if w := parse(t, minimal+signed+proxied).Warnings(at); w != nil {
		t.Errorf("warnings of a plain file: %v", w)
	}
}

// Every default, bound and example of the tags has to be a value that the file
// itself may hold.
func TestTags(t *testing.T) {
	var walk func(typ reflect.Type, path string)
	walk = func(typ reflect.Type, path string) {
		for _, s := range fieldsOf(typ) {
			f, below := typ.Field(s.index).Type, join(path, s.key)
			if f.Kind() == reflect.Pointer || f.Kind() == reflect.Slice {
				f = f.Elem()
			}
			if section(f) {
				walk(f, below)
				continue
			}
			if s.eg == "" {
				t.Errorf("%s has no example", below)
			}
			for what, text := range map[string]string{"default": s.def, "min": s.min, "max": s.max} {
				if text == "" {
					continue
				}
				if err := set(reflect.New(f).Elem(), text, s); err != nil {
					t.Errorf("%s: %s %q: %v", below, what, text, err)
				}
			}
		}
	}
	walk(reflect.TypeFor[Config](), "")
}

func TestMaxFileHolds100000Keys(t *testing.T) {
	const line = `      - {name: "service-000000-of-some-team", digest: "sha256:ca978112ca1bbdcafac231b39a23dc4da786eff8147c4e72b9807785afee48bb", access: read, streams: ["events", "logs.*"], acts_as: agent, expires_at: 2027-06-01T00:00:00Z}` + "\n"
	if got := 100_000 * len(line); got > MaxFile {
		t.Errorf("100,000 keys are %d bytes, more than MaxFile (%d)", got, MaxFile)
	}
	_, err := Parse("f", make([]byte, MaxFile+1), Options{})
	if err == nil || err.Error() != "f: the file is larger than 32MiB" {
		t.Errorf("a larger file: got %v", err)
	}
}

func TestVariableCannotOpenAFile(t *testing.T) {
	o := testOptions()
	o.ReadFile = func(path string) ([]byte, error) {
		t.Errorf("a variable's value opened %s", path)
		return []byte("abc"), nil
	}
	// The text itself, "file:secrets/admin-token", is no bearer token.
	_, err := Parse("sluice.yaml", []byte(minimal+`admin: {token: "${FILE_IN_VARIABLE}"}`), o)
	if err == nil || !strings.Contains(err.Error(), "no client could send") {
		t.Errorf("got %v, want the variable's text judged as it is", err)
	}
}

func TestSecretFile(t *testing.T) {
	for name, tc := range map[string]struct {
		ref, content, want, err string
	}{
		"line break":      {"file:t", "abc\n", "abc", ""},
		"CRLF":            {"file:t", "abc\r\n", "abc", ""},
		"no line break":   {"file:t", "abc", "abc", ""},
		"path from a var": {"file:${DIR}/t", "abc", "abc", ""},
		"two lines":       {"file:t", "abc\ndef\n", "", "line break"},
		"only line break": {"file:t", "\n", "", "is empty"},
		"too large":       {"file:t", strings.Repeat("x", MaxSecret+1), "", "larger than 64KiB"},
		"no path":         {"file:", "", "", "want a path"},
	} {
		t.Run(name, func(t *testing.T) {
			o := testOptions()
			o.ReadFile = func(path string) ([]byte, error) {
				if want := filepath.Join("/etc/sluice", strings.Replace(tc.ref[5:], "${DIR}", "secrets", 1)); path != want {
					t.Errorf("read %s, want %s", path, want)
				}
				return []byte(tc.content), nil
			}
			c, err := Parse("/etc/sluice/f.yml", []byte(minimal+"admin: {token: \""+tc.ref+"\"}\n"), o)
			switch {
			case tc.err != "":
				if err == nil || !strings.Contains(err.Error(), tc.err) {
					t.Errorf("got %v, want %q", err, tc.err)
				}
			case err != nil:
				t.Error(err)
			case c.Admin.Token.Reveal() != tc.want:
				t.Errorf("token = %q, want %q", c.Admin.Token.Reveal(), tc.want)
			}
		})
	}
}
