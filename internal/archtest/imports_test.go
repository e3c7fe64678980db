package archtest

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"
)

// rule says what a package may import of ours. A pattern that ends in "/..."
// stands for a package and all below it.
type rule struct {
	imports []string // in the product
	tests   []string // in its tests, beyond imports and itself
}

// layers is the table of design §12: imports point one way, from cmd down.
// A package that no row names fails the test, so that a new one gets its place
// here before it gets importers. The longest matching row counts.
func layers() map[string]rule {
	return map[string]rule{
		// The only importer of everything: it wires.
		"cmd/sluice": {imports: []string{
			"config", "gateway", "gateway/upstream", "auth", "ratelimit", "cache",
			"internal/tenant", "internal/refusal", "internal/secret", "internal/store/...", "internal/manage",
			"internal/console", "internal/telemetry", "internal/tracing", "internal/usage", "internal/ursulatest/...", "internal/cli",
			"gateway/tls", "gateway/proxyproto", "internal/certstore",
		}, tests: []string{"bench/...", "internal/redistest", "internal/realpart", "internal/realclients", "internal/bubble", "internal/syncbuf", "internal/postgrestest", "internal/pebbletest", "internal/otlptest"}},

		// The two that speak HTTP refusals. gateway never learns where accounts are kept.
		"gateway": {imports: []string{
			"gateway/proxyproto", "gateway/upstream", "auth", "ratelimit", "cache",
			"internal/tenant", "internal/refusal", "internal/telemetry", "internal/tracing", "internal/secret", "internal/usage",
		}, tests: []string{"internal/ursulatest/...", "internal/store/...", "internal/bubble", "internal/syncbuf", "internal/otlptest"}},
		"gateway/proxyproto": {tests: []string{"internal/bubble"}},
		"gateway/tls":        {imports: []string{"internal/refusal"}, tests: []string{"internal/bubble", "internal/pebbletest"}},
		"internal/manage": {imports: []string{
			"auth", "internal/store", "internal/tenant", "internal/refusal", "internal/secret", "internal/telemetry", "internal/usage",
		}, tests: []string{"internal/ursulatest/...", "internal/store/...", "internal/bubble", "internal/syncbuf", "internal/postgrestest", "internal/realpart"}},

		"auth":               {imports: []string{"internal/tenant", "internal/secret"}, tests: []string{"internal/store/...", "internal/bubble"}},
		"internal/store/...": {imports: []string{"internal/tenant", "internal/secret", "internal/usage", "internal/store/..."}, tests: []string{"internal/postgrestest", "internal/realpart", "internal/bubble"}},

		// The store is passed in.
		"internal/certstore": {tests: []string{"internal/bubble"}},

		// cmd translates the file into each package's Options; nobody else sees it.
		"config": {imports: []string{"internal/secret"}},

		// Nothing of ours: what they need is passed in.
		"cache":                 {},
		"gateway/upstream":      {imports: []string{"gateway/upstream/wire"}, tests: []string{"internal/ursulatest/...", "internal/bubble"}},
		"gateway/upstream/wire": {tests: []string{"internal/bubble"}},
		"ratelimit":             {tests: []string{"ratelimit/limittest", "internal/redistest", "internal/bubble"}},
		"ratelimit/limittest":   {imports: []string{"ratelimit"}},

		// The client's side: it talks to a gateway over HTTP, and knows nothing of how one is
		// built. Only the command line, its one user, knows terminals.
		"internal/apiclient": {imports: []string{"internal/secret"}, tests: []string{"internal/ursulatest/...", "internal/bubble"}},
		"internal/cli":       {imports: []string{"internal/apiclient", "auth", "internal/tenant", "internal/secret"}, tests: []string{"internal/ursulatest/...", "internal/bubble", "internal/syncbuf", "internal/realpart"}},

		// Leaves.
		"internal/secret":         {},
		"internal/refusal":        {},
		"internal/console":        {},
		"internal/tenant":         {imports: []string{"internal/secret"}},
		"internal/tracing":        {tests: []string{"internal/bubble", "internal/otlptest"}},
		"internal/otlptest":       {},
		"internal/telemetry":      {imports: []string{"internal/secret"}, tests: []string{"internal/bubble"}},
		"internal/usage":          {tests: []string{"internal/bubble"}},
		"internal/realpart":       {},
		"internal/bubble":         {},
		"internal/syncbuf":        {},
		"internal/ursulatest/...": {imports: []string{"internal/ursulatest/...", "internal/realpart"}},
		"internal/redistest":      {imports: []string{"internal/realpart"}},
		"internal/pebbletest":     {},
		"internal/postgrestest":   {imports: []string{"internal/realpart"}},
		"internal/realclients":    {imports: []string{"internal/realpart"}},

		// Tools of the developer: no part of the binary.
		"internal/gendoc":   {imports: []string{"config", "internal/refusal", "internal/telemetry"}},
		"internal/archtest": {},
		"tools/testrun":     {},
		// Load from outside: a peer is driven by the same code, so none of ours is known,
		// but for what starts the real parts and what is measured apart.
		"bench/...":    {imports: []string{"bench/...", "internal/ursulatest/...", "gateway/upstream"}, tests: []string{"cmd/sluice"}},
		"bench/limits": {tests: []string{"ratelimit", "internal/redistest", "internal/ursulatest/..."}},
		"bench/store":  {tests: []string{"auth", "internal/postgrestest", "internal/ursulatest/..."}},
	}
}

// libraries says which packages may speak a library of others in the product.
// A library that no row names fails the test: a new dependency is a decision.
// Tests may use each of them.
func libraries() map[string][]string {
	return map[string][]string{
		"go.yaml.in/yaml/v3":               {"config"},
		"github.com/caddyserver/certmagic": {"cmd/sluice", "gateway/tls", "internal/certstore"},
		"github.com/mholt/acmez/v3/acme":   {"gateway/tls"},
		// In tests alone: the authority that certificates are ordered of.
		"github.com/letsencrypt/...": {"internal/pebbletest"},
		"github.com/miekg/dns":       {"internal/pebbletest"},
		"github.com/spf13/...":       {"cmd/sluice", "internal/cli"},
		"go.opentelemetry.io/...":    {"internal/tracing", "internal/otlptest"},
		// It holds the globals, which nobody sets or reads.
		"go.opentelemetry.io/otel":                nil,
		"google.golang.org/protobuf/proto":        {"internal/tracing", "internal/otlptest"},
		"go.uber.org/zap/...":                     {"cmd/sluice", "gateway", "gateway/tls", "gateway/upstream", "internal/manage", "internal/telemetry"},
		"github.com/prometheus/client_golang/...": {"cmd/sluice", "gateway", "gateway/upstream", "ratelimit", "cache", "internal/telemetry"},
		"github.com/zeebo/blake3":                 {"internal/apiclient", "internal/ursulatest/..."},
		"github.com/pires/go-proxyproto":          {"gateway/proxyproto"},
		"golang.org/x/net/...":                    {"cmd/sluice", "gateway/...", "internal/ursulatest/..."},
		"golang.org/x/sync/...":                   {"cmd/sluice", "gateway/...", "auth", "cache", "internal/..."},
		"golang.org/x/term":                       {"internal/cli"},
		"golang.org/x/sys/unix":                   {"cmd/sluice", "gateway/upstream/...", "internal/store", "bench/..."},
		"github.com/golang-jwt/jwt/v5":            {"auth"},
		"github.com/hashicorp/golang-lru/v2/...":  {"auth", "internal/store/replica"},
		"golang.org/x/time/rate":                  {"ratelimit", "internal/tracing"},
		"github.com/redis/go-redis/...":           {"ratelimit", "internal/redistest"},
		"github.com/jackc/pgx/v5/...":             {"internal/store", "internal/postgrestest"},
		"modernc.org/sqlite/...":                  {"internal/store"},
		"github.com/pressly/goose/v3/...":         {"internal/store"},
		"github.com/google/go-cmp/...":            {"internal/store/storetest", "ratelimit/limittest"},
		// In tests alone: the proxy that breaks what passes to nodes, and its logger.
		"github.com/Shopify/toxiproxy/...": nil,
		"github.com/rs/zerolog":            nil,
		"github.com/rs/cors":               {"gateway"},
		"github.com/fsnotify/fsnotify":     {"cmd/sluice"},
		"github.com/coreos/go-systemd/...": {"cmd/sluice"},
		"github.com/coreos/go-oidc/v3/...": nil,
		// In tests alone: what holds answers against openapi.yaml.
		"github.com/getkin/kin-openapi/...": nil,
		"golang.org/x/oauth2/...":           nil,
		// In tests alone: what drives the browser that reads the page of docs/clients.md.
		"github.com/chromedp/...": nil,
	}
}

func TestImports(t *testing.T) {
	t.Parallel()
	for _, fault := range importFaults(thisModule(t), layers(), libraries()) {
		t.Error(fault)
	}
}

// importFaults holds the sources against the two tables.
func importFaults(sources []source, layers map[string]rule, libraries map[string][]string) []string {
	var faults []string
	for _, pkg := range packages(sources) {
		if _, ok := longest(layers, pkg); !ok {
			faults = append(faults, fmt.Sprintf("package %s is in no row of layers(): give it its place (design §12)", pkg))
		}
	}
	for _, src := range sources {
		row, ok := longest(layers, src.pkg)
		if !ok {
			continue
		}
		for _, imported := range src.imports {
			if ours, ok := strings.CutPrefix(imported, modulePath+"/"); ok {
				if !mayImport(src, layers[row], ours) {
					faults = append(faults, fmt.Sprintf("%s imports %s, which the row %q of layers() does not allow", src.name, ours, row))
				}
				continue
			}
			if fault := libraryFault(src, imported, libraries); fault != "" {
				faults = append(faults, fault)
			}
		}
	}
	return faults
}

func mayImport(src source, r rule, ours string) bool {
	if matchesAny(r.imports, ours) {
		return true
	}
	// An external test package imports the package that it tests.
	return src.test && (ours == src.pkg || matchesAny(r.tests, ours))
}

// libraryFault judges an import that is not ours. Import paths of the standard
// library have no dot in their first element.
func libraryFault(src source, imported string, libraries map[string][]string) string {
	if imported == "C" {
		return src.name + " uses cgo: the product is built without it"
	}
	if first, _, _ := strings.Cut(imported, "/"); !strings.Contains(first, ".") {
		return ""
	}
	row, ok := longest(libraries, imported)
	switch {
	case !ok:
		return fmt.Sprintf("%s imports %s, which no row of libraries() names: say who may speak it", src.name, imported)
	case !src.test && !matchesAny(libraries[row], src.pkg):
		return fmt.Sprintf("%s imports %s, which only %s may", src.name, imported, strings.Join(libraries[row], ", "))
	default:
		return ""
	}
}

// longest returns the pattern of the table that names pkg most closely: pkg
// itself, else the longest.
func longest[V any](table map[string]V, pkg string) (string, bool) {
	if _, ok := table[pkg]; ok {
		return pkg, true
	}
	var found []string
	for pattern := range table {
		if matches(pattern, pkg) {
			found = append(found, pattern)
		}
	}
	if found == nil {
		return "", false
	}
	return slices.MaxFunc(found, func(a, b string) int { return len(a) - len(b) }), true
}

// TestImportFaults proves that the check above can fail, row by row.
func TestImportFaults(t *testing.T) {
	t.Parallel()
	layers := map[string]rule{
		"high":    {imports: []string{"low/..."}, tests: []string{"fake"}},
		"low":     {},
		"low/...": {imports: []string{"low"}},
		"fake":    {},
	}
	libraries := map[string][]string{"example.com/lib/...": {"low"}}
	tests := []struct {
		name, file, text string
		want             []string
	}{
		{"downwards", "high/a.go", `import "sluice/low/deep"`, nil},
		{"upwards", "low/a.go", `import "sluice/high"`, []string{`low/a.go imports high, which the row "low" of layers() does not allow`}},
		{"longest row", "low/deep/a.go", `import "sluice/low"`, nil},
		{"test only, in a test", "high/a_test.go", `import "sluice/fake"`, nil},
		{"test only, in the product", "high/a.go", `import "sluice/fake"`, []string{`high/a.go imports fake, which the row "high" of layers() does not allow`}},
		{"own package in its external test", "low/a_test.go", `import "sluice/low"`, nil},
		{"new package", "other/a.go", ``, []string{"package other is in no row of layers(): give it its place (design §12)"}},
		{"standard library", "low/a.go", `import "net/http"`, nil},
		{"library, allowed", "low/a.go", `import "example.com/lib/v2"`, nil},
		{"library, elsewhere", "high/a.go", `import "example.com/lib"`, []string{"high/a.go imports example.com/lib, which only low may"}},
		{"library, in a test", "high/a_test.go", `import "example.com/lib"`, nil},
		{"library, new", "low/a.go", `import "example.org/x"`, []string{"low/a.go imports example.org/x, which no row of libraries() names: say who may speak it"}},
		{"cgo", "low/a.go", `import "C"`, []string{"low/a.go uses cgo: the product is built without it"}},
		{"another build constraint", "low/a_windows.go", `import "sluice/high"`, []string{`low/a_windows.go imports high, which the row "low" of layers() does not allow`}},
		{"testdata is no package", "low/testdata/a.go", `import "sluice/high"`, nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			sources, err := readModule(fstest.MapFS{tt.file: {Data: []byte("package p\n" + tt.text + "\n")}})
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, importFaults(sources, layers, libraries)); diff != "" {
				t.Errorf("faults (-want +got):\n%s", diff)
			}
		})
	}
}
