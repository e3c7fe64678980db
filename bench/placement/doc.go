// Package placement measures where a catch-up read is best sent: to whichever
// node, or to the stream's leader, asking it to confirm or not (design §8). It
// owns the comparison and refuses to know the gateway.
package placement
