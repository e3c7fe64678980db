package config

import (
	"fmt"
	"sort"
	"strings"
)

// Problem is one thing that is wrong, or odd, in the file. Its text never
// holds the value of a secret, of an environment variable or of a referred file.
type Problem struct {
	File    string
	Line    int    // 1 is the first; 0 where no line is to blame
	Column  int    // 1 is the first; 0 where unknown
	Path    string // e.g. "accounts[0].keys[1].digest"; empty for the file as a whole
	Message string // what to write instead
}

// String is "file:line: path: message", without the parts that are unknown.
func (p Problem) String() string {
	var b strings.Builder
	b.WriteString(p.File)
	if p.Line > 0 {
		fmt.Fprintf(&b, ":%d", p.Line)
	}
	b.WriteString(": ")
	if p.Path != "" {
		b.WriteString(p.Path)
		b.WriteString(": ")
	}
	b.WriteString(p.Message)
	return b.String()
}

// Invalid is the error of a file that cannot be used. It holds every problem
// that was found, in the order of the file, and never none.
type Invalid struct{ Problems []Problem } //nolint:errname // callers read config.Invalid; an Error at its end says nothing more

// Error lists the problems, one a line.
func (e *Invalid) Error() string {
	lines := make([]string, len(e.Problems))
	for i, p := range e.Problems {
		lines[i] = p.String()
	}
	return strings.Join(lines, "\n")
}

func inFileOrder(ps []Problem) {
	sort.SliceStable(ps, func(i, j int) bool {
		if ps[i].Line != ps[j].Line {
			return ps[i].Line < ps[j].Line
		}
		return ps[i].Column < ps[j].Column
	})
}

// maxEcho bounds how much of a value a message repeats.
const maxEcho = 40

// echo repeats a value of the file in a message, unless it looks like a
// credential: an API key, or a URL with user and password.
func echo(raw string) string {
	if strings.Contains(raw, "tbo_") || strings.Contains(raw, "@") {
		return "a value that is not repeated here, as it looks like a credential"
	}
	if len(raw) > maxEcho {
		return fmt.Sprintf("%q…", strings.ToValidUTF8(raw[:maxEcho], ""))
	}
	return fmt.Sprintf("%q", raw)
}
