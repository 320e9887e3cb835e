#!/usr/bin/env bash
# Everything a build machine runs, stage by stage: `make test`. Each stage says how long it usually takes on two idle
# cores, and the end lists what each took. Stops at the first stage that fails.
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

cd "$REPO"
# The caller's make must not lend its flags to the makes below.
unset MAKEFLAGS MFLAGS MAKELEVEL
make=(make --no-print-directory)
# A build machine builds once: what cargo keeps for the next change would only cost time.
[ -z "${CI:-}" ] || export CARGO_INCREMENTAL=0
STAGES=6
number=0
summary=()

# stage <usual time> <title> <command…>
stage() {
  local usual=$1 title=$2 start=$SECONDS
  shift 2
  number=$((number + 1))
  printf '\n=== %s of %s: %s (usually %s)\n' "$number" "$STAGES" "$title" "$usual"
  if ! "$@"; then
    printf '\n=== failed after %s: %s\n' "$(duration $((SECONDS - start)))" "$title" >&2
    exit 1
  fi
  summary+=("$(printf '%-75s %s' "$title" "$(duration $((SECONDS - start)))")")
}

# Live tests use both cores. End-to-end tests mostly wait: what builds runs at idle priority beside them.
beside() { tests/env/beside.sh "${make[*]} $1" "${make[*]} $2"; }

stage "1 s, cold 16 min" "set-up" "${make[@]}" setup
stage "13 min, rebuilt 1 min" "build the programs and tests; rules of the tree" "${make[@]}" lint-tree build-tests
stage "2 min" "unit tests" "${make[@]}" test-unit
stage "16 min" "live tests" "${make[@]}" test-live
stage "16 min" "end-to-end tests; clippy, documentation and fuzz targets beside them" beside "clippy doc fuzz-targets" e2e
stage "2 min" "fuzzing" "${make[@]}" fuzz

printf '\n=== everything passed in %s\n' "$(duration $SECONDS)"
printf '    %s\n' "${summary[@]}"
