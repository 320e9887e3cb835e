#!/usr/bin/env bash
# kubernetes-validate, which checks manifests against the schemas of every Kubernetes without one:
# <cache>/kubernetes-validate/bin/kubernetes-validate.
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

KUBERNETES_VALIDATE_VERSION=1.37.0

fill_validate() {
  say "installing kubernetes-validate $KUBERNETES_VALIDATE_VERSION: the tests of manifests (about 30 s)"
  quietly python3 -m venv "$1"
  quietly "$1/bin/python" -m pip install --quiet --disable-pip-version-check \
    "kubernetes-validate==$KUBERNETES_VALIDATE_VERSION"
}

lock_cache
[ -n "${MAINSTAY_KUBERNETES_VALIDATE:-}" ] ||
  fill_tree "$CACHE/kubernetes-validate" "$KUBERNETES_VALIDATE_VERSION" fill_validate
