#!/usr/bin/env bash
# Kubernetes: <cache>/kubernetes/current/bin holds the programs of PROGRAMS.
#
# The machine's own, from KUBEBUILDER_ASSETS or PATH, when it has them all. Otherwise those of Debian
# bookworm: kubectl from its package, the rest built from the source package, which carries every
# dependency, with the Go of the same suite. No registry has the servers ready-made. Building takes about
# six minutes on two idle cores and happens once per machine.
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
. "$ENV_DIR/apt.sh"

SUITE=bookworm
GO=golang-1.19
BUILT=(kube-apiserver kube-controller-manager kube-scheduler kubelet kube-proxy)
PROGRAMS=("${BUILT[@]}" kubectl)
HOME_OF_ALL=$CACHE/kubernetes

# Counts the ways these programs were made. A cache filled another way is filled anew.
RECIPE=2

is_complete() {
  local program
  for program in "${PROGRAMS[@]}"; do [ -x "$1/bin/$program" ] || return 1; done
}

is_current() {
  [ "$(cat "$HOME_OF_ALL/current/recipe" 2>/dev/null)" = "$RECIPE" ] && is_complete "$HOME_OF_ALL/current"
}

# use <name>: makes this directory the current one and deletes the others.
use() {
  printf '%s\n' "$RECIPE" >"$HOME_OF_ALL/$1/recipe"
  ln -sfn "$1" "$HOME_OF_ALL/current.new"
  mv -T "$HOME_OF_ALL/current.new" "$HOME_OF_ALL/current"
  find "$HOME_OF_ALL" -mindepth 1 -maxdepth 1 -type d ! -name "$1" ! -name '.build.*' -exec rm -rf {} +
}

# Links to the machine's own programs, when none is missing.
take_found() {
  local program path links=$HOME_OF_ALL/found
  rm -rf "$links"
  mkdir -p "$links/bin"
  for program in "${PROGRAMS[@]}"; do
    path=${KUBEBUILDER_ASSETS:-}/$program
    [ -n "${KUBEBUILDER_ASSETS:-}" ] && [ -x "$path" ] || path=$(command -v "$program") || return 1
    ln -s "$(realpath "$path")" "$links/bin/$program"
  done
  use found
}

fetch() {
  local work=$1 package
  say "fetching Kubernetes and Go of Debian $SUITE: the test cluster (about 30 s)"
  write_sources "$SUITE" "deb deb-src"
  quietly apt_of "$SUITE" update
  (cd "$work" && quietly apt_of "$SUITE" download "$GO-go" "$GO-src" \
    kubernetes-client golang-github-modern-go-reflect2-dev)
  (cd "$work" && quietly apt_of "$SUITE" source --download-only kubernetes)
  for package in "$work"/*.deb; do dpkg -x "$package" "$work/root"; done
  quietly dpkg-source --extract "$work"/kubernetes_*.dsc "$work/source"
  rm -rf "$(apt_root "$SUITE")"
}

# The upstream version of a source package: 1.20.2, also when Debian calls it 1.20.5+really1.20.2-1.1.
version_of() {
  sed -n 's/^Version: //p' "$1" | head -n 1 | sed -E 's/^.*\+really//; s/^([0-9.]+).*/\1/'
}

# The sources carry no git history to take the version from, and a server without one calls itself 0.0.0.
write_version() {
  local version=$1 file=$2 major minor
  IFS=. read -r major minor _ <<<"$version"
  printf "%s='%s'\n" KUBE_GIT_VERSION "v$version" KUBE_GIT_MAJOR "$major" KUBE_GIT_MINOR "$minor" \
    KUBE_GIT_TREE_STATE clean KUBE_GIT_COMMIT "debian-$version" >"$file"
}

# The copy of reflect2 among the sources reads the internals of maps as they were before Go 1.18: with a newer
# Go the API server crashes on the first custom resource. The suite's own package of it is new enough.
fix_reflect2() {
  local work=$1 copy=$1/source/vendor/github.com/modern-go/reflect2
  rm -f "$copy"/*.go "$copy"/*.s
  cp "$work/root/usr/share/gocode/src/github.com/modern-go/reflect2/"*.{go,s} "$copy/"
}

# build <work>: leaves the programs in <work>/source/_output/bin. All of them in one go and all with cgo, as
# the kubelet is anyway: a second mode would compile nearly every package a second time. Flags of a calling
# make must not reach this one.
build() {
  local work=$1 go=$1/root/usr/lib/${GO/golang/go}
  env -u MAKEFLAGS -u MFLAGS -u MAKELEVEL -u GOPATH -u GOFLAGS \
    GOROOT="$go" PATH="$go/bin:$PATH" GOCACHE="$work/go-cache" HOME="$work" \
    KUBE_GIT_VERSION_FILE="$work/version" KUBE_CGO_OVERRIDES="${BUILT[*]}" GOLDFLAGS="-s -w" \
    make --no-print-directory -C "$work/source" WHAT="${BUILT[*]/#/cmd/}"
}

provide() {
  local work version name
  work=$(mktemp -d "$HOME_OF_ALL/.build.XXXXXX")
  fetch "$work"
  version=$(version_of "$work"/kubernetes_*.dsc)
  [ -n "$version" ] || die "the source package of Kubernetes has no version"
  write_version "$version" "$work/version"
  fix_reflect2 "$work"
  long_step 400 "building Kubernetes $version (API server, controllers, scheduler, kubelet, proxy)" build "$work"
  mkdir -p "$work/result/bin"
  mv "$work"/source/_output/bin/kube* "$work/root/usr/bin/kubectl" "$work/result/bin/"
  is_complete "$work/result" || die "the build of Kubernetes $version left a program out"
  name=$version-$RECIPE
  rm -rf "${HOME_OF_ALL:?}/$name"
  mv "$work/result" "$HOME_OF_ALL/$name"
  use "$name"
  rm -rf "$work"
  say "Kubernetes is $version"
}

lock_cache
mkdir -p "$HOME_OF_ALL"
rm -rf "$HOME_OF_ALL"/.build.*
[ -n "${MAINSTAY_KUBERNETES:-}" ] || is_current || take_found || provide
