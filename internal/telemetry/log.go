package telemetry

import (
	"fmt"
	"io"
	"strings"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// NewLogger makes a logger that writes one JSON object a line to w. The level
// can be changed while it runs. Keys are snake_case; times are RFC 3339 in UTC.
func NewLogger(w io.Writer, level zap.AtomicLevel) *zap.Logger {
	c := zap.NewProductionEncoderConfig()
	c.TimeKey, c.MessageKey, c.LevelKey = "time", "message", "level"
	c.EncodeTime = zapcore.RFC3339NanoTimeEncoder
	c.EncodeDuration = zapcore.SecondsDurationEncoder
	core := zapcore.NewCore(zapcore.NewJSONEncoder(c), zapcore.Lock(zapcore.AddSync(w)), level)
	return zap.New(core)
}

// ParseLevel reads a level's name: debug, info, warn or error.
func ParseLevel(name string) (zapcore.Level, error) {
	var l zapcore.Level
	if err := l.UnmarshalText([]byte(name)); err != nil || l > zapcore.ErrorLevel || name == "" {
		return 0, fmt.Errorf("log level %q: want debug, info, warn or error", name)
	}
	return l, nil
}

const (
	maxLogged = 128 // bytes of a foreign text that a line may hold
	redacted  = "<redacted>"
)

// Foreign makes a text that a stranger chose fit for a log line: short, without
// anything that looks like a credential (M02). JSON encoding escapes the rest.
func Foreign(s string) string {
	// An encoded form could hide a credential from the search below.
	if i := strings.IndexByte(s, '%'); i >= 0 {
		s = s[:i] + "%…"
	}
	cut := len(s) > maxLogged
	if cut {
		s = s[:maxLogged]
	}
	s = Redact(s)
	if cut {
		s += "…"
	}
	return s
}

// Redact takes out of a text what looks like a credential.
func Redact(s string) string {
	for _, mark := range []string{"tbo_", "eyJ", "sha256:"} {
		for {
			i := strings.Index(s, mark)
			if i < 0 {
				break
			}
			end := i + len(mark)
			for end < len(s) && tokenByte(s[end]) {
				end++
			}
			s = s[:i] + redacted + s[end:]
		}
	}
	return s
}

func tokenByte(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '.' || c == '_' || c == '-' || c == '~' || c == '+'
}
