package config

import (
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// report gives the findings their lines. A path that has a problem already is
// passed over: what was found later follows from it.
func (d *decoder) report(root *yaml.Node, found []finding) {
	bad := make(map[string]bool, len(d.problems))
	for _, p := range d.problems {
		bad[p.Path] = true
	}
	for _, f := range found {
		if !bad[f.path] {
			d.problem(locate(root, f.path), f.path, "%s", f.message)
		}
	}
}

// locate finds the place of a path, or of the nearest part above it that
// stands in the file.
func locate(root *yaml.Node, path string) position {
	at, n := position{root.Line, root.Column}, root
	for path != "" {
		var step string
		step, path = nextStep(path)
		var next *yaml.Node
		if i, err := strconv.Atoi(step); err == nil && n.Kind == yaml.SequenceNode && i < len(n.Content) {
			next = n.Content[i]
			at = position{next.Line, next.Column}
		} else if n.Kind == yaml.MappingNode {
			for i := 0; i+1 < len(n.Content); i += 2 {
				if key := n.Content[i]; key.Value == step {
					next, at = n.Content[i+1], position{key.Line, key.Column}
					break
				}
			}
		}
		if next == nil {
			return at
		}
		n = next
	}
	return at
}

// nextStep takes the first key or index off a path such as "a.b[0].c".
func nextStep(path string) (step, rest string) {
	path = strings.TrimPrefix(strings.TrimPrefix(path, "["), ".")
	if i := strings.IndexAny(path, ".[]"); i >= 0 {
		return path[:i], strings.TrimPrefix(path[i:], "]")
	}
	return path, ""
}
