package main

import (
	"bytes"
	"fmt"
	"strings"

	"sluice/internal/telemetry"
)

const metricsHead = `# Metrics

The admin listener serves these at ` + "`/metrics`" + ` in Prometheus' text form, beside Go's own
(` + "`go_…`" + `) and the process's (` + "`process_…`" + `). Labels hold bounded values only: an operation of
the route table, an HTTP status, a code of [errors.md](errors.md), a configured node. No account,
stream, key or address of a client is ever a label.

| Metric | Type | Labels | What it tells |
| --- | --- | --- | --- |
`

// metricsPage is docs/metrics.md.
func metricsPage(string) ([]byte, error) {
	var b bytes.Buffer
	fmt.Fprintf(&b, generatedNote, "internal/telemetry")
	b.WriteString(metricsHead)
	for _, d := range telemetry.Descriptions() {
		labels := "–"
		if len(d.Labels) > 0 {
			labels = "`" + strings.Join(d.Labels, "`, `") + "`"
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", d.Name, d.Type, labels, d.Help)
	}
	return b.Bytes(), nil
}
