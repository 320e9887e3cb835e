#!/usr/bin/env bash
# Kubernetes: kubernetes.sh [1.36 | 1.30] fills <cache>/kubernetes/<minor>/bin; <cache>/kubernetes/current is the newest.
#
# Built from the Go module k8s.io/kubernetes, because no registry has the servers ready-made. All programs are one binary (see
# go/kubernetes-*/main.go), once per machine. 1.36 has every program of a cluster and may be the machine's own, from
# KUBEBUILDER_ASSETS or PATH. 1.30, the oldest supported, has the API server and its controllers only.
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
. "$ENV_DIR/go.sh"

NEWEST=1.36
minor=${1:-$NEWEST}
case $minor in
  1.36) PROGRAMS=(kube-apiserver kube-controller-manager kube-scheduler kubelet kube-proxy kubectl) ;;
  1.30) PROGRAMS=(kube-apiserver kube-controller-manager) ;;
  *) die "kubernetes.sh: no Kubernetes '$minor'; there are 1.36 and 1.30" ;;
esac
module=kubernetes-$minor
version=$(module_version "$module" k8s.io/kubernetes)

# Links to the machine's own programs, when none is missing.
take_found() {
  local tree=$CACHE/kubernetes/found program path
  [ "$minor" = "$NEWEST" ] || return 1
  rm -rf "$tree"
  mkdir -p "$tree/bin"
  for program in "${PROGRAMS[@]}"; do
    path=${KUBEBUILDER_ASSETS:-}/$program
    [ -n "${KUBEBUILDER_ASSETS:-}" ] && [ -x "$path" ] || path=$(command -v "$program") || return 1
    ln -s "$(realpath "$path")" "$tree/bin/$program"
  done
  make_current found
}

make_current() {
  ln -sfn "$1" "$CACHE/kubernetes/current.new"
  mv -T "$CACHE/kubernetes/current.new" "$CACHE/kubernetes/current"
}

# Without these a server calls itself 0.0.0.
version_flags() {
  local package
  for package in k8s.io/component-base/version k8s.io/client-go/pkg/version; do
    printf -- '-X %s.gitVersion=v%s -X %s.gitMajor=%s -X %s.gitMinor=%s -X %s.gitTreeState=clean ' \
      "$package" "$version" "$package" "${minor%.*}" "$package" "${minor#*.}" "$package"
  done
}

build() {
  local tree=$1 program
  mkdir -p "$tree/bin"
  run_go "$module" mod download
  run_go "$module" build -ldflags "-s -w $(version_flags)" -o "$tree/bin/kubernetes" .
  for program in "${PROGRAMS[@]}"; do ln -s kubernetes "$tree/bin/$program"; done
}

fill_kubernetes() {
  find_go
  long_step 420 "building Kubernetes $version: the test cluster" build "$1"
}

lock_cache
[ -z "${MAINSTAY_KUBERNETES:-}" ] || exit 0
mkdir -p "$CACHE/kubernetes"
take_found && exit 0
rm -rf "$CACHE/kubernetes/found"
fill_tree "$CACHE/kubernetes/$minor" "$version 1" fill_kubernetes
[ "$minor" != "$NEWEST" ] || make_current "$minor"
