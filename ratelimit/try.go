package ratelimit

import (
	"context"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"
)

// checkAccount is whose slots and rate Redis is tried with: no account has such an id.
const checkAccount = "~check"

// try has Redis do once, under names of nobody, all that it will be asked for: a user
// who lacks the right to a command, a memory that is full or a replica that takes no
// writes shows here and not under the first requests. What it leaves behind ends within
// minutes. The first call has connectWithin, connecting included, the others each.
func (s *session) try(ctx context.Context, sc scripts, o Options) error {
	names := &keys{prefix: s.keys.prefix + ":check", tags: s.keys.tags}
	within := connectWithin
	each := func(script *redis.Script, keys func(tag int) []string, args ...any) error {
		calls := make([]call, len(names.tags))
		for tag := range calls {
			calls[tag] = call{keys: keys(tag), args: args}
		}
		_, err := s.run(ctx, within, script, calls)
		within = o.CallTimeout
		return err
	}
	register := func(tag int) []string { return []string{names.register(tag)} }
	slots := func(tag int) []string {
		return []string{names.register(tag), names.at(tag, keyTails) + ":" + checkAccount}
	}
	rate := func(tag int) []string {
		return []string{names.at(tag, keyRate) + ":" + checkAccount}
	}
	dead := o.deadAfter.Microseconds()
	lifetime := time.Minute.Milliseconds()
	for _, step := range []struct {
		what string
		do   func() error
	}{
		{"register", func() error { return each(sc.replica, register, o.Replica, 1, dead, "join") }},
		{"take a slot", func() error { return each(sc.slots, slots, o.Replica, 1, dead, lifetime, 0, 0, 1, 0, 1, 0, 1) }},
		{"give it back", func() error { return each(sc.slots, slots, o.Replica, 1, dead, lifetime, 0, 0, 1, 0, 0, 0, 0) }},
		{"tell of a rate", func() error {
			return each(sc.rate, rate, o.Replica, 2*o.Interval.Microseconds(), 1, 0, 0, 0, 1, 1)
		}},
		{"leave", func() error { return each(sc.replica, register, o.Replica, 1, dead, "leave") }},
	} {
		if err := step.do(); err != nil {
			return fmt.Errorf("%s: %w", step.what, err)
		}
	}
	return nil
}
