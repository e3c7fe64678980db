// Package cache owns what may be kept of an answer: the Cache-Control policy
// of every answer that leaves the gateway (design §7).
//
// It refuses to know about credentials, accounts and nodes: it is told in
// plain booleans what the chain has found out, and imports nothing of ours.
package cache
