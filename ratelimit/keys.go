package ratelimit

import "math"

// What is kept under one account's keys.
const (
	keyRate    = "rate"
	keyTails   = "tails"
	keyUploads = "uploads"
)

// keys names what is kept in Redis: prefix:{tag}:what:account, with ":public" for
// strangers. All keys of an account have one hash tag, so that a script may touch
// them together in a Cluster; accounts share tags, so that one call can serve many
// of them there too.
type keys struct {
	prefix string
	tags   []string
}

// newKeys names keys for a Cluster or for one server. One server needs one tag.
func newKeys(prefix string, cluster bool) *keys {
	if cluster {
		return &keys{prefix: prefix, tags: clusterTags()}
	}
	return &keys{prefix: prefix, tags: []string{"0"}}
}

// clusterTags are numbers whose hash slots lie 512 apart, give or take 64, so that
// up to 32 masters have their share of them.
func clusterTags() []string {
	return []string{
		"10", "263", "25", "32", "171", "166", "58", "153", "11", "262", "24", "33", "170", "167", "59", "42",
		"102", "115", "137", "5", "63", "74", "56", "41", "103", "114", "136", "4", "62", "75", "57", "40",
	}
}

// tag is the index of an account's tag, the same in all replicas (FNV-1a, 31 bits).
func (k *keys) tag(account string) int {
	h := 0x11c9dc5
	for i := range len(account) {
		h = ((h ^ int(account[i])) * 16777619) & math.MaxInt32
	}
	return (h ^ h>>15) % len(k.tags)
}

// of is the key of what is kept for a subject.
func (k *keys) of(what string, s Subject) string {
	key := k.at(k.tag(s.Account), what) + ":" + s.Account
	if s.Public {
		key += ":public"
	}
	return key
}

// at is what keys of a kind begin with under a tag.
func (k *keys) at(tag int, what string) string {
	return k.prefix + ":{" + k.tags[tag] + "}:" + what
}

// register is the key of the replicas that hold anything under the tag.
func (k *keys) register(tag int) string { return k.at(tag, "replicas") }
