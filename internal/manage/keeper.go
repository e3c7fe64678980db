package manage

import (
	"context"
	"fmt"
	"io"
	"maps"
	"mime"
	"net/http"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"

	"sluice/internal/tenant"
)

// Nodes sends a request to the cluster, to whichever node can answer it. The
// request's URL has a path only. The caller closes the answer's body.
type Nodes interface {
	Do(r *http.Request) (*http.Response, error)
}

// KeeperOptions are the parts of a Keeper.
type KeeperOptions struct {
	Nodes Nodes
	Log   *zap.Logger
	// Retry is the first pause after a round in which a stream could not be
	// settled; it doubles up to MaxRetry. 0 = 500 ms and 15 s.
	Retry, MaxRetry time.Duration
}

// atOnce bounds how many streams are looked at at one time.
const atOnce = 8

// Keeper creates declared streams that Ursula lacks. A stream that exists is
// left as it is: its type and data are its owner's. Close ends its goroutine.
type Keeper struct {
	o      KeeperOptions
	cancel context.CancelFunc
	done   chan struct{}
	wake   chan struct{}

	mu      sync.Mutex
	pending map[string]tenant.Stream // by path
	round   uint64                   // of Keep calls
	change  chan struct{}            // closed when pending changes
}

// NewKeeper makes a keeper that keeps nothing yet.
func NewKeeper(o KeeperOptions) *Keeper {
	if o.Retry == 0 {
		o.Retry = 500 * time.Millisecond
	}
	if o.MaxRetry == 0 {
		o.MaxRetry = 15 * time.Second
	}
	ctx, cancel := context.WithCancel(context.Background())
	k := &Keeper{
		o: o, cancel: cancel, done: make(chan struct{}), wake: make(chan struct{}, 1),
		pending: map[string]tenant.Stream{}, change: make(chan struct{}),
	}
	go k.run(ctx)
	return k
}

// Close ends the keeper and waits for it.
func (k *Keeper) Close() {
	k.cancel()
	<-k.done
}

// Keep replaces the streams that are wanted and begins a new round over them.
func (k *Keeper) Keep(streams []tenant.Stream) {
	k.mu.Lock()
	k.round++
	k.pending = make(map[string]tenant.Stream, len(streams))
	for _, s := range streams {
		k.pending[tenant.StreamPath(s.Account, s.Name)] = s
	}
	k.changed()
	select {
	case k.wake <- struct{}{}:
	default:
	}
	k.mu.Unlock()
}

// changed tells whoever waits; k.mu is held.
func (k *Keeper) changed() {
	close(k.change)
	k.change = make(chan struct{})
}

// Pending is how many streams no node has answered for yet. A stream that Ursula
// refuses is not pending: waiting would not help it, and the log says so.
func (k *Keeper) Pending() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return len(k.pending)
}

// Wait returns when nothing is pending, or with ctx's error.
func (k *Keeper) Wait(ctx context.Context) error {
	for {
		k.mu.Lock()
		n, change := len(k.pending), k.change
		k.mu.Unlock()
		if n == 0 {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%d declared streams not created yet: %w", n, ctx.Err())
		case <-change:
		}
	}
}

func (k *Keeper) run(ctx context.Context) {
	defer close(k.done)
	var seen uint64
	pause := k.o.Retry
	for ctx.Err() == nil {
		if round := k.settleAll(ctx); round != seen {
			seen, pause = round, k.o.Retry
		}
		var again <-chan time.Time
		timer := time.NewTimer(pause)
		if k.Pending() > 0 {
			again = timer.C
		}
		select {
		case <-ctx.Done():
		case <-k.wake:
		case <-again:
			pause = min(2*pause, k.o.MaxRetry)
		}
		timer.Stop()
	}
}

// settleAll looks at each stream that is wanted now, once, and returns which
// round of Keep it was for.
func (k *Keeper) settleAll(ctx context.Context) uint64 {
	k.mu.Lock()
	round := k.round
	// This round is begun: it must not wake the next one as well.
	select {
	case <-k.wake:
	default:
	}
	todo := make([]tenant.Stream, 0, len(k.pending))
	for _, s := range k.pending {
		todo = append(todo, s)
	}
	k.mu.Unlock()
	var group errgroup.Group
	group.SetLimit(atOnce)
	for _, s := range todo {
		group.Go(func() error {
			if err := k.settle(ctx, s); err != nil {
				k.o.Log.Debug("declared stream not settled yet", zap.String("stream", tenant.StreamPath(s.Account, s.Name)), zap.Error(err))
				return nil
			}
			k.mu.Lock()
			defer k.mu.Unlock()
			if k.round == round {
				delete(k.pending, tenant.StreamPath(s.Account, s.Name))
				k.changed()
			}
			return nil
		})
	}
	_ = group.Wait()
	return round
}

// settle makes sure of one stream. An error means: try again.
func (k *Keeper) settle(ctx context.Context, s tenant.Stream) error {
	path := tenant.StreamPath(s.Account, s.Name)
	log := k.o.Log.With(zap.String("stream", path))
	status, header, err := k.ask(ctx, http.MethodHead, s)
	switch {
	case err != nil:
		return err
	case status == http.StatusOK:
		if got := header.Get("Content-Type"); !sameType(got, s.ContentType) {
			log.Warn("declared stream exists with another content type; it stays as it is",
				zap.String("declared", s.ContentType), zap.String("existing", got))
		}
		return nil
	case status != http.StatusNotFound:
		return k.refused(log, "look at", status)
	}
	if status, _, err = k.ask(ctx, http.MethodPut, s); err != nil {
		return err
	}
	if status == http.StatusCreated || status == http.StatusOK {
		log.Info("declared stream created")
		return nil
	}
	return k.refused(log, "create", status)
}

// refused gives up on a stream that Ursula will not have, loudly; anything that
// may pass is an error to try again.
func (k *Keeper) refused(log *zap.Logger, verb string, status int) error {
	if status >= 400 && status < 500 && status != http.StatusTooManyRequests && status != http.StatusRequestTimeout {
		log.Error("Ursula refuses to "+verb+" the declared stream", zap.Int("status", status))
		return nil
	}
	return fmt.Errorf("%s: node answered %d", verb, status)
}

func (k *Keeper) ask(ctx context.Context, method string, s tenant.Stream) (int, http.Header, error) {
	req, err := http.NewRequestWithContext(ctx, method, tenant.StreamPath(s.Account, s.Name), nil)
	if err != nil {
		return 0, nil, err
	}
	if method == http.MethodPut {
		req.Header.Set("Content-Type", s.ContentType)
	}
	res, err := k.o.Nodes.Do(req)
	if err != nil {
		return 0, nil, err
	}
	_, _ = io.Copy(io.Discard, io.LimitReader(res.Body, 4<<10))
	_ = res.Body.Close()
	return res.StatusCode, res.Header, nil
}

// sameType compares media types as Ursula normalises them.
func sameType(a, b string) bool {
	ta, pa, errA := mime.ParseMediaType(a)
	tb, pb, errB := mime.ParseMediaType(b)
	if errA != nil || errB != nil {
		return strings.EqualFold(a, b)
	}
	return ta == tb && maps.EqualFunc(pa, pb, strings.EqualFold)
}
