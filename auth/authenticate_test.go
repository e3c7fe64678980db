package auth

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"sluice/internal/tenant"
)

// keyMap is a directory of keys and nothing else; it counts its look-ups.
type keyMap struct {
	keys    map[tenant.Digest]*tenant.Key
	err     error // answers every look-up, where set
	lookups int
}

func (m *keyMap) Key(_ context.Context, d tenant.Digest) (*tenant.Key, error) {
	m.lookups++
	if m.err != nil {
		return nil, m.err
	}
	if k, ok := m.keys[d]; ok {
		return k, nil
	}
	return nil, tenant.ErrNotFound
}

func (m *keyMap) Account(context.Context, tenant.AccountID) (*tenant.Account, error) {
	return nil, tenant.ErrNotFound
}

func (m *keyMap) Stream(context.Context, tenant.AccountID, tenant.StreamName) (*tenant.Stream, error) {
	return nil, tenant.ErrNotFound
}

func (m *keyMap) Cutoff(string) time.Time { return time.Time{} }

func (m *keyMap) SigningKeys(context.Context) ([]tenant.SigningKey, error) { return nil, nil }

func (m *keyMap) Watch(func(tenant.Change)) func() { return func() {} }

var _ tenant.Directory = (*keyMap)(nil)

// rig is an Authenticator over one directory, at a fixed time.
type rig struct {
	*Authenticator
	directory *keyMap
	now       time.Time
}

func newRig(t *testing.T) *rig {
	t.Helper()
	r := &rig{
		directory: &keyMap{keys: make(map[tenant.Digest]*tenant.Key)},
		now:       time.Date(2026, 6, 1, 12, 0, 0, 0, time.UTC),
	}
	r.Authenticator = New(Options{Directory: r.directory, Now: func() time.Time { return r.now }})
	return r
}

// add stores a good key, changed by edit, and returns its secret.
func (r *rig) add(t *testing.T, edit func(*tenant.Key)) string {
	t.Helper()
	token := newKey(t)
	k := &tenant.Key{
		ID: "key_1", Account: "acme", Digest: tenant.DigestOf(token),
		Access: tenant.WriteAccess, Streams: tenant.AllStreams(), ActsAs: tenant.User,
	}
	if edit != nil {
		edit(k)
	}
	r.directory.keys[tenant.DigestOf(token)] = k
	return token
}

func bearer(token string) []string { return []string{"Bearer " + token} }

func TestAuthenticateGoodKey(t *testing.T) {
	r := newRig(t)
	streams, err := tenant.ParseStreamSet([]string{"events", "logs.*"})
	if err != nil {
		t.Fatal(err)
	}
	expiry := r.now.Add(time.Hour)
	token := r.add(t, func(k *tenant.Key) {
		k.Access, k.Streams, k.ExpiresAt = tenant.ReadAccess, streams, expiry
	})
	got, err := r.Authenticate(t.Context(), bearer(token))
	if err != nil {
		t.Fatalf("Authenticate: %v", err)
	}
	want := &Principal{
		KeyID: "key_1", Account: "acme", Access: tenant.ReadAccess,
		Streams: streams, ActsAs: tenant.User, ExpiresAt: expiry,
	}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(tenant.StreamSet{}), cmpopts.IgnoreUnexported(Principal{})); diff != "" {
		t.Errorf("principal differs (-want +got):\n%s", diff)
	}
}

func TestAuthenticateAnonymous(t *testing.T) {
	r := newRig(t)
	for _, values := range [][]string{nil, {}} {
		if p, err := r.Authenticate(t.Context(), values); p != nil || err != nil {
			t.Errorf("Authenticate(%v) = %v, %v; want nil, nil", values, p, err)
		}
	}
}

// H05, H06: a broken credential was served as none, or half of two was used. It
// is an error, and nothing is looked up, so no key's last use moves.
func TestAuthenticateBrokenHeaderIsNotAnonymous(t *testing.T) {
	r := newRig(t)
	token := r.add(t, nil)
	for _, tc := range []struct {
		name   string
		values []string
		want   error
	}{
		{"H05 two keys", []string{"Bearer " + token, "Bearer " + token}, ErrSeveralCredentials},
		{"H05 key and basic", []string{"Bearer " + token, "Basic YTpi"}, ErrSeveralCredentials},
		{"H05 two in one line", []string{"Bearer " + token + ", Bearer " + token}, ErrMalformedCredential},
		{"H06 empty", []string{""}, ErrMalformedCredential},
		{"H06 no token", []string{"Bearer "}, ErrMalformedCredential},
		{"H06 tab", []string{"Bearer\t" + token}, ErrMalformedCredential},
		{"H06 basic", []string{"Basic " + token}, ErrScheme},
		{"H07 giant", []string{"Bearer " + strings.Repeat("a", 900<<10)}, ErrMalformedCredential},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p, err := r.Authenticate(t.Context(), tc.values)
			if p != nil || !errors.Is(err, tc.want) || !errors.Is(err, ErrInvalidCredential) {
				t.Errorf("got %v, %v; want nil, %v", p, err, tc.want)
			}
			if r.directory.lookups != 0 {
				t.Errorf("got %d look-ups, want 0", r.directory.lookups)
			}
		})
	}
}

// A20: what lies in the store, or nearly a key, worked as one. A13: random
// strings must fail on the checksum, with no look-up.
func TestAuthenticateOnlyTheKeyItself(t *testing.T) {
	r := newRig(t)
	token := r.add(t, nil)
	other := byte('x')
	if token[43] == other {
		other = 'y'
	}
	digest := tenant.DigestOf(token)
	for _, tc := range []struct{ name, in string }{
		{"the stored digest", digest.String()},
		{"the digest's hex", strings.TrimPrefix(digest.String(), "sha256:")},
		{"the digest behind the prefix", KeyPrefix + digest.String()[7:47]},
		{"the key's id", "key_1"},
		{"the hint", Hint(token)},
		{"last character changed", token[:43] + string(other)},
		{"case swapped", KeyPrefix + swapCase(token[4:])},
		{"upper case throughout", strings.ToUpper(token)},
		{"zero-width byte behind", token + "\u200b"},
		{"zero-width byte inside", token[:20] + "\u200b" + token[20:]},
		{"zero-width byte for a character", token[:20] + "\u200b" + token[23:]},
		{"pad behind", token + "="},
		{"the key twice", token + token},
		{"an older form", "tbo_0123456789abcdef0123456789abcdef"},
		{"without its prefix", token[4:]},
		{"a signed token", "eyJhbGciOiJub25lIn0.eyJzdWIiOiJhIn0."},
		{"random text", "tbo_" + strings.Repeat("a", 40)},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p, err := r.Authenticate(t.Context(), bearer(tc.in))
			if p != nil || !errors.Is(err, ErrInvalidCredential) {
				t.Errorf("got %v, %v; want nil, ErrInvalidCredential", p, err)
			}
			if r.directory.lookups != 0 {
				t.Errorf("got %d look-ups, want 0", r.directory.lookups)
			}
		})
	}
	if p, err := r.Authenticate(t.Context(), bearer(token)); p == nil || err != nil || r.directory.lookups != 1 {
		t.Errorf("the key itself: got %v, %v after %d look-ups; want a principal after 1", p, err, r.directory.lookups)
	}
}

// A21: missing, wrong, expired and "we cannot tell" must not look the same.
func TestAuthenticateStateOfTheKey(t *testing.T) {
	for _, tc := range []struct {
		name   string
		edit   func(k *tenant.Key, now time.Time)
		kind   error // nil: good
		reason error
	}{
		{"good", func(*tenant.Key, time.Time) {}, nil, nil},
		{"a nanosecond before expiry", func(k *tenant.Key, now time.Time) { k.ExpiresAt = now.Add(1) }, nil, nil},
		{"at expiry", func(k *tenant.Key, now time.Time) { k.ExpiresAt = now }, ErrCredentialExpired, nil},
		{"past expiry", func(k *tenant.Key, now time.Time) { k.ExpiresAt = now.Add(-time.Hour) }, ErrCredentialExpired, nil},
		{"revoked", func(k *tenant.Key, now time.Time) { k.RevokedAt = now.Add(-1) }, ErrInvalidCredential, ErrRevokedKey},
		{"revoked and expired", func(k *tenant.Key, now time.Time) { k.RevokedAt, k.ExpiresAt = now, now }, ErrInvalidCredential, ErrRevokedKey},
		{"agent's", func(k *tenant.Key, _ time.Time) { k.ActsAs = tenant.Agent }, ErrInvalidCredential, ErrAgentKey},
		{"agent's and expired", func(k *tenant.Key, now time.Time) { k.ActsAs, k.ExpiresAt = tenant.Agent, now }, ErrInvalidCredential, ErrAgentKey},
		{"acts as nobody known", func(k *tenant.Key, _ time.Time) { k.ActsAs = "robot" }, ErrInvalidCredential, ErrAgentKey},
		{"acts as nothing", func(k *tenant.Key, _ time.Time) { k.ActsAs = "" }, ErrInvalidCredential, ErrAgentKey},
		{"directory gave another key", func(k *tenant.Key, _ time.Time) { k.Digest[31] ^= 1 }, ErrInvalidCredential, ErrUnknownKey},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := newRig(t)
			token := r.add(t, func(k *tenant.Key) { tc.edit(k, r.now) })
			p, err := r.Authenticate(t.Context(), bearer(token))
			if (p != nil) != (tc.kind == nil) || !errors.Is(err, tc.kind) || (tc.reason != nil && !errors.Is(err, tc.reason)) {
				t.Errorf("got %v, %v; want %v, %v", p, err, tc.kind, tc.reason)
			}
			onlyKind(t, err, tc.kind)
		})
	}
}

// A11: an outage was answered as "your key is wrong", and clients threw their
// keys away. A16: what does not exist and what is refused is the same kind.
func TestAuthenticateDirectoryAnswers(t *testing.T) {
	broken := errors.New("disk on fire")
	for _, tc := range []struct {
		name string
		err  error
		kind error
	}{
		{"not found", tenant.ErrNotFound, ErrInvalidCredential},
		{"not found, wrapped", fmt.Errorf("keys: %w", tenant.ErrNotFound), ErrInvalidCredential},
		{"unavailable", tenant.ErrUnavailable, ErrUnavailable},
		{"unavailable, wrapped", fmt.Errorf("keys: %w", tenant.ErrUnavailable), ErrUnavailable},
		{"unexpected", broken, ErrUnavailable},
		{"too late", context.DeadlineExceeded, ErrUnavailable},
		{"cancelled", context.Canceled, ErrUnavailable},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := newRig(t)
			r.directory.err = tc.err
			p, err := r.Authenticate(t.Context(), bearer(newKey(t)))
			if p != nil || !errors.Is(err, tc.kind) {
				t.Errorf("got %v, %v; want nil, %v", p, err, tc.kind)
			}
			onlyKind(t, err, tc.kind)
			if errors.Is(tc.kind, ErrUnavailable) && !errors.Is(err, tc.err) {
				t.Errorf("%v lost its cause %v", err, tc.err)
			}
		})
	}
	t.Run("neither key nor error", func(t *testing.T) {
		r := newRig(t)
		token := newKey(t)
		r.directory.keys[tenant.DigestOf(token)] = nil
		if p, err := r.Authenticate(t.Context(), bearer(token)); p != nil || !errors.Is(err, ErrUnavailable) {
			t.Errorf("got %v, %v; want nil, ErrUnavailable", p, err)
		}
	})
	t.Run("the request has ended", func(t *testing.T) {
		r := newRig(t)
		token := r.add(t, nil)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		p, err := r.Authenticate(ctx, bearer(token))
		if p != nil || !errors.Is(err, ErrUnavailable) || !errors.Is(err, context.Canceled) {
			t.Errorf("got %v, %v; want nil, ErrUnavailable for the cancelled context", p, err)
		}
	})
}

// M02: a key was printed by the error that refused it.
func TestErrorsNeverRepeatTheCredential(t *testing.T) {
	r := newRig(t)
	revoked := r.add(t, func(k *tenant.Key) { k.RevokedAt = r.now })
	expired := r.add(t, func(k *tenant.Key) { k.ExpiresAt = r.now })
	unknown := newKey(t)
	for _, token := range []string{revoked, expired, unknown, unknown[:43], unknown + "\u200b", "some.other.token"} {
		_, err := r.Authenticate(t.Context(), bearer(token))
		if err == nil {
			t.Fatalf("%q is accepted", token)
		}
		if text := fmt.Sprintf("%v %+v %#v", err, err, err); strings.Contains(text, token) || strings.Contains(text, token[4:16]) {
			t.Errorf("the error holds the credential: %s", text)
		}
	}
}

func TestNewDefaultsToTheSystemClock(t *testing.T) {
	r := newRig(t)
	a := New(Options{Directory: r.directory})
	past := r.add(t, func(k *tenant.Key) { k.ExpiresAt = time.Now().Add(-time.Second) })
	ahead := r.add(t, func(k *tenant.Key) { k.ExpiresAt = time.Now().Add(time.Hour) })
	if _, err := a.Authenticate(t.Context(), bearer(past)); !errors.Is(err, ErrCredentialExpired) {
		t.Errorf("got %v, want ErrCredentialExpired", err)
	}
	if _, err := a.Authenticate(t.Context(), bearer(ahead)); err != nil {
		t.Errorf("got %v, want none", err)
	}
}

// onlyKind checks that err is of no second kind: a caller that asks in another
// order must not get another answer.
func onlyKind(t *testing.T, err, want error) {
	t.Helper()
	for _, kind := range []error{ErrInvalidCredential, ErrCredentialExpired, ErrUnavailable, ErrNoCredential, ErrForbidden} {
		if errors.Is(err, kind) != errors.Is(want, kind) {
			t.Errorf("%v: Is(%v) = %t", err, kind, errors.Is(err, kind))
		}
	}
}
