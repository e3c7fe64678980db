// Package manage owns the Management API (design §10) and what makes the store and
// Ursula agree on which streams there are.
//
// It refuses to know how nodes are reached, how what is kept is kept, how a request
// came to it, and what the operator's file looks like.
//
// # A stream in two systems
//
// A stream is a row of the store and a stream of Ursula, and nothing changes both at
// once. The row is the intent and comes first: Creating, then PUT at the node, then
// active; Deleting, then DELETE at the node, then the row goes. A name is taken for as
// long as there is a row. Whoever finds a row that is not active may do its next step,
// the handler of the call at once, and the Reconciler after whatever went wrong. Two
// may do so at the same time, and any of them may die, or stop for a minute, between
// two lines. So each step has to be one that is right whenever it takes effect.
//
// A DELETE is right at any time because it names the stream that it is for: Ursula
// takes the header Stream-Incarnation as a precondition, and a stream that is made
// later under the same name has another. The incarnation is learned by HEAD, and is
// believed only when the row is found to be there after it (Store.Busy): ids of rows
// are never used again, so the name was this row's when the node answered. A DELETE
// that arrives an hour late is 412.
//
// A PUT can name nothing, since what it makes does not exist yet. It is harmless while
// its own row or a later one holds the name: it makes what is wanted, or finds it
// made. It does harm when the name is free, for then nobody knows of what it makes.
// So the row must not go while a PUT of it can still arrive:
//
//   - Before a PUT, Store.Busy says until when it may take effect: the deadline of the
//     request (Request) and the time for which the network, or a node that has taken it,
//     may go on holding it once its sender has left (Late; the kernel gives up
//     unacknowledged bytes after 5 s). Until then nobody else works on the row.
//   - While one PUT has no answer, its sender sends no other. So a row that was marked
//     active, which is one with an incarnation, has no PUT under way.
//   - A row that was never active is removed only after its stream was seen to be
//     missing twice, Late apart: the first look proves that the node is answering again,
//     and what it had taken by then is done by the second.
//
// A worker that was stopped between Busy and its PUT, for longer than that, notices: it
// looks at the row after each PUT, answered or not. Where the row has gone and the name is
// free, it takes the name for a row that is expired already, and so deletes what was made;
// where the name is taken, what was made is that row's. What is left is a worker that is
// stopped there for that long, goes on, and is killed before its next line.
//
// What Ursula holds of a name that is to be created is taken over where it has the same
// content type, as after a restored store or a stream taken out of the operator's file,
// and is left alone where it has not: the row goes, and the call is refused.
//
// # What clients do themselves
//
// With streams.lifecycle: protocol, clients PUT and DELETE a stream at its own URL, and the
// gateway sends that on, once. It is an attempt (Protocol): Store.Begin writes down, before
// any byte goes out, that it may take effect until its deadline and Late; Store.End writes
// down what the node answered, before the client hears of it. An attempt whose answer
// proves nothing is never ended. No state of the row is changed before the answer: what a
// node refuses must have changed nothing, also for those who read.
//
// A row of theirs is made by nobody else (Stream.Protocol), for a PUT without the client's
// first body, TTL or closure would turn the client's repeat into a 200, and lose the rest.
// The Reconciler looks (Reconciler.look): what Ursula has, the row says; where it has
// nothing, the row goes. What a look saw is noted only where no attempt was begun since. A
// row is not quiet, and neither goes nor counts as settled before two looks Late apart, for
// as long as an attempt has no answer.
//
// Two attempts at once: nobody knows which one the node took last, unless no other was begun
// after it; then a look tells. A refused attempt takes the row with it only where there never
// was another. A DELETE that was answered while an older PUT has no answer dooms whatever
// that one makes, unless it is answered after all, or another PUT comes.
//
// A DELETE is right at any time here too: it goes out for the row's incarnation, or where
// that is not known for one that no stream has, which the node answers with the present
// one. What was asked for and not answered is finished (Stream.Doomed): the row becomes
// Deleting, as by the API. Meanwhile a PUT is refused; so it is while the API creates a
// stream, whose own PUTs are not counted.
//
// Ursula lets streams with an end or a TTL go by itself. Their rows are looked at when that
// is due, and never become Deleting for it, so that their names are to be had at once.
package manage
