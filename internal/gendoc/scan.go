package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"regexp"
	"strconv"
	"strings"
)

// A case id names its group by a letter: streaming, headers, paths,
// credentials, limits, upstream, HTTP/2, certificates, caching, operation, logs.
var (
	oneID = regexp.MustCompile(`^[SHPALUGCKOM][0-9]{2}$`)
	// leading ids of a text: "P08: …", "O04, M02: …", "A20 and P08 (names) …"
	leading = regexp.MustCompile(`^[SHPALUGCKOM][0-9]{2}\b(?:(?:, | and |/)[SHPALUGCKOM][0-9]{2}\b)*`)
	anyID   = regexp.MustCompile(`[SHPALUGCKOM][0-9]{2}`)
)

// idsAtStart lists the ids that a text begins with.
func idsAtStart(text string) []string {
	return anyID.FindAllString(leading.FindString(strings.TrimSpace(text)), -1)
}

// scanTests adds the ids that one test file names: at the start of a paragraph
// of a comment, or of a subtest's name.
func scanTests(path, shown string, named map[string][]string) error {
	fset := token.NewFileSet()
	file, err := parser.ParseFile(fset, path, nil, parser.ParseComments)
	if err != nil {
		return err
	}
	add := func(text string, pos token.Pos) {
		for _, id := range idsAtStart(text) {
			at := shown
			if name := functionAt(file, pos); name != "" {
				at = fmt.Sprintf("%s: %s", shown, name)
			}
			named[id] = append(named[id], at)
		}
	}
	for _, group := range file.Comments {
		for _, paragraph := range strings.Split(group.Text(), "\n\n") {
			add(paragraph, group.Pos())
		}
	}
	ast.Inspect(file, func(n ast.Node) bool {
		if name, ok := subtestName(n); ok {
			add(name, n.Pos())
		}
		return true
	})
	return nil
}

// functionAt names the function that a position is in, or whose comment it is.
func functionAt(file *ast.File, pos token.Pos) string {
	for _, decl := range file.Decls {
		f, ok := decl.(*ast.FuncDecl)
		if !ok {
			continue
		}
		start := f.Pos()
		if f.Doc != nil {
			start = f.Doc.Pos()
		}
		if start <= pos && pos < f.End() {
			return f.Name.Name
		}
	}
	return ""
}

// subtestName finds the names of subtests: the text given to Run, the value of
// a field called name in a table, and the text keys of a table.
func subtestName(n ast.Node) (string, bool) {
	switch n := n.(type) {
	case *ast.CallExpr:
		if sel, ok := n.Fun.(*ast.SelectorExpr); ok && sel.Sel.Name == "Run" && len(n.Args) > 0 {
			return literal(n.Args[0])
		}
	case *ast.KeyValueExpr:
		if key, ok := n.Key.(*ast.Ident); ok && strings.EqualFold(key.Name, "name") {
			return literal(n.Value)
		}
		return literal(n.Key)
	}
	return "", false
}

func literal(e ast.Expr) (string, bool) {
	lit, ok := e.(*ast.BasicLit)
	if !ok || lit.Kind != token.STRING {
		return "", false
	}
	text, err := strconv.Unquote(lit.Value)
	return text, err == nil
}
