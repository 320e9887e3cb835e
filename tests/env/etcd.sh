#!/usr/bin/env bash
# etcd of the named releases (etcd.sh 3.4 3.5 3.5-new 3.6 3.7): <cache>/etcd/<version>/{etcd,etcdctl[,etcdutl]} and a link per
# release, <cache>/etcd/{3.4,3.5,3.5-new,3.6,3.7}.
#
# The older ones are unpacked from Debian's packages without installing them; what their links point at moves when the
# suites do and MAINSTAY_REFRESH=1 asks to look again. 3.6 and 3.7 are built from Go modules (go/etcd-*).
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
. "$ENV_DIR/apt.sh"
. "$ENV_DIR/go.sh"

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

link_release() {
  ln -sfn "$2" "$CACHE/etcd/$1.new"
  mv -T "$CACHE/etcd/$1.new" "$CACHE/etcd/$1"
}

take_packaged() {
  local release=$1 suite=$2 work version
  [ "${MAINSTAY_REFRESH:-0}" = 1 ] || [ ! -x "$CACHE/etcd/$release/etcdctl" ] || return 0
  say "fetching etcd of Debian $suite: the members"
  work=$(mktemp -d "$CACHE/etcd/.unpack.XXXXXX")
  write_sources "$suite"
  quietly apt_of "$suite" update
  version=$(unpack "$suite" "$work")
  link_release "$release" "$version"
  rm -rf "$work" "$(apt_root "$suite")"
  say "etcd $release is $version"
}

# The server's module gives its binary the name of its last folder.
build() {
  local tree=$1 release=$2
  GOBIN= run_go "etcd-$release" build -ldflags '-s -w' -o "$tree/" tool
  mv "$tree/server" "$tree/etcd"
}

fill_built() {
  find_go
  long_step 60 "building etcd $version: the members" build "$1" "$release"
}

take_built() {
  local release=$1 version
  version=$(module_version "etcd-$release" go.etcd.io/etcd/server/v3)
  fill_tree "$CACHE/etcd/$version" 1 fill_built
  link_release "$release" "$version"
}

lock_cache
mkdir -p "$CACHE/etcd"
rm -rf "$CACHE"/etcd/.unpack.*
for release in "$@"; do
  variable=MAINSTAY_ETCD_$(printf '%s' "$release" | tr '.a-z-' '_A-Z_')
  [ -z "${!variable:-}" ] || continue
  case $release in
    3.4) take_packaged "$release" bookworm ;;
    3.5) take_packaged "$release" trixie ;;
    3.5-new) take_packaged "$release" sid ;;
    3.6 | 3.7) take_built "$release" ;;
    *) die "etcd.sh: no etcd '$release'" ;;
  esac
done
