#!/usr/bin/env bash
# Does one thing beside another, with the processor and disk time that the other leaves:
#
#   tests/env/beside.sh 'make fuzz-targets && make doc' 'make test-live'
#
# The first runs at idle priority, and what it says is shown when both have ended. Fails if either fails, and waits for both,
# unless it is told to stop: then both stop.
set -uo pipefail
set -m # whatever runs beside has a process group of its own, which is ended as a whole

said=$(mktemp)
chrt --idle 0 ionice --class 3 bash -c "$1" >"$said" 2>&1 &
beside=$!
trap 'kill -- "-$beside" 2>/dev/null; rm -f "$said"' EXIT
trap 'exit 130' INT TERM

bash -c "$2"
outcome=$?

wait "$beside"
beside_outcome=$?
printf -- '--- beside: %s\n' "$1"
cat "$said"
[ "$outcome" -ne 0 ] && exit "$outcome"
[ "$beside_outcome" -ne 0 ] && printf -- '--- failed: %s\n' "$1" >&2
exit "$beside_outcome"
