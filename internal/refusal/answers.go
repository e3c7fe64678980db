package refusal

import (
	"fmt"
	"math"
	"strconv"
	"time"
)

// WellFormedID is design §4's rule for a client's own request id.
func WellFormedID(id string) bool {
	if id == "" || len(id) > 64 {
		return false
	}
	for i := range len(id) {
		c := id[i]
		if ('0' > c || c > '9') && ('a' > c || c > 'z') && ('A' > c || c > 'Z') && c != '.' && c != '_' && c != '-' {
			return false
		}
	}
	return true
}

// WholeSeconds is a Retry-After: rounded up, and at least 1.
func WholeSeconds(d time.Duration) int {
	return max(1, int(math.Ceil(d.Seconds())))
}

// OverRate says when to come back, and what the policy of that name is in the fields of
// draft-ietf-httpapi-ratelimit-headers-10: the quota q of a window of w seconds, in which
// it fills up at so many a second; r is left of it, and t seconds on there is more. A rate
// of 0 fills up never. It returns the refusal.
func (r *Refusal) OverRate(policy string, perSecond, quota, remaining int, wait time.Duration) *Refusal {
	window, seconds := 1, WholeSeconds(wait)
	if perSecond > 0 {
		window = max(1, (quota+perSecond-1)/perSecond)
	}
	return r.With("Retry-After", strconv.Itoa(seconds)).
		With("RateLimit-Policy", fmt.Sprintf("%q;q=%d;w=%d", policy, quota, window)).
		With("RateLimit", fmt.Sprintf("%q;r=%d;t=%d", policy, max(0, remaining), seconds))
}
