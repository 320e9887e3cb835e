#!/usr/bin/env bash
# Builds the programs of the checked-out commit for a release and packs them: <target>/release-artifacts/<version>.
# The same commit, toolchain and libraries result in the same bytes, in any directory.
#
#   release.sh             the release
#   release.sh reproduce   the release, twice, in two directories; fails if an artifact differs
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
cd "$REPO"

PROGRAMS=(mainstay-controller mainstay-restorer mainstay-sidecar)
TARGET=$(realpath --canonicalize-missing "${CARGO_TARGET_DIR:-target}")

# The flags of cargo's C and Rust compilers, one a line: no path of this machine is in a program. Panics, debug symbols and
# assertions name /source and /cargo instead. The last rule that matches a path counts.
path_maps() {
  local home=${CARGO_HOME:-$HOME/.cargo} registry
  printf '%s\n' "$REPO=/source" "$TARGET=/source/target" "$home=/cargo"
  # The folder is named after the registry's host: another mirror, the same crates.
  for registry in "$home"/registry/src/*/; do printf '%s\n' "${registry%/}=/cargo/registry"; done
  printf '%s\n' "$(rustc --print sysroot)/lib/rustlib/src/rust=/rustc/$(rustc -vV | sed -n 's/^commit-hash: //p')"
}

# build: the programs with their symbols in <target>/dist.
build() {
  local map rust=() c=()
  cargo fetch --locked --quiet
  while IFS= read -r map; do
    rust+=("--remap-path-prefix=$map")
    c+=("-ffile-prefix-map=$map")
  done < <(path_maps)
  # Encoded, because a path may contain blanks. C flags cannot be encoded.
  CARGO_ENCODED_RUSTFLAGS=$(IFS=$'\x1f' && printf '%s' "${rust[*]}") CFLAGS="${c[*]}" CXXFLAGS="${c[*]}" \
    cargo build --locked --profile dist --bins "${PROGRAMS[@]/#/--package=}"
}

# sboms <directory>: <program>.cdx.json. cargo-cyclonedx writes into the sources, so it gets a copy of them.
sboms() {
  local copy=$1/source program host
  host=$(rustc -vV | sed -n 's/^host: //p')
  mkdir -p "$copy"
  git archive "$COMMIT" | tar -x -C "$copy"
  (cd "$copy" && cargo cyclonedx --quiet --format json --spec-version 1.5 --all --target "$host")
  for program in "${PROGRAMS[@]}"; do
    # The copy stands for the checkout, whose path the packer replaces.
    find "$copy" -name "$program.cdx.json" -exec sed "s#$copy/#$REPO/#g" {} + >"$1/$program.cdx.json"
  done
  rm -rf "$copy"
}

release() {
  local version
  [ -z "$(git status --porcelain)" ] || die "a release is built from a commit, and the checkout has changes: git status"
  COMMIT=$(git rev-parse HEAD)
  SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
  export SOURCE_DATE_EPOCH
  version=$(cargo pkgid --package mainstay-controller)
  version=${version##*[#@]}
  "$ENV_DIR/packages.sh" release
  "$ENV_DIR/helm.sh" 4
  "$ENV_DIR/tools.sh" release
  export PATH="$PATH:$CACHE/cargo/bin"

  say "building ${PROGRAMS[*]} $version of $COMMIT: more than 10 min on two idle cores"
  build
  SCRATCH=$(mktemp -d) # not local: the trap runs outside of this function
  trap 'rm -rf "$SCRATCH"' EXIT
  sboms "$SCRATCH"
  # Without a release profile: it runs once.
  cargo build --locked --quiet --workspace --bin release
  "$TARGET/debug/release" --programs "$TARGET/dist" --sboms "$SCRATCH" --version "$version" --commit "$COMMIT" \
    --toolchain "$(rustc -vV)" --output "$TARGET/release-artifacts/$version"
}

# Two clones: other paths of the sources, of the build, and of the crates' build scripts.
reproduce() {
  local root=$TARGET/release-reproduced name
  rm -rf "$root"
  for name in first/tree second/another/tree; do
    git clone --quiet "$REPO" "$root/$name"
    say "release in $root/$name"
    (cd "$root/$name" && env -u CARGO_TARGET_DIR tests/env/release.sh)
  done
  diff "$root"/first/tree/target/release-artifacts/*/SHA256SUMS "$root"/second/another/tree/target/release-artifacts/*/SHA256SUMS ||
    die "two builds of one commit differ in the artifacts above: compare them with diffoscope in $root"
  say "both builds have the same artifacts"
  rm -rf "$root"
}

case ${1:-} in
  "") release ;;
  reproduce) reproduce ;;
  *) die "release.sh: no '$1'" ;;
esac
