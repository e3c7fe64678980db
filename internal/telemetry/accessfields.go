package telemetry

// Field is one row of docs/access-log.md.
type Field struct {
	Name string
	// When says which lines have it; "" = each.
	When string
	Help string
}

// AccessFields lists what the line of a request holds, in its order, behind the
// `time`, `level` and `message` of every line. A test holds the lines to it.
func AccessFields() []Field {
	return []Field{
		{"request_id", "", "Also in the answer's `X-Request-Id`, in the node's log and in the records of changes: the client's own where it sent one of `[A-Za-z0-9._-]{1,64}`."},
		{"trace_id", "the request was traced", "The W3C trace id, by which its spans are found."},
		{"client", "", "Address of the peer, or of who stands [behind `trusted_proxies`](operations.md#behind-a-load-balancer)."},
		{"proto", "", "`HTTP/1.1`, `HTTP/2.0`, …"},
		{"method", "", "As the client sent it, cut and cleaned."},
		{"operation", "", "What was asked for, one of few words; `none`: it was not understood."},
		{"status", "", "Of the answer. 499: the client left before its answer began; nothing was sent. 0: it was cut before its answer began."},
		{"end", "", "How the answer ended: `whole`; `client_closed` (the client left, before or within it); `cut` (the node broke off); `drain` (a tail ended at a stop), `max_age` (a tail older than `tails.max_age`), `credential` (a tail whose credential has ended), all three at a place to resume from; `stalled` (the client took 30 s and more for an event of a tail, 5 minutes for 64 KiB of an answer, or it gave one over HTTP/2 no room for 10 minutes); `shutdown` (cut at the end of a drain); `panic` (a fault of the gateway's)."},
		{"bytes_in", "", "Bytes of the request's body that were read."},
		{"bytes_out", "", "Bytes of the answer's body that were sent, heartbeats left out."},
		{"seconds", "", "From the request's head to the end of the answer; of a tail, how long it was open."},
		{"sampled", "`log.sample` is below 1, and it went well", "The share of such lines that is written: this one stands for 1/`sampled` requests. A line without it stands for itself."},
		{"target", "`operation` is `none`", "The path, cut and cleaned. A query is never logged."},
		{"account", "`operation` is another", "The account in the path; empty for what is no stream's."},
		{"stream", "`operation` is another", "The stream's name in the path; empty for what is no stream's."},
		{"tail", "a live read", "`sse` or `long-poll`."},
		{"key_id", "a good credential", "Whose: the id of the key, `{account}/{name}` of a declared one, also where a token of it was used; `{issuer}#{client_id}` of another issuer's token."},
		{"node", "a node was asked", "Host and port of the node that was asked last."},
		{"attempts", "a node was asked", "How many times a node was asked: 1 but for redirects and what was sent once more."},
		{"node_seconds", "a node was asked", "How long the nodes took for the heads of their answers, all attempts together. What `seconds` is longer by is the gateway, the body, and the client's taking it."},
		{"code", "answered by the gateway itself", "Of the refusal ([errors.md](errors.md))."},
		{"cause", "there is one", "Why, in words for the operator: what the client was not told."},
	}
}
