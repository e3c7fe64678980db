package ratelimit

// Floor is what an account always gets in this replica, Redis or not, up to its
// own limits (design §6). Zero fields promise nothing.
type Floor struct {
	RequestsPerSecond int
	OpenTails         int
}

// alone is what a replica decides by while Redis is out of reach: the account's
// limit split by the last known number of replicas, so that together they stay
// within it (L17), but not below the floor and never above the limit.
type alone struct {
	floor    Floor
	replicas int
}

func (a alone) share(limit, floor int) int {
	return min(limit, max(floor, (limit+a.replicas-1)/a.replicas))
}

// rate keeps the relation of burst and rate. The rates are above zero.
func (a alone) rate(r Rate) Rate {
	per := a.share(r.PerSecond, a.floor.RequestsPerSecond)
	if per == r.PerSecond {
		return r
	}
	return Rate{PerSecond: per, Burst: max(1, int(float64(r.Burst)*float64(per)/float64(r.PerSecond)))}
}

func (a alone) tails(limit int) int { return a.share(limit, a.floor.OpenTails) }

func (a alone) uploads(l UploadLimits) UploadLimits {
	n := int64(a.replicas)
	return UploadLimits{Uploads: a.share(l.Uploads, 0), Bytes: (l.Bytes + n - 1) / n}
}
