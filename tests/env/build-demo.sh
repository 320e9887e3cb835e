#!/usr/bin/env bash
# Builds what `make demo` runs, and nothing else. Says how long that takes when it takes long.
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

cd "$REPO"
mkdir -p "$CACHE"
build=(cargo build --workspace)
for program in cluster demo mainstay-controller mainstay-restorer mainstay-sidecar; do build+=(--bin "$program"); done

if [ -x "${CARGO_TARGET_DIR:-target}/debug/demo" ]; then
  say "building the programs (what changed since the last time)"
  "${build[@]}" --quiet
else
  long_step 240 "building the programs" "${build[@]}"
fi
