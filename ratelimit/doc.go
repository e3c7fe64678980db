// Package ratelimit owns what a subject may use of the gateway at one time: its
// requests a second and its open tails (design §6). Limiter and Tails are what
// the request path asks; Memory answers both within this process.
//
// It refuses to know what an account is, where its limits come from and how a
// refusal reads on the wire, and imports nothing of ours. limittest holds the
// suite that every implementation passes.
package ratelimit
