package store

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"sluice/internal/tenant"
)

// kind is what an error says of what is stored.
func kind(err error) string {
	for _, own := range []error{ErrNotFound, ErrTaken, ErrDeclared, ErrWider, ErrGone, ErrUnavailable} {
		if errors.Is(err, own) {
			return own.Error()
		}
	}
	return fmt.Sprint(err)
}

// Both databases are asked the same at random, and answer the same: a query that one of
// them reads otherwise shows as a difference in what they say, in their logs or in what
// they hold at the end.
func TestBothAnswerTheSame(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64() //nolint:gosec // chance is no secret
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("seed %d", seed)
		}
	})
	lite, pg := newRig(t, "sqlite:"+filepath.Join(t.TempDir(), "sluice.db")), newRig(t, postgres.Database(t))
	lite.shared = true                                                                                                         // the allowance for clocks is the one difference that is meant
	a, b := &actor{rig: lite, random: rand.New(rand.NewPCG(seed, 1))}, &actor{rig: pg, random: rand.New(rand.NewPCG(seed, 1))} //nolint:gosec // chance is no secret
	var after [2]int64
	for step := range 600 {
		said, errA := a.step(t, step)
		also, errB := b.step(t, step)
		if said != also || kind(errA) != kind(errB) || errors.Is(errA, ErrUnavailable) {
			t.Fatalf("step %d: SQLite %s: %v; Postgres %s: %v", step, said, errA, also, errB)
		}
		toldA, toldB := lite.told(t, &after[0]), pg.told(t, &after[1])
		// What one change tells is in no order.
		equal(t, said, counted(toldA), counted(toldB))
	}
	equal(t, "held at the end", a.everything(t), b.everything(t))
}

func counted(changes []tenant.Change) map[tenant.Change]int {
	n := make(map[tenant.Change]int)
	for _, c := range changes {
		n[c]++
	}
	return n
}

// actor does things at random, with few names, so that they meet.
type actor struct {
	*rig
	random *rand.Rand
}

func (a *actor) one(names ...string) string { return names[a.random.IntN(len(names))] }

func (a *actor) id() tenant.AccountID { return tenant.AccountID(a.one("acc1", "acc2", "acc3")) }

func (a *actor) anyKey(step int) Key {
	k := a.aKey(a.id(), fmt.Sprint("key", step))
	k.Name = a.one("x", "y", "z")
	k.Digest = tenant.DigestOf(a.one(k.ID, "shared"))
	k.Access = tenant.Access(a.one("read", "write"))
	k.ActsAs = tenant.ActsAs(a.one("user", "agent"))
	return k
}

func (a *actor) anyDeclaration() Declaration {
	var d Declaration
	for _, id := range []tenant.AccountID{"acc1", "acc2"} {
		if a.random.IntN(3) == 0 {
			continue
		}
		d.Accounts = append(d.Accounts, Account{ID: id, State: tenant.State(a.one("active", "unpaid"))})
		k := a.aKey(id, string(id)+"/x")
		k.Name, k.Digest = "x", tenant.DigestOf(a.one(k.ID, "shared", k.ID+"2"))
		d.Keys = append(d.Keys, k.Key)
		d.Streams = append(d.Streams, tenant.Stream{Account: id, Name: "s1", Public: a.random.IntN(2) == 0})
	}
	return d
}

// step does one thing, and says what.
func (a *actor) step(t *testing.T, step int) (string, error) {
	t.Helper()
	ctx := t.Context()
	a.clock.pass(time.Duration(a.random.IntN(40)) * time.Second)
	id, name := a.id(), tenant.StreamName(a.one("s1", "s2", "s3"))
	key := fmt.Sprint("key", a.random.IntN(step+1))
	until := a.clock.read().Add(time.Duration(a.random.IntN(120)-30) * time.Second)
	stream := fmt.Sprint("st", a.random.IntN(step+1))
	switch a.random.IntN(14) {
	case 0:
		return "create an account", a.CreateAccount(ctx, someone(), Account{ID: id, State: tenant.Active}, nil)
	case 1:
		if a.random.IntN(4) > 0 { // else no id would be left
			return "nothing", nil
		}
		return "delete an account", a.DeleteAccount(ctx, someone(), id)
	case 2:
		_, err := a.ChangeAccount(ctx, someone(), id, AccountChange{State: pointer(tenant.State(a.one("active", "unpaid", "revoked")))})
		return "change an account", err
	case 3, 4:
		return "create a key", a.CreateKey(ctx, someone(), a.anyKey(step))
	case 5:
		to := KeyChange{Access: pointer(tenant.Access(a.one("read", "write"))), Name: pointer(a.one("x", "y", "z"))}
		k, err := a.ChangeKey(ctx, someone(), id, key, to)
		return fmt.Sprint("change a key: ", k.Name, k.Access), err
	case 6:
		k, err := a.RotateKey(ctx, someone(), id, key, NewSecret{tenant.DigestOf(a.one(key, "shared", fmt.Sprint(step))), "h", until, step%2 == 0})
		return fmt.Sprint("rotate a key: ", k.OldUntil), err
	case 7:
		return "revoke a key", a.RevokeKey(ctx, someone(), id, key)
	case 8, 9:
		st := a.aStream(id, name)
		st.ID, st.BusyUntil, st.ExpiresAt = fmt.Sprint("st", step), until, until.Add(time.Minute)
		return "create a stream", a.CreateStream(ctx, someone(), st)
	case 10:
		_, err := a.DeleteStream(ctx, someone(), id, name)
		return "delete a stream", err
	case 11:
		return "mark a stream", errors.Join(a.MarkCreated(ctx, stream, "inc"), a.Busy(ctx, stream, until))
	case 12:
		left, err := a.Unsettled(ctx, 3)
		said := "unsettled:"
		for _, st := range left {
			said += " " + string(st.Name)
			err = errors.Join(err, a.RemoveStream(ctx, st.ID))
		}
		return said, err
	default:
		return "declare", a.Declare(ctx, a.anyDeclaration())
	}
}

// allSaid are the records of all changes; those of one change are in no order.
func (a *actor) allSaid(t *testing.T) []string {
	t.Helper()
	all := a.audit(t, AuditQuery{})
	lines := make([]string, 0, len(all))
	for _, one := range all {
		lines = append(lines, fmt.Sprint(one.At, " ", said(one)))
	}
	slices.Sort(lines)
	return lines
}

// everything is what is stored, but for ids that are made at random.
func (a *actor) everything(t *testing.T) (all []any) {
	t.Helper()
	accounts, err := a.Accounts(t.Context(), Page{Limit: 1000})
	must(t, err)
	cutoffs, err := a.Cutoffs(t.Context())
	must(t, err)
	all = append(all, accounts, cutoffs, a.allSaid(t))
	for _, id := range []tenant.AccountID{"acc1", "acc2", "acc3"} {
		keys, err := a.Keys(t.Context(), id, Page{Limit: 1000})
		must(t, err)
		streams, err := a.Streams(t.Context(), id, Page{Limit: 1000})
		must(t, err)
		for i := range streams {
			if streams[i].Declared {
				streams[i].ID = ""
			}
		}
		all = append(all, keys, streams)
	}
	return all
}
