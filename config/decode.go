package config

import (
	"fmt"
	"net/netip"
	"reflect"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"sluice/internal/secret"
)

// position is a place in the file; zeros where unknown.
type position struct{ line, column int }

// spec is a field of a struct of Config, as its tags state it.
type spec struct {
	index                          int
	key, eg, def, min, max, format string
	enum                           []string
	required, nonEmpty, single     bool
	restart                        bool
}

// decoder walks YAML nodes onto Config and collects every problem. It serves
// one Parse on one goroutine.
type decoder struct {
	file, dir string
	opts      Options
	specs     map[reflect.Type][]spec // by struct type; as many as Config has
	problems  []Problem
}

func (d *decoder) problem(at position, path, format string, args ...any) {
	d.problems = append(d.problems, Problem{
		File: d.file, Line: at.line, Column: at.column, Path: path, Message: fmt.Sprintf(format, args...),
	})
}

// fields lists the keys of a struct type.
func (d *decoder) fields(t reflect.Type) []spec {
	if specs, ok := d.specs[t]; ok {
		return specs
	}
	specs := fieldsOf(t)
	d.specs[t] = specs
	return specs
}

func fieldsOf(t reflect.Type) []spec {
	var specs []spec
	for i := range t.NumField() {
		tag := t.Field(i).Tag
		key := tag.Get("yaml")
		if key == "" {
			continue
		}
		s := spec{
			index: i, key: key, eg: tag.Get("eg"), def: tag.Get("default"),
			min: tag.Get("min"), max: tag.Get("max"), format: tag.Get("format"),
			required: tag.Get("required") == "true", restart: tag.Get("restart") == "true",
			nonEmpty: strings.Contains(tag.Get("list"), "nonempty"), single: strings.Contains(tag.Get("list"), "single"),
		}
		if e := tag.Get("enum"); e != "" {
			s.enum = strings.Split(e, "|")
		}
		specs = append(specs, s)
	}
	return specs
}

// section reports whether a type is a mapping of keys in the file.
func section(t reflect.Type) bool {
	return t.Kind() == reflect.Struct && t != reflect.TypeFor[time.Time]() &&
		t != reflect.TypeFor[netip.Prefix]() && t != reflect.TypeFor[secret.Secret]()
}

// defaults sets every field that has a default, in all sections below v. A
// default that does not parse is a fault of this package, which its tests find.
func (d *decoder) defaults(v reflect.Value) {
	for _, s := range d.fields(v.Type()) {
		f := v.Field(s.index)
		switch {
		case section(f.Type()):
			d.defaults(f)
		case s.def == "":
		case f.Kind() == reflect.Slice:
			f.Set(reflect.MakeSlice(f.Type(), 1, 1))
			_ = set(f.Index(0), s.def, s)
		default:
			_ = set(f, s.def, s)
		}
	}
}

func isNull(n *yaml.Node) bool {
	return n.Kind == yaml.ScalarNode && n.ShortTag() == "!!null"
}

const noAliases = "anchors (&name) and aliases (*name) are not used here; write the value out, or put it in quotes if it is text"

// plain refuses what YAML offers beyond mappings, lists and scalars.
func (d *decoder) plain(n *yaml.Node, at position, path string) bool {
	switch {
	case n.Kind == yaml.AliasNode || n.Anchor != "":
		d.problem(at, path, noAliases)
		return false
	case n.Style&yaml.TaggedStyle != 0:
		d.problem(at, path, "tags (!name) are not used here; remove it, or put the value in quotes if it is text")
		return false
	}
	return true
}

// kindName says what a node is, without repeating it.
func kindName(n *yaml.Node) string {
	switch n.Kind {
	case yaml.MappingNode:
		return "a mapping"
	case yaml.SequenceNode:
		return "a list"
	case yaml.ScalarNode, yaml.DocumentNode, yaml.AliasNode:
	}
	return "a single value"
}

// mapping decodes a section.
func (d *decoder) mapping(n *yaml.Node, v reflect.Value, at position, path string) {
	if !d.plain(n, at, path) {
		return
	}
	specs := d.fields(v.Type())
	if n.Kind != yaml.MappingNode {
		d.problem(at, path, "want a mapping of keys (%s); got %s", keyList(specs), kindName(n))
		return
	}
	seen := make(map[string]int, len(n.Content)/2)
	for i := 0; i+1 < len(n.Content); i += 2 {
		d.entry(n.Content[i], n.Content[i+1], v, specs, seen, path)
	}
	for _, s := range specs {
		if _, ok := seen[s.key]; s.required && !ok {
			d.problem(at, join(path, s.key), "is required; write %s", example(s))
		}
	}
}

// entry decodes one key of a section and its value. seen holds the line of
// each key that stands above.
func (d *decoder) entry(key, val *yaml.Node, v reflect.Value, specs []spec, seen map[string]int, path string) {
	at := position{key.Line, key.Column}
	if !d.plain(key, at, path) {
		return
	}
	switch {
	case key.Kind != yaml.ScalarNode:
		d.problem(at, path, "want a key (%s); got %s", keyList(specs), kindName(key))
		return
	case key.ShortTag() == "!!merge":
		d.problem(at, path, "merge keys (<<) are not used here; write the keys out")
		return
	}
	name := key.Value
	below := join(path, shown(name))
	if first, ok := seen[name]; ok {
		d.problem(at, below, "is given twice, first on line %d; remove one of them", first)
		return
	}
	seen[name] = key.Line
	for _, s := range specs {
		if s.key == name {
			d.value(val, v.Field(s.index), at, below, s)
			return
		}
	}
	if hint, ok := plannedKey(join(path, name)); ok {
		d.problem(at, below, "%s", hint)
		return
	}
	d.problem(at, below, "unknown key; %s", didYouMean(name, keys(specs)))
}

// value decodes the value of a key.
func (d *decoder) value(n *yaml.Node, v reflect.Value, at position, path string, s spec) {
	if v.Kind() == reflect.Pointer {
		p := reflect.New(v.Type().Elem())
		before := len(d.problems)
		if d.value(n, p.Elem(), at, path, s); len(d.problems) == before {
			v.Set(p)
		}
		return
	}
	switch {
	case isNull(n):
		d.problem(at, path, "has no value; write %s%s", example(s), orRemove(s))
	case v.Kind() == reflect.Slice:
		d.list(n, v, at, path, s)
	case section(v.Type()):
		d.mapping(n, v, at, path)
	default:
		d.scalar(n, v, at, path, s)
	}
}

// list decodes a list, or one text where that stands for a list of one.
func (d *decoder) list(n *yaml.Node, v reflect.Value, at position, path string, s spec) {
	if !d.plain(n, at, path) {
		return
	}
	if n.Kind == yaml.ScalarNode && s.single {
		one := reflect.MakeSlice(v.Type(), 1, 1)
		d.scalar(n, one.Index(0), at, path, s)
		v.Set(one)
		return
	}
	if n.Kind != yaml.SequenceNode {
		d.problem(at, path, "want a list, e.g. %s; got %s", s.eg, kindName(n))
		return
	}
	if len(n.Content) == 0 && s.nonEmpty {
		d.problem(at, path, "the list is empty; write %s%s", example(s), orRemove(s))
		return
	}
	all := reflect.MakeSlice(v.Type(), len(n.Content), len(n.Content))
	for i, item := range n.Content {
		if section(all.Index(i).Type()) {
			d.defaults(all.Index(i))
		}
		at := position{item.Line, item.Column}
		d.value(item, all.Index(i), at, fmt.Sprintf("%s[%d]", path, i), s)
	}
	v.Set(all)
}

func join(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}

// shown is a key as it stands in a path: an unknown one may be anything.
func shown(key string) string {
	for _, r := range key {
		if r != '_' && r != '-' && (r < '0' || r > '9') && (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') {
			return echo(key)
		}
	}
	if len(key) > maxEcho || key == "" || strings.Contains(key, "tbo_") {
		return echo(key)
	}
	return key
}

func keys(specs []spec) []string {
	names := make([]string, len(specs))
	for i, s := range specs {
		names[i] = s.key
	}
	return names
}

func keyList(specs []spec) string {
	return strings.Join(keys(specs), ", ")
}

func example(s spec) string {
	if s.eg == "" {
		return s.key + ": {…}"
	}
	return s.key + ": " + s.eg
}

func orRemove(s spec) string {
	if s.required {
		return ""
	}
	return ", or remove the key"
}
