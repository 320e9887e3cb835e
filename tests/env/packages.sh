#!/usr/bin/env bash
# Debian packages the build needs. Installs only what is missing, refreshes the package lists only
# when an installation fails without that.
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

# protobuf-compiler and libprotobuf-dev: etcd's gRPC messages, and those they are built on; g++: libFuzzer; python3-venv: the store emulators;
# dpkg-dev, jq and rsync: unpacking and building Kubernetes; conntrack, iproute2, iptables and libseccomp2:
# a node of it.
PACKAGES=(ca-certificates conntrack dpkg-dev g++ gcc iproute2 iptables jq libc6-dev libprotobuf-dev libseccomp2
  make protobuf-compiler python3-venv rsync)

missing=()
for package in "${PACKAGES[@]}"; do
  state=$(dpkg-query --show --showformat='${db:Status-Status}' "$package" 2>/dev/null || true)
  [ "$state" = installed ] || missing+=("$package")
done
[ ${#missing[@]} -gt 0 ] || exit 0

root=()
if [ "$(id -u)" -ne 0 ]; then
  command -v sudo >/dev/null || die "install these packages as root, then run again: ${missing[*]}"
  root=(sudo)
fi

say "installing packages: ${missing[*]}"
lock_cache
install=("${root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=300
  install --no-install-recommends --yes "${missing[@]}")
if ! "${install[@]}" >/dev/null 2>&1; then
  say "refreshing the package lists first"
  quietly "${root[@]}" apt-get -qq -o DPkg::Lock::Timeout=300 update
  quietly "${install[@]}"
fi
