package memory

import (
	"slices"
	"time"

	"sluice/internal/tenant"
)

// setSigning gives next its signing keys: those declared, else the directory's
// own, which stay the same over any number of replacements.
func (d *Directory) setSigning(next, prev *snapshot, declared []tenant.SigningKey, now time.Time) error {
	if len(declared) > 0 {
		// What the directory's own keys signed may live on; they sign no more.
		next.made = retired(prev.made, now)
		next.signing = slices.Concat(tenant.SigningKeysAsBefore(declared, prev.signing), next.made)
		return nil
	}
	made, changed, err := tenant.DefaultRotation().Next(prev.made, now, d.random)
	if err != nil {
		return err
	}
	if !changed {
		made = prev.made
	}
	next.made, next.signing = made, made
	return nil
}

// retired are keys that sign no more, without those that are dead.
func retired(keys []tenant.SigningKey, now time.Time) []tenant.SigningKey {
	var left []tenant.SigningKey
	for _, k := range keys {
		if k.SignUntil.IsZero() || k.SignUntil.After(now) {
			k.SignUntil, k.VerifyUntil = now, now.Add(tenant.CutoffKept)
		}
		if k.Verifies(now) {
			left = append(left, k)
		}
	}
	return left
}

// RotateSigningKeys replaces the keys that the directory made itself, where it
// is time to (tenant.DefaultRotation); where keys are declared it makes none. It
// is to be called about once an hour. The error is that of the randomness.
func (d *Directory) RotateSigningKeys() error {
	return d.change(func(prev *snapshot, now time.Time) (*snapshot, error) {
		next := *prev
		declared := prev.signing[:len(prev.signing)-len(prev.made)]
		return &next, d.setSigning(&next, prev, declared, now)
	})
}
