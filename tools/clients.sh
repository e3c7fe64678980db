#!/usr/bin/env bash
# Installs other people's clients, unmodified, for the tests, once for each state of the two files that
# lock them: node_modules and venv in a folder outside the work tree. No package's install script runs.
# Does nothing where that very state is there. Used by `make clients`, which sets CLIENTS_ROOT.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/clients"

: "${CLIENTS_ROOT:?is set by make clients}"
say() { echo "clients: $*"; }

# The tests ask the same: requirements.txt is copied last, when all the rest stands.
if cmp -s requirements.txt "$CLIENTS_ROOT/requirements.txt"; then
	say "are there: $CLIENTS_ROOT"
	exit 0
fi
for command in node npm python3; do
	command -v "$command" >/dev/null || { say "$command is missing: install Node.js 20 with npm, and Python 3.10, or later" >&2; exit 1; }
done

# Two runs at once would overwrite each other's files; the second waits and then finds them.
mkdir -p "$CLIENTS_ROOT"
if command -v flock >/dev/null; then
	exec 9>"$CLIENTS_ROOT/.lock"
	flock 9
	cmp -s requirements.txt "$CLIENTS_ROOT/requirements.txt" && exit 0
fi

started=$SECONDS
cp package.json package-lock.json "$CLIENTS_ROOT"
npm ci --prefix "$CLIENTS_ROOT" --ignore-scripts --no-audit --no-fund --loglevel=error
python3 -m venv --clear "$CLIENTS_ROOT/venv"
"$CLIENTS_ROOT/venv/bin/pip" install --quiet --disable-pip-version-check --require-hashes --only-binary :all: -r requirements.txt
cp requirements.txt "$CLIENTS_ROOT"
say "installed in $((SECONDS - started)) s: $CLIENTS_ROOT"
