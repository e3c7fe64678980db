// Package failover owns the load of the failure trials and its accounting: keyed
// and keyless producers, catch-up readers and tails that behave as the protocol
// tells a client to, and the check of what the streams hold afterwards against
// what was answered.
//
// It speaks HTTP to gateways by their public behaviour alone, so that the same
// script runs against Sluice and against Ursula's own gateway. It refuses to
// know how a gateway works, and how nodes are started and broken: whoever runs a
// trial hands that in. It is imported by tests only; the comparison with
// Ursula's gateway is the test of this package (docs/benchmarks.md).
package failover
