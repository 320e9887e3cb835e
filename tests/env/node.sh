#!/usr/bin/env bash
# What a node of Kubernetes runs pods with: <cache>/node/bin/{containerd,containerd-shim-runc-v2,ctr,runc} and
# the network plugins in <cache>/node/cni. Unpacked, not installed: the machine gets no service from it, and
# one it has already is left alone.
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
. "$ENV_DIR/apt.sh"

SUITE=bookworm
PROGRAMS=(usr/bin/containerd usr/bin/containerd-shim-runc-v2 usr/bin/ctr usr/sbin/runc)
PLUGINS=(bridge host-local loopback)

fill_node() {
  local tree=$1 work=$1/.unpack package file
  say "fetching containerd, runc and network plugins of Debian $SUITE: the node"
  mkdir -p "$work" "$tree/bin" "$tree/cni"
  write_sources "$SUITE"
  quietly apt_of "$SUITE" update
  (cd "$work" && quietly apt_of "$SUITE" download containerd runc containernetworking-plugins)
  for package in "$work"/*.deb; do dpkg -x "$package" "$work/root"; done
  for file in "${PROGRAMS[@]}"; do mv "$work/root/$file" "$tree/bin/"; done
  for file in "${PLUGINS[@]}"; do mv "$work/root/usr/lib/cni/$file" "$tree/cni/"; done
  rm -rf "$work" "$(apt_root "$SUITE")"
}

lock_cache
[ -n "${MAINSTAY_NODE:-}" ] || fill_tree "$CACHE/node" "$SUITE 1" fill_node
