#!/usr/bin/env bash
# The programs that this project replaces, built from their Go modules (upstream.sh etcd-backup-restore):
# <cache>/upstream/etcd-backup-restore/etcdbrctl.
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
. "$ENV_DIR/go.sh"

build_etcdbrctl() {
  run_go etcd-backup-restore build -ldflags '-s -w' -o "$1/" tool
  mv "$1/etcd-backup-restore" "$1/etcdbrctl"
}

fill_etcdbrctl() {
  find_go
  long_step 160 "building etcd-backup-restore $version: buckets of both are compared" build_etcdbrctl "$1"
}

provide() {
  local version
  case $1 in
    etcd-backup-restore)
      [ -z "${MAINSTAY_ETCDBRCTL:-}" ] || return 0
      version=$(module_version "$1" github.com/gardener/etcd-backup-restore)
      fill_tree "$CACHE/upstream/$1" "$version 1" fill_etcdbrctl
      ;;
    *) die "upstream.sh: no program '$1'" ;;
  esac
}

lock_cache
for program in "$@"; do provide "$program"; done
