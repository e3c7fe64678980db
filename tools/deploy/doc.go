// Package deploy tries what lies in deploy/ by the parts that read it at work: BuildKit's
// parser, Compose's library, Helm, the types of Kubernetes, systemd and Prometheus. It is
// nothing but tests, in a module of its own so that the product's go.sum stays small.
// What needs a gateway that serves is tried in cmd/sluice.
package deploy
