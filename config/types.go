package config

import (
	"errors"
	"math"
	"strconv"
	"strings"
	"time"
)

// Bytes is a size. In the file it is a whole number of bytes, or one followed
// by KiB, MiB or GiB.
type Bytes int64

// The units of Bytes.
const (
	KiB Bytes = 1 << 10
	MiB Bytes = 1 << 20
	GiB Bytes = 1 << 30
)

var errBytes = errors.New("want a size: a whole number of bytes, KiB, MiB or GiB")

// unit names a suffix of a size.
type unit struct {
	suffix string
	size   Bytes
}

func units() [3]unit { return [3]unit{{"GiB", GiB}, {"MiB", MiB}, {"KiB", KiB}} }

// ParseBytes reads a size as it stands in the file, e.g. "8MiB" or "8388608".
func ParseBytes(s string) (Bytes, error) {
	size := Bytes(1)
	for _, u := range units() {
		if digits, ok := strings.CutSuffix(s, u.suffix); ok {
			s, size = digits, u.size
			break
		}
	}
	n, err := parseDigits(s)
	if err != nil || n > math.MaxInt64/int64(size) {
		return 0, errBytes
	}
	return Bytes(n) * size, nil
}

// String writes the size in the largest unit that loses nothing.
func (b Bytes) String() string {
	for _, u := range units() {
		if b != 0 && b%u.size == 0 {
			return strconv.FormatInt(int64(b/u.size), 10) + u.suffix
		}
	}
	return strconv.FormatInt(int64(b), 10)
}

var errDigits = errors.New("want a whole number")

// parseDigits reads a decimal number without sign, point, underscore or leading
// zero: YAML reads some of those as octal or as text, and 010 must not be 8.
func parseDigits(s string) (int64, error) {
	if s == "" || (len(s) > 1 && s[0] == '0') {
		return 0, errDigits
	}
	for i := range len(s) {
		if s[i] < '0' || s[i] > '9' {
			return 0, errDigits
		}
	}
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil {
		return 0, errDigits
	}
	return n, nil
}

var errShare = errors.New("want a number with a point, such as 0.1")

// parseShare reads a plain decimal: no sign, no exponent, no word for what is none.
func parseShare(s string) (float64, error) {
	if strings.Trim(s, "0123456789.") != "" {
		return 0, errShare
	}
	f, err := strconv.ParseFloat(s, 64)
	if err != nil {
		return 0, errShare
	}
	return f, nil
}

var errDuration = errors.New("want a duration with its unit (ms, s, m, h)")

func parseDuration(s string) (time.Duration, error) {
	d, err := time.ParseDuration(s)
	// "0" is a duration to Go; here every number has its unit.
	if err != nil || s == "0" || s == "+0" || s == "-0" {
		return 0, errDuration
	}
	return d, nil
}
