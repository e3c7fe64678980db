// Package ratelimit owns what a subject may use of the gateway at one time: its
// requests a second, its open tails and its large uploads (design §6). Limiter,
// Tails and Uploads are what the request path asks; Memory answers them within this
// process, Redis for all replicas that share one.
//
// It refuses to know what an account is, where its limits come from and how a
// refusal reads on the wire, and imports nothing of ours. limittest holds the
// suite that every implementation passes.
//
// Redis in files: redis.go is what others see of it; shared.go and pass.go are the
// rates, holds.go and claims.go the slots; talk.go keeps up the conversation with
// Redis, of which a session (session.go) is one unbroken piece; scripts/ is what
// runs in Redis, and says what is kept there.
package ratelimit
