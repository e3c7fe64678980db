package main

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"

	"sluice/config"
)

const configurationHead = `# The operator's file

One YAML file says everything: ` + "`sluice serve --config FILE`" + `. ` + "`sluice check --config FILE`" + ` reads it with the
same code and says what is wrong, every problem at once, each with its line and what to write instead; it exits 0 where
there is none, else 1. What is legal but unwise is a warning, in the same form, and a problem with ` + "`--strict`" + `.

## How it is read

- **Strict.** An unknown key, a key given twice, a wrong type, a value out of bounds or a contradiction is an error. A key
  without a value is an error too: leave the key out to have its default.
- **Plain YAML.** UTF-8 (a byte order mark is passed over), one document, at most %v, which holds 100,000 declared keys with
  room to spare (they take about 2 s and half a GiB to read). No anchors, aliases, merge keys or tags. Indent with spaces.
- **Durations** have a unit: ` + "`300ms`, `15s`, `1m30s`, `2h`" + `.
- **Sizes** are whole numbers of bytes, or of ` + "`KiB`, `MiB`, `GiB`" + `: ` + "`8MiB`" + `.
- **Numbers** and ` + "`true`/`false`" + ` stand without quotes; text that looks like a number, a date or a boolean stands in quotes.
- **Times** are RFC 3339 with a zone: ` + "`2027-06-01T00:00:00Z`" + `.
- **` + "`${NAME}`" + `** takes the value of an environment variable, in any value and anywhere in it, once. Put it in quotes:
  between braces or brackets YAML cannot read it otherwise. A variable that is not set or is empty is an error.
  ` + "`$${`" + ` stands for the characters ` + "`${`" + `; any other ` + "`$`" + ` is itself. Keys are never replaced.
- **` + "`file:PATH`" + `** takes a secret from a file, only where the type is *secret*. A relative path begins at the folder of the
  operator's file; ` + "`${NAME}`" + ` may stand in it; line breaks at the end of the secret are dropped; at most %v. A variable whose value begins with
  ` + "`file:`" + ` does not open a file.
- **Messages** never repeat a secret, the value of a variable or the content of a file.
- **Half a file** is refused where YAML shows it. A file cut between two entries looks whole, so write a new file beside the
  old one and rename it over.

## Keys

`

// configFiles are those that have the file's sections.
func configFiles() []string {
	return []string{"config/config.go", "config/limits.go", "config/server.go", "config/tls.go", "config/trace.go"}
}

// configuration writes docs/configuration.md.
func configuration(root string) ([]byte, error) {
	structs := map[string]structType{}
	for _, name := range configFiles() {
		if err := structsOf(filepath.Join(root, filepath.FromSlash(name)), structs); err != nil {
			return nil, err
		}
	}
	var b bytes.Buffer
	fmt.Fprintf(&b, generatedNote, strings.Join(configFiles(), ", ")+" and deploy/example.yaml")
	fmt.Fprintf(&b, configurationHead, config.Bytes(config.MaxFile), config.Bytes(config.MaxSecret))
	w := keyWriter{&b, structs}
	if err := w.section("Config", ""); err != nil {
		return nil, err
	}
	b.WriteString("## Not built yet\n\nThese keys and values belong to the design and are refused by this version, with these words.\n\n| Key | Meanwhile |\n| --- | --- |\n")
	for _, p := range config.Planned() {
		path, value, hasValue := strings.Cut(p.Path, "=")
		if hasValue {
			path += ": " + value
		}
		fmt.Fprintf(&b, "| `%s` | %s |\n", path, sentence(p.Meanwhile))
	}
	example, err := os.ReadFile(filepath.Join(root, "deploy", "example.yaml")) //nolint:gosec // the root is the developer's
	if err != nil {
		return nil, err
	}
	fmt.Fprintf(&b, "\n## Example\n\n[deploy/example.yaml](../deploy/example.yaml):\n\n```yaml\n%s```\n", example)
	return b.Bytes(), nil
}

// sentence begins with a capital and ends with a full stop.
func sentence(s string) string {
	s = strings.ToUpper(s[:1]) + s[1:]
	return strings.TrimSuffix(s, ".") + "."
}

// structType is a struct of package config with its comment.
type structType struct {
	doc    string
	fields []structField
}

type structField struct {
	doc, typ string
	tag      reflect.StructTag
}

// structsOf adds the struct types of a file.
func structsOf(file string, structs map[string]structType) error {
	parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ParseComments)
	if err != nil {
		return err
	}
	for _, decl := range parsed.Decls {
		gen, ok := decl.(*ast.GenDecl)
		if !ok || gen.Tok != token.TYPE {
			continue
		}
		for _, s := range gen.Specs {
			spec, isType := s.(*ast.TypeSpec)
			if !isType {
				continue
			}
			if st, isStruct := spec.Type.(*ast.StructType); isStruct {
				fields, err := fieldsOf(spec.Name.Name, st)
				if err != nil {
					return err
				}
				structs[spec.Name.Name] = structType{gen.Doc.Text(), fields}
			}
		}
	}
	return nil
}

func fieldsOf(name string, st *ast.StructType) ([]structField, error) {
	var fields []structField
	for _, f := range st.Fields.List {
		if f.Tag == nil {
			continue
		}
		tag, err := strconv.Unquote(f.Tag.Value)
		if err != nil {
			return nil, fmt.Errorf("tag of a field of %s: %w", name, err)
		}
		field := structField{f.Doc.Text(), typeName(f.Type), reflect.StructTag(tag)}
		if field.tag.Get("yaml") == "" {
			continue
		}
		if strings.TrimSpace(field.doc) == "" {
			return nil, fmt.Errorf("the key %s of %s has no doc comment", field.tag.Get("yaml"), name)
		}
		fields = append(fields, field)
	}
	return fields, nil
}

func typeName(e ast.Expr) string {
	switch t := e.(type) {
	case *ast.Ident:
		return t.Name
	case *ast.SelectorExpr:
		return typeName(t.X) + "." + t.Sel.Name
	case *ast.StarExpr:
		return typeName(t.X)
	case *ast.ArrayType:
		return "[]" + typeName(t.Elt)
	}
	return "?"
}

// keyWriter writes the keys of the structs, depth first.
type keyWriter struct {
	b       *bytes.Buffer
	structs map[string]structType
}

func (w keyWriter) section(name, path string) error {
	for _, f := range w.structs[name].fields {
		below := f.tag.Get("yaml")
		if path != "" {
			below = path + "." + below
		}
		inner := strings.TrimPrefix(f.typ, "[]")
		_, isSection := w.structs[inner]
		typ, known := typeText(f, isSection)
		if !known {
			return fmt.Errorf("%s: gendoc does not know the type %s", below, f.typ)
		}
		level := "###"
		if path != "" {
			level = "####"
		}
		fmt.Fprintf(w.b, "%s `%s`\n\n%s\n\n", level, below, paragraph(f.doc))
		fmt.Fprintf(w.b, "*%s*%s\n\n", typ, facts(f.tag, isSection))
		if !isSection {
			continue
		}
		if inner != f.typ {
			below += "[]"
		}
		if err := w.section(inner, below); err != nil {
			return err
		}
	}
	return nil
}

// paragraph joins a comment's lines.
func paragraph(doc string) string { return strings.Join(strings.Fields(doc), " ") }

func typeText(f structField, isSection bool) (string, bool) {
	list := strings.HasPrefix(f.typ, "[]")
	switch {
	case isSection && list:
		return "list of mappings", true
	case isSection:
		return "mapping", true
	case f.tag.Get("enum") != "":
		return "one of " + code(strings.Split(f.tag.Get("enum"), "|")), true
	case list && strings.Contains(f.tag.Get("list"), "single"):
		return "text, or list of texts", true
	}
	text, ok := map[string]string{
		"string": "text", "[]string": "list of texts", "int": "number", "float64": "number", "bool": "`true` or `false`",
		"Bytes": "size", "time.Duration": "duration", "time.Time": "time",
		"secret.Secret": "secret", "[]secret.Secret": "list of secrets", "[]netip.Prefix": "list of addresses or networks",
	}[f.typ]
	return text, ok
}

func code(words []string) string { return "`" + strings.Join(words, "`, `") + "`" }

// facts are what the tags say of a key, after its type.
func facts(tag reflect.StructTag, isSection bool) string {
	var out string
	if tag.Get("required") == "true" {
		out += " · **required**"
	}
	if d := tag.Get("default"); d != "" {
		out += " · default `" + d + "`"
	}
	if tag.Get("max") != "" {
		out += fmt.Sprintf(" · `%s` to `%s`", tag.Get("min"), tag.Get("max"))
	}
	if strings.Contains(tag.Get("list"), "nonempty") {
		out += " · not empty"
	}
	if eg := tag.Get("eg"); eg != "" && !isSection {
		out += fmt.Sprintf(" · e.g. `%s: %s`", tag.Get("yaml"), eg)
	}
	if tag.Get("restart") == "true" {
		out += " · a change needs a restart"
	}
	return out
}
