// Package secret owns the one type that carries a credential through the
// program without ever being printed. It refuses to know what the credential
// is for.
package secret

import (
	"fmt"
	"log/slog"
)

// masked is what every printer, encoder and logger sees of a Secret.
const masked = "<secret>"

// Secret holds a credential. Every way Go has of turning a value into text
// prints a mask; only Reveal gives the text. The zero value is "no secret".
type Secret struct{ text string }

// New wraps text.
func New(text string) Secret { return Secret{text: text} }

// Reveal returns the credential itself. Callers compare or hash it; they never
// log it or put it into an error.
func (s Secret) Reveal() string { return s.text }

// IsZero reports whether there is no secret.
func (s Secret) IsZero() bool { return s.text == "" }

// String implements fmt.Stringer with the mask.
func (s Secret) String() string { return masked }

// GoString implements fmt.GoStringer, so that %#v prints the mask too.
func (s Secret) GoString() string { return masked }

// Format implements fmt.Formatter: every verb prints the mask.
func (s Secret) Format(f fmt.State, _ rune) { _, _ = f.Write([]byte(masked)) }

// MarshalText masks the secret in JSON, YAML and any other text encoding.
func (s Secret) MarshalText() ([]byte, error) { return []byte(masked), nil }

// LogValue implements slog.LogValuer.
func (s Secret) LogValue() slog.Value { return slog.StringValue(masked) }

var (
	_ fmt.Stringer   = Secret{}
	_ fmt.GoStringer = Secret{}
	_ fmt.Formatter  = Secret{}
)
