package main

import (
	"bytes"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"sluice/internal/refusal"
)

const errorsHead = `# Refusals

A refusal is an answer of the gateway's own, never of a storage node. It has the status below and, but for ` + "`HEAD`" + `, this body:

` + "```json" + `
{"error":{"code":"NOT_FOUND","message":"…"}}
` + "```" + `

with ` + "`Content-Type: application/json`, `Cache-Control: no-store`" + ` and ` + "`X-Request-Id`" + `. The code is stable, so branch on it; the message is for
people, says what to do next, and may change. A refusal never carries ` + "`Ursula-Protocol`, `Ursula-Cluster-Id`" + ` or a producer header, and
nothing internal. An error answer that carries ` + "`Ursula-Cluster-Id`" + ` comes from Ursula: it has the same shape, with codes of Ursula's
protocol, and passes through as the node gave it.

**Write outcomes are a promise.** Where the outcome of a write says *nothing was applied, nor will be*, no byte of the write has
reached a node that could still apply it: send it again when the cause has passed. Where it says *unknown*, the write may have been
applied: repeat it only with the same producer headers (` + "`Producer-Id`, `Producer-Epoch`, `Producer-Seq`" + `), which makes the repetition safe, or
read the stream first.

Requests that Go's HTTP server cannot read at all (a bad request line, headers that do not parse or are too large, an
unknown transfer coding, an unknown expectation, an unknown version of HTTP) and plain HTTP to a port of TLS are ` + "`INVALID_REQUEST`" + ` as well, with 400, 417, 431,
501 or 505, and the connection is closed. They have no header of CORS. Over HTTP/2 that server's own answers stay as they are: 431 or 400 with a line of text or HTML, or the
stream's reset; with headers that are many times too large, the connection's end.
`

// errorsPage writes docs/errors.md.
func errorsPage(string) ([]byte, error) {
	var b bytes.Buffer
	fmt.Fprintf(&b, generatedNote, "internal/refusal")
	b.WriteString(errorsHead)
	table := slices.Clone(refusal.Table())
	slices.SortStableFunc(table, func(a, b refusal.Entry) int { return a.Status - b.Status })
	status := 0
	for _, e := range table {
		if e.Code == "" || e.Message == "" || e.When == "" || e.Outcome == "" {
			return nil, fmt.Errorf("the refusal %q does not say all", e.Code)
		}
		if e.Status != status {
			status = e.Status
			fmt.Fprintf(&b, "\n## %d %s\n", status, http.StatusText(status))
		}
		fmt.Fprintf(&b, "\n### `%s`\n\n%s\n\n- When: %s.\n- Outcome of a write: %s.\n", e.Code, e.Message, strings.TrimSuffix(e.When, "."), strings.TrimSuffix(e.Outcome, "."))
		if len(e.Headers) > 0 {
			fmt.Fprintf(&b, "- Headers: %s.\n", code(e.Headers))
		}
	}
	return b.Bytes(), nil
}
