package cli

import (
	"errors"
	"strconv"
	"strings"
	"time"
)

// parseExpiresIn reads N_seconds, N_minutes, N_hours or N_days (design §10), and
// the singular of each.
func parseExpiresIn(text string) (time.Duration, error) {
	number, name, _ := strings.Cut(text, "_")
	unit, ok := map[string]time.Duration{
		"second": time.Second, "minute": time.Minute, "hour": time.Hour, "day": 24 * time.Hour,
	}[strings.TrimSuffix(name, "s")]
	n, err := strconv.ParseUint(number, 10, 16)
	if err != nil || !ok || n == 0 {
		return 0, errors.New("write a number and a unit, as in 90_seconds, 15_minutes, 1_hours or 30_days")
	}
	return time.Duration(n) * unit, nil
}
