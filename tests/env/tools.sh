#!/usr/bin/env bash
# Cargo subcommands: tools.sh [test]: the test runner unless the machine has one, and the fuzzer; tools.sh release: SBOMs.
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

# Built where the tools go, not in the checkout's target directory: other flags, other lock file.
# Not optimised: a tool waits for the tests it runs, and a cold machine waits for the tool.
# install_tool <expected seconds> <what for> <crate> <version> <flag…>
install_tool() {
  local expected=$1 reason=$2 crate=$3 version=$4
  shift 4
  [ ! -x "$CACHE/cargo/bin/$crate" ] || return 0
  long_step "$expected" "building $crate $version: $reason" env CARGO_TARGET_DIR="$CACHE/cargo/target" \
    CARGO_PROFILE_RELEASE_LTO=off CARGO_PROFILE_RELEASE_OPT_LEVEL=0 CARGO_PROFILE_RELEASE_CODEGEN_UNITS=16 \
    CARGO_PROFILE_RELEASE_DEBUG=0 cargo install --locked --quiet --root "$CACHE/cargo" --version "$version" "$@" "$crate"
  rm -rf "$CACHE/cargo/target"
}

lock_cache
cd "$REPO" # the toolchain is pinned here
if [ "${1:-test}" = release ]; then
  install_tool 90 "writes the SBOMs" cargo-cyclonedx "$CARGO_CYCLONEDX_VERSION"
  exit 0
fi
# Without the part that updates itself, which is most of its dependencies.
cargo nextest --version >/dev/null 2>&1 ||
  install_tool 150 "runs the tests" cargo-nextest "$CARGO_NEXTEST_VERSION" --no-default-features --features default-no-update
install_tool 40 "runs the fuzz targets" cargo-fuzz "$CARGO_FUZZ_VERSION"
