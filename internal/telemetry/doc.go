// Package telemetry owns the form of logs and metrics: the logger, what must
// not be readable in a line, and the list of metrics with their labels.
//
// It refuses to know what a request is; its callers hand it plain values.
// Labels hold bounded values only, never an account, a stream or a key.
package telemetry
