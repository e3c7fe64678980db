package manage

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"sluice/internal/store"
	"sluice/internal/tenant"
)

// fault is what becomes of one step between the store and a node.
type fault int

const (
	// lost: it is not made at all.
	lost fault = iota
	// unanswered: it is made, and nobody is told.
	unanswered
	// late: a request takes effect at the node when its sender has long given up. A call
	// of the store is lost.
	late
	faults
)

func (f fault) String() string { return [...]string{"lost", "unanswered", "late"}[f] }

var errFault = fmt.Errorf("%w: by the test", store.ErrUnavailable)

// injector spoils one step of a process, by its number. Where that ends the process, all
// later steps are lost too.
type injector struct {
	at   int // of the steps, from 1; 0 = none
	what fault
	ends bool
	// after is when a late request takes effect.
	after time.Duration

	mu    sync.Mutex
	steps []string
	dead  bool
}

// step says what becomes of the next one.
func (i *injector) step(name string) (f fault, hit bool) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.dead {
		return lost, true
	}
	i.steps = append(i.steps, name)
	if len(i.steps) != i.at {
		return 0, false
	}
	i.dead = i.ends
	return i.what, true
}

func (i *injector) ended() bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.dead
}

func (i *injector) seen() []string {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.steps
}

// faultyNodes is a way to the nodes that an injector spoils.
type faultyNodes struct {
	Nodes
	*injector
}

func (n faultyNodes) Do(r *http.Request) (*http.Response, error) {
	f, hit := n.step(r.Method)
	switch {
	case !hit:
		return n.Nodes.Do(r)
	case f == late:
		later := r.Clone(context.WithoutCancel(r.Context()))
		go func() {
			time.Sleep(n.after)
			if res, err := n.Nodes.Do(later); err == nil {
				_ = res.Body.Close()
			}
		}()
	case f == unanswered:
		if res, err := n.Nodes.Do(r); err == nil {
			_ = res.Body.Close()
		}
	}
	if n.ended() {
		return nil, errFault
	}
	<-r.Context().Done()
	return nil, r.Context().Err()
}

// faultyStore is a store that an injector spoils.
type faultyStore struct {
	StreamStore
	*injector
}

func spoil[T any](i *injector, name string, call func() (T, error)) (T, error) {
	f, hit := i.step(name)
	if !hit {
		return call()
	}
	if f == unanswered {
		_, _ = call()
	}
	var none T
	return none, errFault
}

func spoilErr(i *injector, name string, call func() error) error {
	_, err := spoil(i, name, func() (struct{}, error) { return struct{}{}, call() })
	return err
}

func (s faultyStore) CreateStream(ctx context.Context, by store.Author, st store.Stream) error {
	return spoilErr(s.injector, "CreateStream", func() error { return s.StreamStore.CreateStream(ctx, by, st) })
}

func (s faultyStore) Stream(ctx context.Context, account tenant.AccountID, name tenant.StreamName) (store.Stream, error) {
	return spoil(s.injector, "Stream", func() (store.Stream, error) { return s.StreamStore.Stream(ctx, account, name) })
}

func (s faultyStore) MarkCreated(ctx context.Context, id, incarnation string) error {
	return spoilErr(s.injector, "MarkCreated", func() error { return s.StreamStore.MarkCreated(ctx, id, incarnation) })
}

func (s faultyStore) DeleteStream(ctx context.Context, by store.Author, account tenant.AccountID, name tenant.StreamName) (store.Stream, error) {
	return spoil(s.injector, "DeleteStream", func() (store.Stream, error) { return s.StreamStore.DeleteStream(ctx, by, account, name) })
}

func (s faultyStore) Busy(ctx context.Context, id string, until time.Time) error {
	return spoilErr(s.injector, "Busy", func() error { return s.StreamStore.Busy(ctx, id, until) })
}

func (s faultyStore) Leave(ctx context.Context, id string, until time.Time) error {
	return spoilErr(s.injector, "Leave", func() error { return s.StreamStore.Leave(ctx, id, until) })
}

func (s faultyStore) RemoveStream(ctx context.Context, id string) error {
	return spoilErr(s.injector, "RemoveStream", func() error { return s.StreamStore.RemoveStream(ctx, id) })
}

func (s faultyStore) Begin(ctx context.Context, by store.Author, want store.Stream) (store.Stream, error) {
	return spoil(s.injector, "Begin", func() (store.Stream, error) { return s.StreamStore.Begin(ctx, by, want) })
}

func (s faultyStore) End(ctx context.Context, by store.Author, id string, attempt int64, what store.Outcome, seen store.Sight) error {
	return spoilErr(s.injector, "End", func() error { return s.StreamStore.End(ctx, by, id, attempt, what, seen) })
}

func (s faultyStore) Saw(ctx context.Context, st store.Stream, seen *store.Sight, settled bool) error {
	return spoilErr(s.injector, "Saw", func() error { return s.StreamStore.Saw(ctx, st, seen, settled) })
}

func (s faultyStore) Condemn(ctx context.Context, st store.Stream) error {
	return spoilErr(s.injector, "Condemn", func() error { return s.StreamStore.Condemn(ctx, st) })
}

func (s faultyStore) Learn(ctx context.Context, id, incarnation string) error {
	return spoilErr(s.injector, "Learn", func() error { return s.StreamStore.Learn(ctx, id, incarnation) })
}

// Hold, Unsettled and Looks come once a second: they fail with the process, and are no
// steps.

func (s faultyStore) Hold(ctx context.Context, lease, holder string, life time.Duration) (bool, error) {
	if s.ended() {
		return false, errFault
	}
	return s.StreamStore.Hold(ctx, lease, holder, life)
}

func (s faultyStore) Unsettled(ctx context.Context, limit int) ([]store.Stream, error) {
	if s.ended() {
		return nil, errFault
	}
	return s.StreamStore.Unsettled(ctx, limit)
}

func (s faultyStore) Looks(ctx context.Context, limit int) ([]store.Stream, error) {
	if s.ended() {
		return nil, errFault
	}
	return s.StreamStore.Looks(ctx, limit)
}

func (s faultyStore) LetGo(ctx context.Context, lease, holder string) error {
	if s.ended() {
		return errors.New("the process is gone")
	}
	return s.StreamStore.LetGo(ctx, lease, holder)
}

// brokenStore fails always.
type brokenStore struct {
	StreamStore
	KeyStore
	AccountStore
	AuditStore
	err error
}

func (s brokenStore) Usage(context.Context, tenant.AccountID, store.UsageQuery) ([]store.UsageHour, error) {
	return nil, s.err
}

func (s brokenStore) UsageBatches(context.Context, int64, int, int) ([]store.UsageBatch, error) {
	return nil, s.err
}

func (s brokenStore) CreateStream(context.Context, store.Author, store.Stream) error { return s.err }

func (s brokenStore) Stream(context.Context, tenant.AccountID, tenant.StreamName) (store.Stream, error) {
	return store.Stream{}, s.err
}

func (s brokenStore) Begin(context.Context, store.Author, store.Stream) (store.Stream, error) {
	return store.Stream{}, s.err
}

func (s brokenStore) Streams(context.Context, tenant.AccountID, store.Page) ([]store.Stream, error) {
	return nil, s.err
}

func (s brokenStore) SetPublic(context.Context, store.Author, tenant.AccountID, tenant.StreamName, bool) (store.Stream, error) {
	return store.Stream{}, s.err
}

func (s brokenStore) DeleteStream(context.Context, store.Author, tenant.AccountID, tenant.StreamName) (store.Stream, error) {
	return store.Stream{}, s.err
}

func (s brokenStore) CreateKey(context.Context, store.Author, store.Key) error { return s.err }

func (s brokenStore) Key(context.Context, tenant.AccountID, string) (store.Key, error) {
	return store.Key{}, s.err
}

func (s brokenStore) Keys(context.Context, tenant.AccountID, store.Page) ([]store.Key, error) {
	return nil, s.err
}

func (s brokenStore) ChangeKey(context.Context, store.Author, tenant.AccountID, string, store.KeyChange) (store.Key, error) {
	return store.Key{}, s.err
}

func (s brokenStore) RotateKey(context.Context, store.Author, tenant.AccountID, string, store.NewSecret) (store.Key, error) {
	return store.Key{}, s.err
}

func (s brokenStore) RevokeKey(context.Context, store.Author, tenant.AccountID, string) error {
	return s.err
}

func (s brokenStore) CreateAccount(context.Context, store.Author, store.Account, *store.Key) error {
	return s.err
}

func (s brokenStore) Account(context.Context, tenant.AccountID) (store.Account, error) {
	return store.Account{}, s.err
}

func (s brokenStore) Accounts(context.Context, store.Page) ([]store.Account, error) {
	return nil, s.err
}

func (s brokenStore) ChangeAccount(context.Context, store.Author, tenant.AccountID, store.AccountChange) (store.Account, error) {
	return store.Account{}, s.err
}

func (s brokenStore) DeleteAccount(context.Context, store.Author, tenant.AccountID) error {
	return s.err
}

func (s brokenStore) Audit(context.Context, store.AuditQuery) ([]store.Record, int64, error) {
	return nil, 0, s.err
}

// brokenDirectory cannot tell.
type brokenDirectory struct{ tenant.Directory }

func (brokenDirectory) Key(context.Context, tenant.Digest) (*tenant.Key, error) {
	return nil, tenant.ErrUnavailable
}

func (brokenDirectory) Account(context.Context, tenant.AccountID) (*tenant.Account, error) {
	return nil, tenant.ErrUnavailable
}
