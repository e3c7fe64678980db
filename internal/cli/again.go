package cli

import (
	"strings"
)

// again is a command line that goes on, ready to be pasted: the words of the command,
// and what says where it goes and as whom.
func (c *connection) again(words ...string) string {
	if c.url != "" {
		words = append(words, "--url", c.url)
	}
	if c.keyFile != "" {
		words = append(words, "--key-file", c.keyFile)
	}
	if c.plainHTTP {
		words = append(words, "--plain-http")
	}
	quoted := make([]string, 0, len(words)+1)
	for _, w := range append([]string{"sluice"}, words...) {
		quoted = append(quoted, shellWord(w))
	}
	return strings.Join(quoted, " ")
}

// shellWord is a word as any POSIX shell reads it back.
func shellWord(word string) string {
	plain := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("_-.,:/@%+=", r)
	}
	if word != "" && !strings.ContainsFunc(word, func(r rune) bool { return !plain(r) }) {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}

// fileWord is the name of a file that is not taken for a flag, nor for standard input.
func fileWord(name string) string {
	if strings.HasPrefix(name, "-") {
		return "./" + name
	}
	return name
}
