#!/usr/bin/env bash
# etcd of up to three ages (etcd.sh 3.4 3.5 3.5-new), unpacked from Debian's packages without installing them:
# <cache>/etcd/<version>/{etcd,etcdctl[,etcdutl]} and a link per age, <cache>/etcd/{3.4,3.5,3.5-new}.
#
# What the links point at moves when the suites do and MAINSTAY_REFRESH=1 asks to look again.
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
. "$ENV_DIR/apt.sh"

# Leaves the unpacked binaries under their version, whatever part of it was there before.
unpack() {
  local suite=$1 work=$2 version
  (cd "$work" && quietly apt_of "$suite" download etcd-server etcd-client)
  for package in "$work"/*.deb; do dpkg -x "$package" "$work/root"; done
  version=$("$work/root/usr/bin/etcd" --version | awk '/^etcd Version:/ { print $3 }')
  [ -n "$version" ] || die "the etcd of $suite has no version"
  mkdir -p "$work/bin"
  for program in etcd etcdctl etcdutl; do
    [ ! -e "$work/root/usr/bin/$program" ] || mv "$work/root/usr/bin/$program" "$work/bin/"
  done
  rm -rf "$CACHE/etcd/$version"
  mv "$work/bin" "$CACHE/etcd/$version"
  printf '%s\n' "$version"
}

provide() {
  local age=$1 suite=$2 link=$CACHE/etcd/$1 work version
  [ "${MAINSTAY_REFRESH:-0}" = 1 ] || [ ! -x "$link/etcdctl" ] || return 0
  say "fetching etcd of Debian $suite: the members"
  work=$(mktemp -d "$CACHE/etcd/.unpack.XXXXXX")
  write_sources "$suite"
  quietly apt_of "$suite" update
  version=$(unpack "$suite" "$work")
  ln -sfn "$version" "$link.new"
  mv -T "$link.new" "$link"
  rm -rf "$work" "$(apt_root "$suite")"
  say "etcd $age is $version"
}

lock_cache
mkdir -p "$CACHE/etcd"
rm -rf "$CACHE"/etcd/.unpack.*
for age in "$@"; do
  case $age in
    3.4) [ -n "${MAINSTAY_ETCD_3_4:-}" ] || provide "$age" bookworm ;;
    3.5) [ -n "${MAINSTAY_ETCD_3_5:-}" ] || provide "$age" trixie ;;
    3.5-new) [ -n "${MAINSTAY_ETCD_3_5_NEW:-}" ] || provide "$age" sid ;;
    *) die "etcd.sh: no etcd '$age'" ;;
  esac
done
