#!/usr/bin/env bash
# Debian packages the machine lacks: packages.sh demo | test | strain | release. Installs only what is missing, refreshes
# the package lists only when an installation fails without that.
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

missing=()
reasons=()

# need <reason> <package…>
need() {
  local reason=$1 package state lacks=()
  shift
  for package in "$@"; do
    state=$(dpkg-query --show --showformat='${db:Status-Status}' "$package" 2>/dev/null || true)
    [ "$state" = installed ] || lacks+=("$package")
  done
  [ ${#lacks[@]} -gt 0 ] || return 0
  missing+=("${lacks[@]}")
  reasons+=("${lacks[*]} ($reason)")
}

need "etcd's gRPC messages" protobuf-compiler libprotobuf-dev
need "the C parts of crates" gcc libc6-dev make
need "the package registries" ca-certificates
need "Helm and the S3 server" python3-venv
[ "${1:-test}" = release ] || need "a Kubernetes node" conntrack iproute2 iptables libseccomp2
case ${1:-test} in
  test) need "libFuzzer, debug symbols of a release" g++ binutils ;;
  release) need "separate debug symbols" binutils ;;
  strain) need "a busy processor" stress-ng ;;
esac
[ ${#missing[@]} -gt 0 ] || exit 0

root=()
if [ "$(id -u)" -ne 0 ]; then
  command -v sudo >/dev/null || die "install these packages as root, then run again: ${missing[*]}"
  root=(sudo)
fi

say "installing Debian packages: $(printf '%s; ' "${reasons[@]}" | sed 's/; $//')"
lock_cache
install=("${root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=300
  install --no-install-recommends --yes "${missing[@]}")
if ! "${install[@]}" >/dev/null 2>&1; then
  say "refreshing the package lists first"
  quietly "${root[@]}" apt-get -qq -o DPkg::Lock::Timeout=300 update
  quietly "${install[@]}"
fi
