package config

import (
	"os"
	"reflect"
	"strings"
	"testing"
	"time"
)

// The example loads with an empty environment and without problems, and shows
// every key. It warns of nothing but the key for tokens, which nobody can have
// yet.
func TestExampleFile(t *testing.T) {
	const file = "../deploy/example.yaml"
	c, err := Load(file, Options{Grammar: testGrammar()})
	if err != nil {
		t.Fatal(err)
	}
	if w := c.Warnings(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)); len(w) != 1 || w[0].Path != "auth.signing_keys" {
		t.Errorf("warnings: %v", w)
	}
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var walk func(typ reflect.Type)
	walk = func(typ reflect.Type) {
		for _, s := range fieldsOf(typ) {
			f := typ.Field(s.index).Type
			if f.Kind() == reflect.Slice || f.Kind() == reflect.Pointer {
				f = f.Elem()
			}
			if !strings.Contains(string(data), s.key+":") {
				t.Errorf("%s does not show the key %s", file, s.key)
			}
			if section(f) {
				walk(f)
			}
		}
	}
	walk(reflect.TypeFor[Config]())
}
