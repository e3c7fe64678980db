#!/usr/bin/env bash
# Installs the published Ursula that the end-to-end tests run against, once, into a folder of its own
# outside the work tree. Does nothing where that very version already answers.
# Used by `make ursula`, which sets URSULA_VERSION and URSULA_ROOT.
set -euo pipefail

: "${URSULA_VERSION:?is set by make ursula}" "${URSULA_ROOT:?is set by make ursula}"
binary="$URSULA_ROOT/bin/ursula"

answers() { [[ "$("$binary" --version 2>/dev/null)" == "ursula $URSULA_VERSION" ]]; }

if answers; then
	echo "ursula $URSULA_VERSION is there: $binary"
	exit 0
fi
if ! command -v cargo >/dev/null; then
	echo "ursula: cargo is missing. Install Rust (https://rustup.rs), then run 'make ursula' again." >&2
	echo "ursula: without it 'make test' covers the in-memory stand-in only, and says so." >&2
	exit 1
fi

# Two runs at once would overwrite each other's files; the second waits and then finds the binary.
mkdir -p "$URSULA_ROOT"
if command -v flock >/dev/null; then
	exec 9>"$URSULA_ROOT/.lock"
	flock 9
	answers && exit 0
fi

echo "ursula: building $URSULA_VERSION from the published crate; about 15 minutes on 2 cores, once"
started=$SECONDS
# A build folder of its own lets an interrupted build go on where it stopped; it is large and goes
# once the binary stands.
CARGO_TARGET_DIR="$URSULA_ROOT/build" \
	cargo install ursula --version "$URSULA_VERSION" --locked --quiet --root "$URSULA_ROOT"
answers || { echo "ursula: $binary was built but does not say it is $URSULA_VERSION" >&2; exit 1; }
rm -rf "$URSULA_ROOT/build"
echo "ursula: built in $((SECONDS - started)) s: $binary"
