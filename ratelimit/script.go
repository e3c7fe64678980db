package ratelimit

import (
	"context"
	_ "embed" // the scripts
	"fmt"

	"github.com/redis/go-redis/v9"
)

var (
	//go:embed scripts/rate.lua
	rateSource string
	//go:embed scripts/slots.lua
	slotsSource string
	//go:embed scripts/replica.lua
	replicaSource string
)

// scripts are what runs in Redis.
type scripts struct{ rate, slots, replica *redis.Script }

func newScripts() scripts {
	return scripts{
		rate:    redis.NewScript(rateSource),
		slots:   redis.NewScript(slotsSource),
		replica: redis.NewScript(replicaSource),
	}
}

// call is one call of a script. Its keys have one hash tag.
type call struct {
	keys []string
	args []any
}

// run makes all calls of a script in one pipeline and returns their answers, in
// order. Where a server does not know the script (a new one, or SCRIPT FLUSH) the
// calls it refused go out again with the source: those have done nothing. Any other
// error fails the whole, though some of the calls may have done their work.
func run(ctx context.Context, client redis.UniversalClient, s *redis.Script, calls []call) ([][]any, error) {
	cmds := make([]*redis.Cmd, len(calls))
	pipe := client.Pipeline()
	for i, c := range calls {
		cmds[i] = s.EvalSha(ctx, pipe, c.keys, c.args...)
	}
	execute(ctx, pipe, cmds)
	var unknown []int
	for i, cmd := range cmds {
		if redis.HasErrorPrefix(cmd.Err(), "NOSCRIPT") {
			unknown = append(unknown, i)
		}
	}
	if unknown != nil {
		pipe := client.Pipeline()
		for _, i := range unknown {
			cmds[i] = s.Eval(ctx, pipe, calls[i].keys, calls[i].args...)
		}
		execute(ctx, pipe, cmds)
	}
	answers := make([][]any, len(calls))
	for i, cmd := range cmds {
		answer, err := cmd.Slice()
		if err != nil {
			return nil, fmt.Errorf("script: %w", err)
		}
		answers[i] = answer
	}
	return answers, nil
}

// execute sends the pipeline. Each command has its own error then, also where none was
// sent because the connection was refused: the library says that of the whole only (a
// wrong password, a database that there is not).
func execute(ctx context.Context, pipe redis.Pipeliner, cmds []*redis.Cmd) {
	_, err := pipe.Exec(ctx)
	for _, cmd := range cmds {
		if err != nil && cmd.Err() == nil && cmd.Val() == nil {
			cmd.SetErr(err)
		}
	}
}

// whole reads an answer that consists of n whole numbers. Where Redis says
// something else, it is not the Redis that this package speaks with.
func whole(answer []any, n int) ([]int64, error) {
	if len(answer) != n {
		return nil, fmt.Errorf("%w: %d values in an answer, want %d", errProtocol, len(answer), n)
	}
	numbers := make([]int64, n)
	for i, v := range answer {
		number, ok := v.(int64)
		if !ok {
			return nil, fmt.Errorf("%w: %T in an answer, want a number", errProtocol, v)
		}
		numbers[i] = number
	}
	return numbers, nil
}
