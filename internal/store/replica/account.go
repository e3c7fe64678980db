package replica

import (
	"sync/atomic"

	"sluice/internal/store"
	"sluice/internal/tenant"
)

// account is an account as it is stored, and as it was handed out last.
type account struct {
	own   store.Account
	shown atomic.Pointer[laid]
}

// laid is an account laid over defaults.
type laid struct {
	tenant.Account
	defaults *tenant.Limits
}

// over is the account with what it has of its own laid over the defaults. It is the same
// value for as long as they are the same.
func (a *account) over(defaults *tenant.Limits) *tenant.Account {
	if l := a.shown.Load(); l != nil && l.defaults == defaults {
		return &l.Account
	}
	l := &laid{defaults: defaults, Account: tenant.Account{ID: a.own.ID, State: a.own.State, Limits: *defaults}}
	own := a.own.Limits
	lay(&l.Limits.RequestsPerSecond, own.RequestsPerSecond)
	lay(&l.Limits.Burst, own.Burst)
	lay(&l.Limits.OpenTails, own.OpenTails)
	lay(&l.Limits.Uploads, own.Uploads)
	lay(&l.Limits.UploadBytes, own.UploadBytes)
	lay(&l.Limits.RequestBytes, own.RequestBytes)
	a.shown.Store(l)
	return &l.Account
}

func lay[T any](field, own *T) {
	if own != nil {
		*field = *own
	}
}
