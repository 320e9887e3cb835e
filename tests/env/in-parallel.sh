#!/usr/bin/env bash
# Runs one command at idle priority in parallel with another:
#
#   tests/env/in-parallel.sh 'make fuzz-targets && make doc' 'make test-live'
#
# The first runs at idle priority; its output is printed when both have ended. Waits for both and fails if either fails.
# An interrupt stops both.
set -uo pipefail
set -m # a background job gets its own process group, so that all of its children can be killed

output=$(mktemp)
chrt --idle 0 ionice --class 3 bash -c "$1" >"$output" 2>&1 &
background=$!
trap 'kill -- "-$background" 2>/dev/null; rm -f "$output"' EXIT
trap 'exit 130' INT TERM

bash -c "$2"
status=$?

wait "$background"
background_status=$?
printf -- '--- in parallel: %s\n' "$1"
cat "$output"
[ "$status" -ne 0 ] && exit "$status"
[ "$background_status" -ne 0 ] && printf -- '--- failed: %s\n' "$1" >&2
exit "$background_status"
