#!/usr/bin/env bash
# Runs schemathesis (PyPI) against a running Management API, by the openapi.yaml that it
# serves: no answer that is not documented, and no 5xx.
#
#   tools/schemathesis.sh owner    https://streams.example.com   key in TONBO_API_KEY
#   tools/schemathesis.sh operator http://127.0.0.1:9090         token in SLUICE_ADMIN_TOKEN, if there is one
#
# What it makes and deletes is left: point it at an API of its own, with a key that the
# operator's file states, since it narrows and revokes what it finds. SCHEMATHESIS names
# the program, SCHEMATHESIS_SEED repeats a run, SCHEMATHESIS_EXAMPLES is how many calls of
# each kind an operation gets (30).
set -euo pipefail

listener=${1:?owner or operator}
url=${2:?the address of the listener}
case $listener in
  owner)
    credential=${TONBO_API_KEY:?a key that may manage}
    only=(--exclude-path-regex '^/v1/(accounts|usage/batches)')
    ;;
  operator)
    credential=${SLUICE_ADMIN_TOKEN:-}
    only=(--include-path-regex '^/v1/(accounts|audit|usage/batches)')
    ;;
  *)
    echo "schemathesis.sh: $listener is neither owner nor operator" >&2
    exit 2
    ;;
esac

# Not asked is whether good data is accepted, since a time that is past and a region that is
# none are good by the schema, and whether what was deleted is gone, since a revoked key is
# still shown.
arguments=(run "$url/v1/openapi.yaml" --url "$url" "${only[@]}" --no-color --warnings off
  --checks all --exclude-checks positive_data_acceptance,use_after_free --continue-on-failure
  --max-examples "${SCHEMATHESIS_EXAMPLES:-30}" --generation-database none --request-timeout 20
  --suppress-health-check all)
if [[ -n $credential ]]; then
  arguments+=(--header "Authorization: Bearer $credential")
fi
if [[ -n ${SCHEMATHESIS_SEED:-} ]]; then
  arguments+=(--seed "$SCHEMATHESIS_SEED")
fi
# It keeps what it found where it runs.
program=$(command -v "${SCHEMATHESIS:-schemathesis}")
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
cd "$scratch"
"$program" "${arguments[@]}"
