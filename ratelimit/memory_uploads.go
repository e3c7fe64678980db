package ratelimit

import (
	"context"
	"fmt"
)

// uploadCount is what a subject's large bodies hold; it is in its shard's map
// exactly while there are any.
type uploadCount struct {
	subject Subject
	bodies  int
	bytes   int64
}

// fits says whether a body may take so many bytes more, where others are under
// way. The only one always may (facts Q6): with a limit below its size it could
// never be sent.
func (c *uploadCount) fits(more, limit int64, others bool) bool {
	return !others || more <= limit-c.bytes
}

// refuses says why no further body of so many bytes may begin; nil where it may.
func (c *uploadCount) refuses(l UploadLimits, bytes int64) error {
	switch {
	case c.bodies >= l.Uploads:
		return ErrUploadsExhausted
	case !c.fits(bytes, l.Bytes, c.bodies > 0):
		return ErrUploadBytesExhausted
	default:
		return nil
	}
}

// LookUpload implements Uploads.
func (m *Memory) LookUpload(s Subject, l UploadLimits, bytes int64) error {
	if err := l.closed(); err != nil {
		return err
	}
	var now uploadCount
	now.bodies, now.bytes = m.UploadsOf(s)
	return now.refuses(l, bytes)
}

// AcquireUpload implements Uploads. It never waits; ctx is only asked whether it
// has ended.
func (m *Memory) AcquireUpload(ctx context.Context, s Subject, l UploadLimits, bytes int64) (Upload, error) {
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("begin an upload: %w", err)
	}
	if err := l.closed(); err != nil {
		return nil, err
	}
	sh := m.shard(s)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	count := sh.uploads[s]
	if count == nil {
		count = &uploadCount{subject: s.own()}
	}
	if err := count.refuses(l, bytes); err != nil {
		return nil, err
	}
	if sh.uploads == nil {
		sh.uploads = make(map[Subject]*uploadCount)
	}
	sh.uploads[count.subject] = count
	count.bodies++
	count.bytes += bytes
	m.bodies.Add(1)
	return &memoryUpload{memory: m, shard: sh, count: count, limits: l, bytes: bytes}, nil
}

// memoryUpload is one body of an uploadCount. The shard's lock guards it.
type memoryUpload struct {
	memory *Memory
	shard  *shard
	count  *uploadCount
	limits UploadLimits
	bytes  int64
	ended  bool
}

// Resize implements Upload. It never waits.
func (u *memoryUpload) Resize(ctx context.Context, bytes int64) error {
	u.shard.mu.Lock()
	defer u.shard.mu.Unlock()
	if u.ended {
		return nil
	}
	more := bytes - u.bytes
	if more > 0 {
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("resize an upload: %w", err)
		}
		if !u.count.fits(more, u.limits.Bytes, u.count.bodies > 1) {
			return ErrUploadBytesExhausted
		}
	}
	u.count.bytes += more
	u.bytes = bytes
	return nil
}

// Release implements Lease.
func (u *memoryUpload) Release() {
	u.shard.mu.Lock()
	defer u.shard.mu.Unlock()
	if u.ended {
		return
	}
	u.ended = true
	u.memory.bodies.Add(-1)
	u.count.bodies--
	u.count.bytes -= u.bytes
	if u.count.bodies == 0 {
		delete(u.shard.uploads, u.count.subject)
	}
}

// OpenUploads is the number of large bodies under way, of all subjects, for
// metrics.
func (m *Memory) OpenUploads() int { return int(m.bodies.Load()) }

// UploadsOf is the number of large bodies that s has under way, and their bytes.
func (m *Memory) UploadsOf(s Subject) (bodies int, bytes int64) {
	sh := m.shard(s)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if count := sh.uploads[s]; count != nil {
		return count.bodies, count.bytes
	}
	return 0, 0
}
