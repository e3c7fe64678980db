package secret

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.yaml.in/yaml/v3"
)

// M02 (logs): keys leaked where a value was printed by a verb, an encoder or a
// logger nobody had thought of, and came back twice after single fixes. The
// rule is held by the type, so every printer is tried here.
func TestSecretIsNeverPrinted(t *testing.T) {
	const key = "tbo_very-secret"
	holder := struct {
		Token Secret
		Ptr   *Secret
	}{Token: New(key)}
	holder.Ptr = &holder.Token

	var out bytes.Buffer
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "%d", "%T%v"} {
		fmt.Fprintf(&out, verb+"\n", holder)
		fmt.Fprintf(&out, verb+"\n", holder.Token)
		fmt.Fprintf(&out, verb+"\n", holder.Ptr)
	}
	if err := json.NewEncoder(&out).Encode(holder); err != nil {
		t.Fatal(err)
	}
	if err := yaml.NewEncoder(&out).Encode(holder); err != nil {
		t.Fatal(err)
	}
	slog.New(slog.NewTextHandler(&out, nil)).Info("x", "token", holder.Token, "all", holder)
	core := zapcore.NewCore(zapcore.NewJSONEncoder(zap.NewProductionEncoderConfig()), zapcore.AddSync(&out), zap.DebugLevel)
	zap.New(core).Info("x", zap.Any("token", holder.Token), zap.Any("all", holder), zap.Stringer("s", holder.Token), zap.Reflect("r", holder))
	fmt.Fprintln(&out, fmt.Errorf("wrapped: %w %v", fmt.Errorf("%v", holder.Token), holder.Token))

	for _, leak := range []string{key, fmt.Sprintf("%x", key), fmt.Sprintf("%X", key)} {
		if strings.Contains(out.String(), leak) {
			t.Errorf("output holds %q:\n%s", leak, out.String())
		}
	}
	if New(key).Reveal() != key || New(key).IsZero() || !New("").IsZero() {
		t.Error("Reveal or IsZero is wrong")
	}
}
