package ratelimit

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// Why a session with Redis ended; a broken connection and what Redis itself said
// are not among them.
var (
	// ErrSlow says that Redis did not answer within the time that a request waits.
	ErrSlow = errors.New("redis did not answer in time")
	// ErrDataLost says that Redis has forgotten what this replica told it, or that
	// it is another Redis than before (a restart, a failover): all is told again.
	ErrDataLost = errors.New("redis has lost its data or is another one")
	// ErrServersChanged says that Reconfigure named other servers.
	ErrServersChanged = errors.New("the servers of Redis were changed")

	errProtocol = errors.New("redis gave an answer that no script of this package gives")
	errClosed   = errors.New("closed")
)

// What the scripts are told of replicas.
const (
	// defaultDeadAfter is how long after it was last heard of a replica's slots are
	// free, and defaultBeatEvery how often it is heard of. Only tests have others.
	defaultDeadAfter = 10 * time.Second
	defaultBeatEvery = 2 * time.Second
	// slotsLifetime is how long a hash of slots stays that nobody writes to: what
	// replicas left that died and whose account nobody used again.
	slotsLifetime = 24 * time.Hour
	// refreshEvery is how often a replica tells of slots that it has held all along,
	// so that their hash lives on.
	refreshEvery = 6 * time.Hour
)

// session is a time of working Redis: one client, one incarnation of this replica.
// It ends with the first failure, and the next one begins from nothing: whatever
// the calls of the old one that got no answer did or may still do, the new
// incarnation tells in full what this replica holds, and Redis takes nothing more
// from the old one.
type session struct {
	client  redis.UniversalClient
	servers Servers
	keys    *keys
	number  int64 // of the incarnation
	// processes are the Redis processes that hold each tag.
	processes []string

	once sync.Once
	down chan struct{} // closed at the end
	err  error         // why; set before down is closed
}

func newSession(servers Servers, number int64, names map[bool]*keys) (*session, error) {
	o, err := servers.options()
	if err != nil {
		return nil, err
	}
	return &session{
		client: o.client(), servers: servers, keys: names[o.mode == ModeCluster], number: number, down: make(chan struct{}),
	}, nil
}

// end ends the session, once: calls under way are broken off.
func (s *session) end(err error) {
	s.once.Do(func() {
		s.err = err
		close(s.down)
		// What a close may say concerns nobody any more.
		_ = s.client.Close()
	})
}

func (s *session) ended() bool {
	select {
	case <-s.down:
		return true
	default:
		return false
	}
}

// run calls a script within the time.
func (s *session) run(ctx context.Context, within time.Duration, script *redis.Script, calls []call) ([][]any, error) {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	answers, err := run(ctx, s.client, script, calls)
	switch {
	case err == nil:
		return answers, nil
	case s.ended():
		return nil, s.err
	case redis.HasErrorPrefix(err, "LOST"):
		return nil, fmt.Errorf("%w: %w", ErrDataLost, err)
	case ctx.Err() != nil:
		return nil, fmt.Errorf("%w: %w", ErrSlow, err)
	default:
		return nil, err
	}
}

// register calls replica.lua for all tags and returns how many replicas live. For
// a beat the error is ErrDataLost where this incarnation is not registered, or the
// process that holds a tag is another one than when it was.
func (r *Redis) register(ctx context.Context, s *session, within time.Duration, what string) (int, error) {
	calls := make([]call, len(s.keys.tags))
	for tag := range calls {
		calls[tag] = call{
			keys: []string{s.keys.register(tag)},
			args: []any{r.o.Replica, s.number, r.o.deadAfter.Microseconds(), what},
		}
	}
	answers, err := s.run(ctx, within, r.scripts.replica, calls)
	if err != nil {
		return 0, err
	}
	live, processes := 1, make([]string, len(answers))
	for tag, answer := range answers {
		if len(answer) != 3 {
			return 0, fmt.Errorf("%w: %d values of a register", errProtocol, len(answer))
		}
		process, ok := answer[2].(string)
		numbers, err := whole(answer[:2], 2)
		if err != nil || !ok {
			return 0, fmt.Errorf("%w: a register", errProtocol)
		}
		if what == "beat" && (numbers[0] == 0 || process != s.processes[tag]) {
			return 0, ErrDataLost
		}
		processes[tag] = process
		live = max(live, int(numbers[1]))
	}
	s.processes = processes
	return live, nil
}
