package ratelimit

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// claim takes what is claimed for key, by asking Redis or, while it is out of
// reach, by what this replica holds. The error is why not, or wraps ctx's.
func (r *Redis) claim(ctx context.Context, key holdKey, c *claim) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("take a slot: %w", err)
	}
	r.holds.mu.Lock()
	s := r.link.Load()
	k := r.holds.of(key)
	if s == nil {
		defer r.holds.mu.Unlock()
		return r.takeAlone(k, c)
	}
	// Redis would refuse what this replica alone, and who waits already, exceed.
	asked := k.slots
	for _, o := range k.waiting {
		asked += o.slots
	}
	if c.slots > 0 && asked+c.slots > c.limits.Uploads {
		r.holds.drop(k)
		r.holds.mu.Unlock()
		return key.exhausted()
	}
	c.verdict = make(chan error, 1)
	k.waiting = append(k.waiting, c)
	r.holds.tell(k)
	r.holds.mu.Unlock()
	return r.await(ctx, s, key, c)
}

// takeAlone decides by this replica's part of the limits. r.holds.mu is held.
func (r *Redis) takeAlone(k *hold, c *claim) error {
	part := c.ask
	if k.key.what == keyTails {
		part.limits.Uploads = r.alone.Load().tails(c.limits.Uploads)
	} else {
		part.limits = r.alone.Load().uploads(c.limits)
	}
	return r.holds.take(k, part)
}

// await waits for the verdict: at most as long as a request may wait for Redis.
func (r *Redis) await(ctx context.Context, s *session, key holdKey, c *claim) error {
	timer := time.NewTimer(r.o.Wait)
	defer timer.Stop()
	select {
	case err := <-c.verdict:
		return err
	case <-ctx.Done():
		if !r.holds.withdraw(key, c) && <-c.verdict == nil {
			r.holds.release(key, c.slots, c.bytes)
		}
		return fmt.Errorf("take a slot: %w", ctx.Err())
	case <-s.down:
	case <-timer.C:
		// From here on nobody waits for it, until it has answered in time again.
		r.fail(s, ErrSlow)
	}
	if !r.holds.withdraw(key, c) {
		return <-c.verdict
	}
	r.holds.mu.Lock()
	defer r.holds.mu.Unlock()
	return r.takeAlone(r.holds.of(key), c)
}

// Acquire implements Tails. It waits for Redis at most Options.Wait, and not at
// all while that is out of reach.
func (r *Redis) Acquire(ctx context.Context, s Subject, limit int) (Lease, error) {
	if limit <= 0 {
		if err := ctx.Err(); err != nil {
			return nil, fmt.Errorf("open a tail: %w", err)
		}
		return nil, ErrExhausted
	}
	key := holdKey{keyTails, s.own()}
	if err := r.claim(ctx, key, &claim{ask: ask{slots: 1, limits: UploadLimits{Uploads: limit}}}); err != nil {
		return nil, err
	}
	return &sharedLease{holds: r.holds, key: key}, nil
}

// LookTail implements Tails: by what this replica holds.
func (r *Redis) LookTail(s Subject, limit int) error {
	if r.Degraded() {
		limit = r.alone.Load().tails(limit)
	}
	if limit <= 0 || r.TailsOf(s) >= limit {
		return ErrExhausted
	}
	return nil
}

// LookUpload implements Uploads: by what this replica holds.
func (r *Redis) LookUpload(s Subject, l UploadLimits, bytes int64) error {
	if err := l.closed(); err != nil {
		return err
	}
	if r.Degraded() {
		l = r.alone.Load().uploads(l)
	}
	var now uploadCount
	now.bodies, now.bytes = r.UploadsOf(s)
	return now.refuses(l, bytes)
}

// AcquireUpload implements Uploads, and waits as Acquire does.
func (r *Redis) AcquireUpload(ctx context.Context, s Subject, l UploadLimits, bytes int64) (Upload, error) {
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("begin an upload: %w", err)
	}
	if err := l.closed(); err != nil {
		return nil, err
	}
	key := holdKey{keyUploads, s.own()}
	if err := r.claim(ctx, key, &claim{ask: ask{slots: 1, bytes: bytes, limits: l}}); err != nil {
		return nil, err
	}
	return &sharedUpload{redis: r, key: key, limits: l, bytes: bytes}, nil
}

// sharedLease is one slot.
type sharedLease struct {
	holds *holds
	key   holdKey
	once  sync.Once
}

// Release implements Lease. It does not wait: Redis is told within a round trip,
// or when it is back.
func (l *sharedLease) Release() { l.once.Do(func() { l.holds.release(l.key, 1, 0) }) }

// sharedUpload is one large body.
type sharedUpload struct {
	redis  *Redis
	key    holdKey
	limits UploadLimits
	mu     sync.Mutex
	bytes  int64
	ended  bool
}

// Resize implements Upload, and waits as Acquire does.
func (u *sharedUpload) Resize(ctx context.Context, bytes int64) error {
	u.mu.Lock()
	more, ended := bytes-u.bytes, u.ended
	u.mu.Unlock()
	if ended || more == 0 {
		return nil
	}
	if more > 0 {
		if err := u.redis.claim(ctx, u.key, &claim{ask: ask{bytes: more, limits: u.limits}}); err != nil {
			return err
		}
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.ended { // meanwhile: what came after it goes back
		if more > 0 {
			u.redis.holds.release(u.key, 0, more)
		}
		return nil
	}
	if more < 0 {
		u.redis.holds.release(u.key, 0, -more)
	}
	u.bytes = bytes
	return nil
}

// Release implements Lease. It does not wait.
func (u *sharedUpload) Release() {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.ended {
		return
	}
	u.ended = true
	u.redis.holds.release(u.key, 1, u.bytes)
}
