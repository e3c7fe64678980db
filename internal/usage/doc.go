// Package usage owns what is counted to be billed (issue part 6; facts §11): who used
// how much in which hour, in numbered batches that can be delivered again and are
// counted once.
//
//	request ── Answer ──┐
//	tail ───── Answer ──┴─ Meter ── Flusher ──┬─ Outbox ── the store
//	                                          └─ Outbox ── File (JSON lines)
//
// A request uses an Answer to tell what it sends. The Meter adds that up by account,
// principal, class and hour, and asks answers that go on for a while for what they have
// used so far, so that a process that is killed loses one interval at the most. The
// Flusher takes what was added up, at each interval and at each hour's end, and gives
// it to each Outbox, which numbers it and delivers it, again and again where it is not
// known whether it arrived. A batch that may have arrived is never changed; what does
// not fit behind it is merged, and nothing is lost.
//
// It refuses to know HTTP and SQL, and who is billed what.
package usage
