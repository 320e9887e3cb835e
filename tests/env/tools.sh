#!/usr/bin/env bash
# Cargo subcommands: the test runner unless the machine has one, and the fuzzer.
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

# Built where the tools go, not in the checkout's target directory: other flags, other lock file.
install_tool() {
  local crate=$1 version=$2
  [ ! -x "$CACHE/cargo/bin/$crate" ] || return 0
  say "building $crate $version"
  CARGO_TARGET_DIR="$CACHE/cargo/target" quietly cargo install --locked --quiet \
    --root "$CACHE/cargo" --version "$version" "$crate"
  rm -rf "$CACHE/cargo/target"
}

lock_cache
cd "$REPO" # the toolchain is pinned here
cargo nextest --version >/dev/null 2>&1 || install_tool cargo-nextest "$CARGO_NEXTEST_VERSION"
install_tool cargo-fuzz "$CARGO_FUZZ_VERSION"
