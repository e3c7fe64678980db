package main

import (
	"bytes"
	"fmt"

	"sluice/internal/telemetry"
)

const accessLogHead = `# The access log

Each request has one line on standard error, at its end and at level ` + "`info`" + `: a JSON object with ` + "`\"message\":\"request\"`" + `.
A tail has its line when it ends, as in nginx and Envoy; those that are open now are ` + "`sluice_open_tails`" + `. What Go's server answers
before there is a request (a bare 400, 417, 431, 501, or plain HTTP to a TLS port) has none.

| Key | In lines where | What it tells |
| --- | --- | --- |
`

const accessLogTail = `
No key, token, digest, header or query ever stands in a line, and what looks like a credential in a path or a name is cut out.

With ` + "`log.sample`" + ` below 1 only that share of the lines is written of requests that went well and fast: answered 2xx, ` + "`end`" + `
` + "`whole`" + `, under a second (a long-poll, which waits, in any time), and no ` + "`live=sse`" + `. All others have their line: refusals, errors, every status
that is no 2xx, what was slow, cut or left. Metrics and usage count every request, whatever is written;
` + "`sluice_log_lines_sampled_out_total`" + ` has what was left out. To count requests from the log, add ` + "`1/sampled`" + ` for each line, and 1 for one
without it:

` + "```sh\njq -s 'map(select(.message == \"request\") | 1 / (.sampled // 1)) | add' sluice.log\n```\n"

// accessLogPage is docs/access-log.md.
func accessLogPage(string) ([]byte, error) {
	var b bytes.Buffer
	fmt.Fprintf(&b, generatedNote, "internal/telemetry")
	b.WriteString(accessLogHead)
	for _, f := range telemetry.AccessFields() {
		when := f.When
		if when == "" {
			when = "all"
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s |\n", f.Name, when, f.Help)
	}
	b.WriteString(accessLogTail)
	return b.Bytes(), nil
}
