package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"

	"sluice/internal/secret"
)

// Bounds on what is read. MaxFile holds over 100,000 declared keys of 200
// bytes each, with room to spare.
const (
	MaxFile   = 32 << 20 // bytes of the operator's file
	MaxSecret = 64 << 10 // bytes of a file that a secret refers to
)

// Options are what reading a file depends on. The zero value has an empty
// environment, the real file system and no grammar.
type Options struct {
	// Env looks up an environment variable, as os.LookupEnv does.
	Env func(name string) (string, bool)
	// ReadFile reads a file that a secret refers to; nil reads from disk, up to MaxSecret.
	ReadFile func(path string) ([]byte, error)
	// Seen is told of each file that was read, this one and those that secrets refer to;
	// nil = nobody is.
	Seen func(path string, data []byte, err error)
	// Grammar checks the domain's words.
	Grammar Grammar
}

// Grammar checks the domain's words (design §1, §5). A nil function accepts
// anything. The errors are shown to the operator; they must not repeat the value.
type Grammar struct {
	AccountID  func(id string) error
	StreamName func(account, name string) error // the name, and the length of both together
	StreamSet  func(patterns []string) error    // never called with an empty list
	Digest     func(text string) error
	IssuerURL  func(url string) error // another issuer's identifier
	JWKSURL    func(url string) error // where its keys are
	Redis      func(r Redis) error    // never called with an empty one
	Store      func(s Store) error    // never called with an empty one
	// SigningKey reads a private key and tells its id: the same for one key,
	// however it is written.
	SigningKey func(text secret.Secret) (id string, err error)
}

// Load reads the file at path. Problems in it are an *Invalid; a file that
// cannot be read is the operating system's error, wrapped.
func Load(path string, o Options) (*Config, error) {
	data, err := readBounded(path, MaxFile)
	if o.Seen != nil {
		o.Seen(path, data, err)
	}
	if err != nil {
		return nil, fmt.Errorf("read the configuration: %w", err)
	}
	return Parse(path, data, o)
}

// Parse reads data as the file called name; paths of secrets are relative to
// the folder of name. The error is an *Invalid, or nil.
func Parse(name string, data []byte, o Options) (*Config, error) {
	if o.Env == nil {
		o.Env = func(string) (string, bool) { return "", false }
	}
	if o.ReadFile == nil {
		o.ReadFile = func(path string) ([]byte, error) { return readBounded(path, MaxSecret) }
	}
	d := &decoder{file: name, dir: filepath.Dir(name), opts: o, specs: map[reflect.Type][]spec{}}
	c := &Config{}
	d.defaults(reflect.ValueOf(c).Elem())
	root := d.document(data)
	if root != nil {
		d.mapping(root, reflect.ValueOf(c).Elem(), position{root.Line, root.Column}, "")
		d.report(root, validate(c, o.Grammar))
	}
	if len(d.problems) > 0 {
		inFileOrder(d.problems)
		return nil, &Invalid{Problems: capped(d.problems)}
	}
	c.remark(name, root)
	return c, nil
}

// maxProblems bounds the problems that are told of one file: a wrong kind of file
// has one in every line.
const maxProblems = 100

func capped(ps []Problem) []Problem {
	if len(ps) <= maxProblems {
		return ps
	}
	last := ps[maxProblems]
	last.Path, last.Message = "", fmt.Sprintf("and %d more problems from here on", len(ps)-maxProblems)
	return append(ps[:maxProblems:maxProblems], last)
}

var errNotRegular = errors.New("it is no regular file")

// readBounded reads at most limit+1 bytes, so that the caller can tell a file
// that is too large.
func readBounded(path string, limit int64) ([]byte, error) {
	// A pipe or a device could keep the reader waiting for ever, a reload too.
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, &fs.PathError{Op: "read", Path: path, Err: errNotRegular}
	}
	f, err := os.Open(path) //nolint:gosec // the operator names this file
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	return io.ReadAll(io.LimitReader(f, limit+1))
}

// document parses the text to the node of its one mapping; nil after a problem.
func (d *decoder) document(data []byte) *yaml.Node {
	if p, bad := badText(data); bad {
		d.problem(p.at, "", "%s", p.message)
		return nil
	}
	dec := yaml.NewDecoder(bytes.NewReader(data))
	var doc yaml.Node
	if err := dec.Decode(&doc); err != nil {
		if errors.Is(err, io.EOF) {
			d.problem(position{}, "", emptyFile)
		} else {
			d.syntax(data, err)
		}
		return nil
	}
	var second yaml.Node
	if err := dec.Decode(&second); err == nil {
		d.problem(position{second.Line, second.Column}, "", `a second document begins here; the file is one document, so remove the "---"`)
		return nil
	} else if !errors.Is(err, io.EOF) {
		d.syntax(data, err)
		return nil
	}
	root := doc.Content[0]
	if isNull(root) {
		d.problem(position{}, "", emptyFile)
		return nil
	}
	return root
}

const emptyFile = "the file is empty; it needs at least: origin: https://streams.example.com and ursula: {nodes: [\"http://10.0.0.1:4437\"]}"

// textProblem is a fault of the text before YAML has seen it.
type textProblem struct {
	at      position
	message string
}

func badText(data []byte) (textProblem, bool) {
	if len(data) > MaxFile {
		return textProblem{message: fmt.Sprintf("the file is larger than %v", Bytes(MaxFile))}, true
	}
	line, column := 1, 1
	for i := 0; i < len(data); {
		r, size := utf8.DecodeRune(data[i:])
		switch {
		case r == utf8.RuneError && size == 1:
			return textProblem{position{line, column}, "the text is not UTF-8 from here on; save the file as UTF-8"}, true
		case r == '\n':
			line, column = line+1, 0
		case r < ' ' && r != '\t' && r != '\r', r == 0x7f:
			return textProblem{position{line, column}, fmt.Sprintf("a control character (U+%04X) stands in column %d; remove it", r, column)}, true
		}
		column++
		i += size
	}
	return textProblem{}, false
}

// syntax turns the YAML library's error into a problem. The library gives its
// place as "line N: " in the text only, counts it from 0 in errors of its
// parser, and leaves it out on the first line.
func (d *decoder) syntax(data []byte, err error) {
	text := strings.TrimPrefix(err.Error(), "yaml: ")
	line := 0
	if rest, ok := strings.CutPrefix(text, "line "); ok {
		if digits, msg, ok := strings.Cut(rest, ": "); ok {
			if n, convErr := strconv.Atoi(digits); convErr == nil {
				line, text = n, msg
			}
		}
	}
	if line == 0 || parserError(text) {
		line++
	}
	switch {
	case strings.Contains(text, "unknown anchor"):
		// The library names the anchor but not its line.
		_, name, _ := strings.Cut(text, "'")
		name, _, _ = strings.Cut(name, "'")
		if before, _, ok := bytes.Cut(data, []byte("*"+name)); ok {
			line = 1 + bytes.Count(before, []byte("\n"))
		}
		text = noAliases
	case strings.Contains(text, "expected alphabetic or numeric"): // a bare "*" or "&"
		text = noAliases
	case strings.Contains(text, "cannot start any token") && tabbed(data, line):
		text = "a tab stands where YAML wants spaces; indent with spaces"
	default:
		line = faultLine(data, line, text)
		text = "this is not YAML: " + text + "; look for a missing quote, bracket, colon or indentation at or above this line"
		if bytes.Contains(data, []byte("${")) {
			text += `; between braces or brackets, "${NAME}" has to stand in quotes`
		}
	}
	d.problem(position{line: line}, "", "%s", text)
}

// parserError reports whether an error is of the library's parser, rather than
// of its scanner, which words some of its own alike.
func parserError(text string) bool {
	what, ok := strings.CutPrefix(text, "did not find expected ")
	if !ok {
		return false
	}
	for _, prefix := range []string{"<", "node content", "'-' indicator", "key", "',' or"} {
		if strings.HasPrefix(what, prefix) {
			return true
		}
	}
	return false
}

// Bounds of the search of faultLine, so that a large file costs no time.
const (
	maxSearched   = 1 << 20 // bytes
	maxSearchedOn = 400     // lines
)

// faultLine finds the line that a parser's error is about. The library tells
// where the mapping or list began that it was in; the fault is the first line
// further down with which the file breaks in the same way.
func faultLine(data []byte, line int, text string) int {
	if !parserError(text) || len(data) > maxSearched {
		return line
	}
	lines := bytes.SplitAfter(data, []byte("\n"))
	for n := line; n <= min(len(lines), line+maxSearchedOn); n++ {
		var node yaml.Node
		err := yaml.Unmarshal(bytes.Join(lines[:n], nil), &node)
		if err != nil && strings.HasSuffix(err.Error(), ": "+text) {
			return n
		}
	}
	return line
}

// tabbed reports whether the line has a tab in its indentation.
func tabbed(data []byte, line int) bool {
	for n := 1; n < line; n++ {
		_, rest, ok := bytes.Cut(data, []byte("\n"))
		if !ok {
			return false
		}
		data = rest
	}
	first, _, _ := bytes.Cut(data, []byte("\n"))
	indent := first[:len(first)-len(bytes.TrimLeft(first, " \t"))]
	return bytes.ContainsRune(indent, '\t')
}
