#!/usr/bin/env bash
# Runs every fuzz target of the product in turn, each for the given time (`make fuzz FUZZTIME=30s`).
# Go fuzzes one target of one package at a time, so the targets are found by name here.
set -euo pipefail

fuzztime=${1:?usage: tools/fuzz.sh DURATION}
go=${GO:-go}
cd "$(dirname "${BASH_SOURCE[0]}")/.."

mapfile -t found < <(grep -rEno --include='*_test.go' '^func Fuzz[A-Za-z0-9_]*\(' . | sort)
if ((${#found[@]} == 0)); then
	echo "fuzz: no fuzz target found" >&2
	exit 1
fi
failed=()
for hit in "${found[@]}"; do
	IFS=: read -r file _ func <<<"$hit"
	package=${file%/*}
	name=${func#func } && name=${name%(}
	echo "fuzz: $package $name for $fuzztime"
	"$go" test -run '^$' -fuzz "^$name\$" -fuzztime "$fuzztime" "$package" || failed+=("$package $name")
done
if ((${#failed[@]})); then
	printf 'fuzz: FAILED %s\n' "${failed[@]}" >&2
	exit 1
fi
echo "fuzz: ${#found[@]} targets, no failure"
