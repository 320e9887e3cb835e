#!/usr/bin/env bash
# Does one thing beside another, with the processor time that the other leaves:
#
#   tests/env/beside.sh 'make fuzz-targets doc' 'make test-live e2e'
#
# The first runs at idle priority, and what it says is shown when both have ended. Fails if either fails, and always waits for
# both.
set -uo pipefail

said=$(mktemp)
trap 'rm -f "$said"' EXIT
chrt --idle 0 bash -c "$1" >"$said" 2>&1 &
beside=$!

bash -c "$2"
outcome=$?

wait "$beside"
beside=$?
printf -- '--- beside: %s\n' "$1"
cat "$said"
[ "$outcome" -ne 0 ] && exit "$outcome"
[ "$beside" -ne 0 ] && printf -- '--- failed: %s\n' "$1" >&2
exit "$beside"
