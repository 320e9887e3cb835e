#!/usr/bin/env bash
# `make test`, stage by stage. Each stage prints how long it usually takes on two idle cores, and the summary lists how long
# each took. Stops at the first stage that fails.
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

# The workspace itself is built anew for the path of this checkout; what an earlier checkout left only takes space.
forget_workspace() {
  local directory
  for directory in "$CARGO_TARGET_DIR" "$CARGO_TARGET_DIR/checked"; do
    [ ! -d "$directory" ] || cargo clean --quiet --workspace --target-dir "$directory"
  done
}

cd "$REPO"
# Flags of the calling make must not reach the makes below.
unset MAKEFLAGS MFLAGS MAKELEVEL
make=(make --no-print-directory)
# A build machine builds once: what cargo keeps for the next change would only cost time. It has a new checkout each time:
# the dependencies, half of the build, stay in the cache.
if [ -n "${CI:-}" ]; then
  export CARGO_INCREMENTAL=0 CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$CACHE/target}
  forget_workspace
fi
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

# Live tests use both cores. End-to-end tests mostly wait: builds run in parallel at idle priority.
in_parallel() { tests/env/in-parallel.sh "${make[*]} $1" "${make[*]} $2"; }

stage "1 s, cold 16 min" "set-up" "${make[@]}" setup
stage "13 min, rebuilt 1 min" "build the programs and tests; check-tree.sh" "${make[@]}" lint-tree build-tests
stage "2 min" "unit tests" "${make[@]}" test-unit
stage "16 min" "live tests" "${make[@]}" test-live
stage "16 min" "end-to-end tests; clippy, documentation and fuzz targets in parallel" in_parallel "clippy doc fuzz-targets" e2e
stage "2 min" "fuzzing" "${make[@]}" fuzz

printf '\n=== everything passed in %s\n' "$(duration $SECONDS)"
printf '    %s\n' "${summary[@]}"
