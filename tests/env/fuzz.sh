#!/usr/bin/env bash
# Runs fuzz targets one after another, FUZZ_SECONDS each, on the pinned stable toolchain.
#
#   fuzz.sh <target>…
#
# Without a target, all of them are built and none is run.
#
# Coverage feedback needs only stable compiler flags; sanitizers would need a nightly, and without
# `unsafe` there is little for them to find. New inputs go to the build directory, never into
# the checkout; the seeds of fuzz/corpus/<target>, where there are some, are only read.
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

cd "$REPO"
target_dir=${CARGO_TARGET_DIR:-$REPO/fuzz/target}
# A fuzzed decoder must not take memory in proportion to a claim: 1 GiB and the run fails.
limits=(-max_total_time="${FUZZ_SECONDS:-10}" -rss_limit_mb=1024 -timeout=10 -print_final_stats=0
  -verbosity=0)

say "building fuzz targets"
quietly cargo fuzz build --sanitizer none --target-dir "$target_dir/fuzz"
for target in "$@"; do
  say "fuzzing $target for ${FUZZ_SECONDS:-10} s"
  found=$target_dir/fuzz/corpus/$target
  mkdir -p "$found" "$target_dir/fuzz/artifacts/$target"
  corpora=("$found")
  [ ! -d "fuzz/corpus/$target" ] || corpora+=("fuzz/corpus/$target")
  cargo fuzz run --sanitizer none --target-dir "$target_dir/fuzz" "$target" "${corpora[@]}" -- \
    "${limits[@]}" -artifact_prefix="$target_dir/fuzz/artifacts/$target/"
done
