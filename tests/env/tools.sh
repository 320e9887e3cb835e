#!/usr/bin/env bash
# Cargo subcommands: the test runner unless the machine has one, and the fuzzer.
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

# Built where the tools go, not in the checkout's target directory: other flags, other lock file.
# Hardly optimised: a tool waits for the tests it runs, and a cold machine waits for the tool.
install_tool() {
  local crate=$1 version=$2
  [ ! -x "$CACHE/cargo/bin/$crate" ] || return 0
  say "building $crate $version"
  CARGO_TARGET_DIR="$CACHE/cargo/target" CARGO_PROFILE_RELEASE_LTO=off \
    CARGO_PROFILE_RELEASE_OPT_LEVEL=1 CARGO_PROFILE_RELEASE_CODEGEN_UNITS=16 \
    CARGO_PROFILE_RELEASE_DEBUG=0 quietly cargo install --locked --quiet \
    --root "$CACHE/cargo" --version "$version" "$crate"
  rm -rf "$CACHE/cargo/target"
}

lock_cache
cd "$REPO" # the toolchain is pinned here
cargo nextest --version >/dev/null 2>&1 || install_tool cargo-nextest "$CARGO_NEXTEST_VERSION"
install_tool cargo-fuzz "$CARGO_FUZZ_VERSION"
