package gateway

import (
	"context"
	"errors"

	"sluice/internal/refusal"
	"sluice/internal/tracing"
	"sluice/ratelimit"
)

// upload is the share of its account's uploads that a large body has while it is
// read: over all replicas, each account has so many bodies over 1 MiB, of so many
// bytes, under way at one time (design §6). A body counts by its declared length,
// or, where none is, from when it outgrows small, by the room that is made for it
// (facts U3). It belongs to one goroutine.
type upload struct {
	uploads ratelimit.Uploads
	subject ratelimit.Subject
	limits  ratelimit.UploadLimits
	room    int64 // up to which it holds its share: small at first, the whole where it was declared
	held    ratelimit.Upload
	span    *tracing.Span // of the request
}

func (c *chain) newUpload(s *Scope) *upload {
	return &upload{
		span: s.span, uploads: c.Uploads, subject: s.subject(), room: smallBody,
		limits: ratelimit.UploadLimits{Uploads: s.Account.Limits.Uploads, Bytes: s.Account.Limits.UploadBytes},
	}
}

// grow holds the share of a body for which there is to be room for so many bytes: of
// all of it at the start where it tells its length.
func (u *upload) grow(ctx context.Context, room int64) error {
	var err error
	switch {
	case room <= u.room:
		return nil
	case u.held == nil:
		step := u.span.Child("take upload slot")
		u.held, err = u.uploads.AcquireUpload(ctx, u.subject, u.limits, room)
		step.End()
	default:
		err = u.held.Resize(ctx, room)
	}
	switch {
	case err == nil:
		u.room = room
		return nil
	case errors.Is(err, ratelimit.ErrUploadsExhausted):
		return refusal.New(refusal.UploadsExhausted, err)
	case errors.Is(err, ratelimit.ErrUploadBytesExhausted):
		return refusal.New(refusal.UploadBytesExhausted, err)
	default:
		return orGone(ctx, err)
	}
}

// release gives the share back: the body is whole, or has ended.
func (u *upload) release() {
	if u.held != nil {
		u.held.Release()
	}
}
