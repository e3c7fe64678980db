// Command gendoc writes the documents that are made from the code, so that they
// cannot drift from it:
//
//	docs/configuration.md  from the doc comments and tags of config's structs,
//	                       config.Planned and deploy/example.yaml
//	docs/errors.md         from the table in internal/refusal
//	docs/cases.md          from the case ids that tests name, and cases.tsv
//
// Run it from the root of the repository: `go run ./internal/gendoc`. With
// -check it writes nothing, shows what is stale and exits 1. A test of this
// package does the same.
//
// It is a tool for developers and no part of the product. It refuses to know
// anything that the code does not say.
package main
