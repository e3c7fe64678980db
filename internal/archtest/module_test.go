package archtest

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// modulePath is the import path of the module, the root of its packages.
const modulePath = "sluice"

// source is one Go file of the module.
type source struct {
	name      string // path below the module's root, with slashes
	pkg       string // folder below the module's root, "." for the root
	test      bool
	generated bool
	lines     int
	doc       bool // has a package comment
	imports   []string
	inits     []int // lines of func init
}

// thisModule reads every Go file of the module that the test belongs to.
func thisModule(t *testing.T) []source {
	t.Helper()
	sources, err := readModule(os.DirFS("../.."))
	if err != nil {
		t.Fatal(err)
	}
	if len(sources) < 10 {
		t.Fatalf("found %d Go files: the module's root is elsewhere", len(sources))
	}
	return sources
}

// readModule reads every Go file below the root of fsys, but for what is no
// part of the module: hidden folders, testdata, modules of their own.
func readModule(fsys fs.FS) ([]source, error) {
	var sources []source
	err := fs.WalkDir(fsys, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if name != "." && foreign(fsys, name) {
				return fs.SkipDir
			}
			return nil
		}
		if path.Ext(name) != ".go" {
			return nil
		}
		src, err := readSource(fsys, name)
		if err != nil {
			return err
		}
		sources = append(sources, src)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("reading the module: %w", err)
	}
	return sources, nil
}

func foreign(fsys fs.FS, dir string) bool {
	base := path.Base(dir)
	if base == "testdata" || strings.HasPrefix(base, ".") || strings.HasPrefix(base, "_") {
		return true
	}
	_, err := fs.Stat(fsys, path.Join(dir, "go.mod"))
	return err == nil
}

func readSource(fsys fs.FS, name string) (source, error) {
	text, err := fs.ReadFile(fsys, name)
	if err != nil {
		return source{}, err
	}
	files := token.NewFileSet()
	file, err := parser.ParseFile(files, name, text, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return source{}, err
	}
	src := source{
		name:      name,
		pkg:       path.Dir(name),
		test:      strings.HasSuffix(name, "_test.go"),
		generated: ast.IsGenerated(file),
		lines:     bytes.Count(text, []byte("\n")),
		doc:       strings.TrimSpace(file.Doc.Text()) != "",
	}
	for _, spec := range file.Imports {
		imported, err := strconv.Unquote(spec.Path.Value)
		if err != nil {
			return source{}, fmt.Errorf("%s: import %s: %w", name, spec.Path.Value, err)
		}
		src.imports = append(src.imports, imported)
	}
	for _, decl := range file.Decls {
		if fn, ok := decl.(*ast.FuncDecl); ok && fn.Recv == nil && fn.Name.Name == "init" {
			src.inits = append(src.inits, files.Position(fn.Pos()).Line)
		}
	}
	return src, nil
}

// packages lists the folders of the sources, each once, sorted.
func packages(sources []source) []string {
	set := map[string]bool{}
	for _, src := range sources {
		set[src.pkg] = true
	}
	return slices.Sorted(maps.Keys(set))
}

// matches reports whether pattern names pkg: itself, or with "/..." at its end
// also everything below, as in Go's package patterns.
func matches(pattern, pkg string) bool {
	if root, ok := strings.CutSuffix(pattern, "/..."); ok {
		return pkg == root || strings.HasPrefix(pkg, root+"/")
	}
	return pattern == pkg
}

func matchesAny(patterns []string, pkg string) bool {
	return slices.ContainsFunc(patterns, func(p string) bool { return matches(p, pkg) })
}
