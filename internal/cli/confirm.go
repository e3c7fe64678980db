package cli

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
)

// maxTyped is how much of a typed line is read, in bytes.
const maxTyped = 1 << 10

// errNotConfirmed says that something else was typed.
var errNotConfirmed = errors.New("that is not its name: nothing was deleted")

// confirm asks for a name to be typed before a thing is deleted for good. Where
// nobody can type, it is a wrong use, unless yes says that nobody is to be asked.
func confirm(ctx context.Context, env Environment, yes bool, what, name string) error {
	if yes {
		return nil
	}
	if !env.isTerminal(env.In) {
		return usagef("nobody can be asked here whether %s shall be deleted, since standard input is no terminal: add --yes", what)
	}
	if _, err := fmt.Fprintf(env.Err, "This deletes %s, for good.\nType %s to go on: ", what, name); err != nil {
		return err
	}
	// A read of a terminal cannot be ended: the one that is left at Ctrl-C ends with
	// the process, which is at once.
	type line struct {
		text string
		err  error
	}
	typed := make(chan line, 1)
	go func() {
		text, err := bufio.NewReader(io.LimitReader(env.In, maxTyped)).ReadString('\n')
		typed <- line{text, err}
	}()
	select {
	case got := <-typed:
		if got.err != nil && !errors.Is(got.err, io.EOF) {
			return got.err
		}
		if strings.TrimSpace(got.text) != name {
			return errNotConfirmed
		}
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
