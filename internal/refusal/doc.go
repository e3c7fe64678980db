// Package refusal owns every answer that Sluice gives in its own words: the one
// table of codes (design §4) and the one function that writes them.
//
// It refuses to know why a request was refused; callers say it with a code and
// keep the cause for the log. What a node answers is none of its business.
package refusal
