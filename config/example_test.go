package config

import (
	"os"
	"reflect"
	"strings"
	"testing"
	"time"
)

// The example loads with an empty environment, without problems or warnings,
// and shows every key.
func TestExampleFile(t *testing.T) {
	const file = "../deploy/example.yaml"
	c, err := Load(file, Options{Grammar: testGrammar()})
	if err != nil {
		t.Fatal(err)
	}
	if w := c.Warnings(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)); len(w) > 0 {
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
			// A section without keys in this version has nothing to show.
			if section(f) && f.NumField() == 0 {
				continue
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
