// Package config owns the operator's file (design §9): its keys, their
// defaults, the strict reading of it and everything that can be wrong with it.
// Every problem is found in one pass and carries file, line and path, and says
// what to write instead.
//
// It refuses to know what the values are used for: it starts nothing, opens no
// socket and imports none of the packages that it configures. The grammar of
// account ids, stream names, digests, issuers and signing keys is the domain's,
// so the caller passes it in as Grammar.
//
// The keys, defaults and bounds stand in the struct tags of Config:
//
//	yaml      the key
//	default   what an absent key means, in the file's own spelling
//	required  "true": an absent key is a problem
//	eg        an example for messages and for the generated reference
//	enum      the allowed words, separated by "|"
//	min, max  bounds, both included, in the file's own spelling
//	format    one of the named checks in format.go; of a secret "bearer", where it
//	          has to go into an Authorization header
//	list      "nonempty": [] is refused; "single": one text stands for a list of one
//	restart   "true": a change is not taken up by a reload
package config
