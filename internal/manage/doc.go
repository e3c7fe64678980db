// Package manage owns what makes the directory and Ursula agree: today, that
// every declared stream exists.
//
// It refuses to know how nodes are reached and where declarations are kept.
package manage
