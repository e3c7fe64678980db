package cli

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// maxNumber is the most of any unit.
const maxNumber = 65535

// parseExpiresIn reads N_minutes, N_hours or N_days (design §10), and the singular of
// each.
func parseExpiresIn(text string) (time.Duration, error) {
	return parseTime(text, "15_minutes, 1_hours or 30_days", map[string]time.Duration{
		"minute": time.Minute, "hour": time.Hour, "day": 24 * time.Hour,
	})
}

// parseLifetime reads the life of a token: N_seconds, N_minutes or N_hours; days too,
// which are more than it may be.
func parseLifetime(text string) (time.Duration, error) {
	return parseTime(text, "90_seconds, 15_minutes or 1_hours", map[string]time.Duration{
		"second": time.Second, "minute": time.Minute, "hour": time.Hour, "day": 24 * time.Hour,
	})
}

func parseTime(text, examples string, units map[string]time.Duration) (time.Duration, error) {
	number, name, _ := strings.Cut(text, "_")
	unit, ok := units[strings.TrimSuffix(name, "s")]
	n, err := strconv.ParseUint(number, 10, 16)
	switch {
	case ok && (errors.Is(err, strconv.ErrRange) || err == nil && n == 0):
		return 0, fmt.Errorf("the number is from 1 to %d", maxNumber)
	case err != nil || !ok:
		return 0, errors.New("write a number and a unit, as in " + examples)
	}
	return time.Duration(n) * unit, nil
}
