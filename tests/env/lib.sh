# shellcheck shell=bash
# What every script of this folder shares: where the cache is, how progress is reported, how a step is
# made safe to repeat. Source it; it runs nothing by itself.
#
# The cache lies outside the checkout, so a clean clone reuses it. Every part of it is either
# complete or absent: files arrive under a temporary name and are renamed, trees that cannot be
# renamed (a Python environment knows its own path) carry a stamp that is written last.

set -euo pipefail
shopt -s inherit_errexit # a failure inside $(…) counts too

ENV_DIR=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
REPO=$(cd "$ENV_DIR/../.." && pwd)
CACHE=${MAINSTAY_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/etcd-mainstay}

# Pinned, so that every machine runs the same servers. etcd is not pinned: Debian's suites are.
SEAWEEDFS_VERSION=4.48
GCS_EMULATOR_VERSION=2026.7.19
NODE_VERSION=22.20.0
AZURITE_VERSION=3.35.0
CARGO_CYCLONEDX_VERSION=0.5.9
CARGO_NEXTEST_VERSION=0.9.151
CARGO_FUZZ_VERSION=0.13.2

say() { printf 'env: %s\n' "$*" >&2; }

die() {
  printf 'env: %s\n' "$*" >&2
  exit 1
}

# duration <seconds>: 45 s, 3 min 20 s.
duration() {
  if [ "$1" -lt 60 ]; then printf '%s s' "$1"; else printf '%s min %s s' $(($1 / 60)) $(($1 % 60)); fi
}

# long_step <expected seconds> <title> <command…>: runs a command that takes a while. Prints what begins and how long
# it usually takes on two idle cores, a line every half minute while it runs, and the time it took. Shows the
# command's output only when it fails.
long_step() {
  local expected=$1 title=$2 start=$SECONDS status=0 ticks
  shift 2
  say "$title: about $(duration "$expected")"
  # The reader ends when this shell closes the pipe, also when it is killed.
  exec {ticks}> >(while read -r -t 30 || [ $? -gt 128 ]; do
    say "$title: $(duration $((SECONDS - start))) of about $(duration "$expected")"
  done)
  # In a subshell, because `quietly` ends the shell it runs in.
  (quietly "$@") || status=$?
  exec {ticks}>&-
  [ "$status" -eq 0 ] || exit "$status"
  say "$title: done in $(duration $((SECONDS - start)))"
}

# together <command…> -- <command…>: runs commands at the same time, waits for all, fails if one fails.
together() {
  local running=() command=() word status=0
  for word in "$@" --; do
    if [ "$word" != -- ]; then
      command+=("$word")
    elif [ ${#command[@]} -gt 0 ]; then
      "${command[@]}" &
      running+=($!)
      command=()
    fi
  done
  for word in "${running[@]}"; do wait "$word" || status=$?; done
  return "$status"
}

# Runs a command, shows its output only when it fails.
quietly() {
  local log
  log=$(mktemp "$CACHE/log.XXXXXX")
  if ! "$@" >"$log" 2>&1; then
    cat "$log" >&2
    rm -f "$log"
    die "failed: $*"
  fi
  rm -f "$log"
}

# Holds the cache for the rest of this script. A second run waits; the kernel releases the lock of a killed run.
# A script called by the holder is part of the same run.
lock_cache() {
  [ "${MAINSTAY_CACHE_HELD:-}" != "$CACHE" ] || return 0
  mkdir -p "$CACHE"
  exec 9>"$CACHE/.lock"
  if ! flock --nonblock 9; then
    say "another set-up is running, waiting for it"
    flock 9
  fi
  export MAINSTAY_CACHE_HELD=$CACHE
}

# fill_tree <directory> <stamp text> <function>: calls the function to fill an empty directory,
# unless an earlier call with the same stamp finished.
fill_tree() {
  local tree=$1 stamp=$2 fill=$3
  [ "$(cat "$tree/.complete" 2>/dev/null)" != "$stamp" ] || return 0
  rm -rf "$tree"
  mkdir -p "$tree"
  "$fill" "$tree"
  printf '%s\n' "$stamp" >"$tree/.complete"
}
