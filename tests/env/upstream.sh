#!/usr/bin/env bash
# The programs that this project replaces, built from their Go modules (upstream.sh etcd-backup-restore etcd-druid):
# <cache>/upstream/etcd-backup-restore/etcdbrctl; <cache>/upstream/etcd-druid/{etcd-druid,crds}.
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

# The binary gets the name of the last folder of its package, which is cmd.
build_etcd_druid() {
  local module
  run_go etcd-druid build -ldflags '-s -w' -o "$1/" tool
  mv "$1/cmd" "$1/etcd-druid"
  module=$(run_go etcd-druid list -m -f '{{.Dir}}' github.com/gardener/etcd-druid)
  cp -r "$module/charts/crds" "$1/crds"
  chmod -R u+w "$1/crds"
}

fill_etcd_druid() {
  find_go
  long_step 90 "building etcd-druid $version: CRDs of both are compared" build_etcd_druid "$1"
}

provide() {
  local version
  case $1 in
    etcd-backup-restore)
      [ -z "${MAINSTAY_ETCDBRCTL:-}" ] || return 0
      version=$(module_version "$1" github.com/gardener/etcd-backup-restore)
      fill_tree "$CACHE/upstream/$1" "$version 1" fill_etcdbrctl
      ;;
    etcd-druid)
      [ -z "${MAINSTAY_ETCD_DRUID:-}" ] || return 0
      version=$(module_version "$1" github.com/gardener/etcd-druid)
      fill_tree "$CACHE/upstream/$1" "$version 1" fill_etcd_druid
      ;;
    *) die "upstream.sh: no program '$1'" ;;
  esac
}

lock_cache
for program in "$@"; do provide "$program"; done
