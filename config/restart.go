package config

import "reflect"

// RestartOnly lists the paths that differ between two configurations and that
// a reload cannot take up, in the order of Config. The rest of next may be used.
func RestartOnly(old, next *Config) []string {
	return restartOnly(reflect.ValueOf(old).Elem(), reflect.ValueOf(next).Elem(), "")
}

func restartOnly(old, next reflect.Value, path string) []string {
	var changed []string
	for _, s := range fieldsOf(old.Type()) {
		a, b, below := old.Field(s.index), next.Field(s.index), join(path, s.key)
		switch {
		case section(a.Type()):
			changed = append(changed, restartOnly(a, b, below)...)
		case s.restart && !reflect.DeepEqual(a.Interface(), b.Interface()):
			changed = append(changed, below)
		}
	}
	return changed
}
