package config

import (
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"sluice/internal/secret"
)

// scalar decodes a single value: its references are followed first, then its
// type is checked, then its bounds.
func (d *decoder) scalar(n *yaml.Node, v reflect.Value, at position, path string, s spec) {
	if !d.plain(n, at, path) {
		return
	}
	if n.Kind != yaml.ScalarNode {
		d.problem(at, path, "want a single value, e.g. %s; got %s", example(s), kindName(n))
		return
	}
	if v.Type() == reflect.TypeFor[secret.Secret]() {
		d.secret(n, v, at, path, s)
		return
	}
	text, expanded, err := expand(n.Value, d.opts.Env)
	if err != nil {
		d.problem(at, path, "%s", err)
		return
	}
	got := echo(n.Value)
	if s.format == "hidden" {
		got = "something else"
	}
	if !expanded {
		if fault := wrongScalar(n, v.Type()); fault != "" {
			d.problem(at, path, "%s, e.g. %s; got %s", fault, example(s), got)
			return
		}
	}
	if hint, ok := plannedValue(path, text); ok {
		d.problem(at, path, "%s", hint)
		return
	}
	if err := set(v, text, s); err != nil {
		d.problem(at, path, "%s; got %s", advice(err, expanded, s), got)
		return
	}
	if s.format == "path" && !filepath.IsAbs(text) {
		v.SetString(filepath.Join(d.dir, text))
	}
}

// advice is what to write, with the corrected value where there is one that
// does not come out of the environment.
func advice(err error, expanded bool, s spec) string {
	var f *formatError
	if errors.As(err, &f) && f.better != "" && !expanded && !strings.Contains(f.better, "@") {
		return fmt.Sprintf("%s; write %s", f.want, f.better)
	}
	return fmt.Sprintf("%s, e.g. %s", err, example(s))
}

// wrongScalar says what is wrong with the YAML type of a value, so that
// `region: no`, `name: 1.0` and `burst: "50"` are told from what they look like.
func wrongScalar(n *yaml.Node, t reflect.Type) string {
	quoted := n.Style&(yaml.SingleQuotedStyle|yaml.DoubleQuotedStyle|yaml.LiteralStyle|yaml.FoldedStyle) != 0
	tag := n.ShortTag()
	switch {
	case t == reflect.TypeFor[time.Duration](), t == reflect.TypeFor[Bytes](), t == reflect.TypeFor[time.Time](), t == reflect.TypeFor[netip.Prefix]():
		return ""
	case t.Kind() == reflect.Int && quoted:
		return "want a whole number, without quotes"
	case t.Kind() == reflect.Float64 && quoted:
		return "want a number, without quotes"
	case t.Kind() == reflect.Bool && (quoted || tag != "!!bool"):
		return "want true or false, without quotes"
	case t.Kind() == reflect.String && tag != "!!str":
		return "want text; YAML reads this as something else, so put it in quotes"
	}
	return ""
}

// set parses text into v and checks the bounds that s states.
func set(v reflect.Value, text string, s spec) error {
	switch dst := v.Addr().Interface().(type) {
	case *time.Duration:
		d, err := parseDuration(text)
		low, high := bounds(s, parseDuration)
		return store(dst, d, err, low <= d && d <= high, "want a duration from %s to %s", s)
	case *Bytes:
		b, err := ParseBytes(text)
		low, high := bounds(s, ParseBytes)
		return store(dst, b, err, low <= b && b <= high, "want a size from %s to %s", s)
	case *int:
		n, err := parseDigits(text)
		low, high := bounds(s, parseDigits)
		if err != nil || n < low || n > high {
			return fmt.Errorf("want a whole number from %s to %s", s.min, s.max)
		}
		*dst = int(n)
		return nil
	case *float64:
		n, err := parseShare(text)
		low, high := bounds(s, parseShare)
		return store(dst, n, err, low <= n && n <= high, "want a number from %s to %s", s)
	case *bool:
		if text != "true" && text != "false" {
			return errors.New("want true or false")
		}
		*dst = text == "true"
		return nil
	case *time.Time:
		t, err := time.Parse(time.RFC3339, text)
		if err != nil {
			return errors.New("want an RFC 3339 time with its zone")
		}
		*dst = t.UTC()
		return nil
	case *netip.Prefix:
		p, err := parsePrefix(text)
		if err == nil {
			*dst = p
		}
		return err
	case *string:
		return setText(dst, text, s)
	}
	return errors.New("this key cannot be read")
}

func setText(dst *string, text string, s spec) error {
	if len(s.enum) > 0 {
		if !slices.Contains(s.enum, text) {
			if len(s.enum) == 1 {
				return fmt.Errorf("want %s, the only value in this version", s.enum[0])
			}
			return fmt.Errorf("want one of %s", strings.Join(s.enum, ", "))
		}
		*dst = text
		return nil
	}
	if text == "" {
		return errors.New("is empty; give it a value")
	}
	out, err := checkFormat(s.format, text)
	if err == nil {
		*dst = out
	}
	return err
}

// bounds reads the min and max tags; a test reads them all, so they parse.
func bounds[T any](s spec, parse func(string) (T, error)) (low, high T) {
	low, _ = parse(s.min)
	high, _ = parse(s.max)
	return low, high
}

func store[T any](dst *T, value T, err error, within bool, format string, s spec) error {
	if err != nil {
		return err
	}
	if !within {
		return fmt.Errorf(format, s.min, s.max)
	}
	*dst = value
	return nil
}
