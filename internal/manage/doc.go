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
package manage
