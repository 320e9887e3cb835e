#!/usr/bin/env bash
# promtool, which checks metrics and alert rules, unpacked from Debian's package:
# <cache>/promtool/promtool.
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
. "$ENV_DIR/apt.sh"

SUITE=trixie

fill_promtool() {
  local tree=$1
  say "fetching promtool of Debian $SUITE: the tests of metrics and alerts"
  write_sources "$SUITE"
  quietly apt_of "$SUITE" update
  (cd "$tree" && quietly apt_of "$SUITE" download promtool)
  dpkg -x "$tree"/*.deb "$tree/root"
  mv "$tree/root/usr/bin/promtool" "$tree/promtool"
  rm -rf "$tree/root" "$tree"/*.deb "$(apt_root "$SUITE")"
  quietly "$tree/promtool" --version
}

lock_cache
[ -n "${MAINSTAY_PROMTOOL:-}" ] || fill_tree "$CACHE/promtool" "$SUITE" fill_promtool
