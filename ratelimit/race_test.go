//go:build race

package ratelimit_test

// raceDetector says that this binary is slower than the product, several times over.
const raceDetector = true
