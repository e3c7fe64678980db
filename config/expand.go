package config

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"reflect"
	"strings"

	"go.yaml.in/yaml/v3"

	"sluice/internal/secret"
)

var errReference = errors.New(`"${" begins a reference such as ${NAME}, of A-Z, a-z, 0-9 and _; for the characters themselves write "$${"`)

// expand replaces each ${NAME} by the variable's value, once: what comes out is
// not looked at again. "$${" stands for "${"; any other "$" is itself. The
// error names the variable and never its value.
func expand(raw string, env func(string) (string, bool)) (text string, expanded bool, err error) {
	if !strings.Contains(raw, "${") {
		return raw, false, nil
	}
	var b strings.Builder
	for {
		before, rest, ok := strings.Cut(raw, "${")
		if !ok {
			b.WriteString(raw)
			return b.String(), expanded, nil
		}
		if kept, escaped := strings.CutSuffix(before, "$"); escaped {
			b.WriteString(kept)
			b.WriteString("${")
			raw = rest
			continue
		}
		b.WriteString(before)
		name, after, closed := strings.Cut(rest, "}")
		// A key pasted between the braces is no name, and is not repeated.
		if !closed || !variableName(name) || strings.Contains(name, "tbo_") {
			return "", false, errReference
		}
		value, set := env(name)
		switch {
		case !set:
			return "", false, fmt.Errorf("the environment variable %s is not set; set it where the gateway is started", name)
		case value == "":
			return "", false, fmt.Errorf("the environment variable %s is empty; give it a value where the gateway is started", name)
		}
		b.WriteString(value)
		raw, expanded = after, true
	}
}

func variableName(s string) bool {
	for i := range len(s) {
		c := s[i]
		letter := c == '_' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z'
		if !letter && (i == 0 || c < '0' || c > '9') {
			return false
		}
	}
	return s != ""
}

const filePrefix = "file:"

// secret decodes a credential: text, with ${NAME}, or file:PATH. No message
// repeats any of it, but for the path as the file states it.
func (d *decoder) secret(n *yaml.Node, v reflect.Value, at position, path string, s spec) {
	text, _, err := expand(n.Value, d.opts.Env)
	if err != nil {
		d.problem(at, path, "%s", err)
		return
	}
	// Whether it is a path is decided by what stands in the file: a variable's
	// value that begins with "file:" must not open files.
	if strings.HasPrefix(n.Value, filePrefix) {
		text, err = d.secretFile(strings.TrimPrefix(n.Value, filePrefix), strings.TrimPrefix(text, filePrefix))
		if err != nil {
			d.problem(at, path, "%s", err)
			return
		}
	}
	switch {
	case text == "":
		d.problem(at, path, `is empty; write "${NAME}" for an environment variable or file:PATH, or remove the key`)
	case s.format == "bearer" && !sendable(text):
		d.problem(at, path, "has a space, a line break or another character that no client could send as a bearer token; take letters and digits")
	default:
		v.Set(reflect.ValueOf(secret.New(text)))
	}
}

// secretFile reads the file of a secret, less the line break at its end.
func (d *decoder) secretFile(raw, path string) (string, error) {
	if path == "" {
		return "", errors.New("want a path after file:, e.g. file:secrets/admin-token")
	}
	if !filepath.IsAbs(path) {
		path = filepath.Join(d.dir, path)
	}
	data, err := d.opts.ReadFile(path)
	if d.opts.Seen != nil {
		d.opts.Seen(path, data, err)
	}
	var pathErr *fs.PathError
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "", fmt.Errorf("there is no file %s; a relative path begins at the folder of this configuration", echo(raw))
	case errors.As(err, &pathErr):
		return "", fmt.Errorf("the file %s cannot be read: %w", echo(raw), pathErr.Err)
	case err != nil:
		// The reader's own words may hold the path with its variables' values.
		return "", fmt.Errorf("the file %s cannot be read", echo(raw))
	case len(data) > MaxSecret:
		return "", fmt.Errorf("the file %s is larger than %v; it holds the secret and nothing else", echo(raw), Bytes(MaxSecret))
	}
	text := strings.TrimRight(string(data), "\r\n")
	if text == "" {
		return "", fmt.Errorf("the file %s is empty; it holds the secret and nothing else", echo(raw))
	}
	return text, nil
}

// sendable reports whether a text can be the token of an Authorization header
// (RFC 6750 §2.1, b64token): letters, digits and -._~+/, with "=" at its end.
func sendable(s string) bool {
	body := strings.TrimRight(s, "=")
	for i := range len(body) {
		c := body[i]
		if ('a' > c || c > 'z') && ('A' > c || c > 'Z') && ('0' > c || c > '9') && !strings.ContainsRune("-._~+/", rune(c)) {
			return false
		}
	}
	return body != ""
}
