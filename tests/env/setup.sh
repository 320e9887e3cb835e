#!/usr/bin/env bash
# Gets what a command needs onto a fresh Debian machine, from package registries only, and writes <cache>/env, the
# variables that name it. Running it again costs a second.
#
#   setup.sh demo     what `make demo` shows: Kubernetes, a node, one etcd, an S3 server, Helm
#   setup.sh test     that, and what `make test` needs: older etcds, emulators, linters, the test runner, the fuzzer
#
#   STEWARD_CACHE                    where to keep it all
#   STEWARD_ETCD_3_4, _3_5, _3_5_NEW directories of your own etcd binaries, used instead
#   STEWARD_WEED, STEWARD_AZURITE, STEWARD_GCS_EMULATOR   the same for the stores
#   STEWARD_PROMTOOL                 the same for promtool
#   STEWARD_HELM, STEWARD_HELM_3     the same for Helm 4 and Helm 3
#   STEWARD_KUBERNETES_VALIDATE      the same for kubernetes-validate
#   STEWARD_KUBERNETES               a directory of your own kube-apiserver, kubelet, kubectl and so on
#   STEWARD_NODE                     a directory with bin/ (containerd, ctr, runc, the shim) and cni/ (plugins)
#   STEWARD_REFRESH=1                look for newer etcd packages
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

purpose=${1:-test}
case $purpose in demo | test) ;; *) die "setup.sh: the purpose is demo or test, not '$purpose'" ;; esac

# Rust is the one thing no registry above has: everything else is fetched.
command -v cargo >/dev/null || die "cargo is not installed: install Rust with rustup, then run this again"

lock_cache
"$ENV_DIR/packages.sh" "$purpose"

# Downloads wait for the network, so they run beside the one long build.
fetch_demo() {
  "$ENV_DIR/etcd.sh" 3.5-new
  "$ENV_DIR/stores.sh" weed
  "$ENV_DIR/helm.sh" 4
  "$ENV_DIR/node.sh"
}
fetch_test() {
  "$ENV_DIR/etcd.sh" 3.4 3.5 3.5-new
  "$ENV_DIR/stores.sh" weed gcs azurite
  "$ENV_DIR/helm.sh" 4 3
  "$ENV_DIR/promtool.sh"
  "$ENV_DIR/validate.sh"
  "$ENV_DIR/node.sh"
}
rm -rf "$CACHE/apt" # of a set-up that was killed
together "fetch_$purpose" -- "$ENV_DIR/kubernetes.sh"
[ "$purpose" = demo ] || "$ENV_DIR/tools.sh"

# A variable the developer set wins, when this file is read as well as when it was written.
cat >"$CACHE/env.new" <<VARIABLES
export STEWARD_ETCD_3_4="\${STEWARD_ETCD_3_4:-$CACHE/etcd/3.4}"
export STEWARD_ETCD_3_5="\${STEWARD_ETCD_3_5:-$CACHE/etcd/3.5}"
export STEWARD_ETCD_3_5_NEW="\${STEWARD_ETCD_3_5_NEW:-$CACHE/etcd/3.5-new}"
export STEWARD_KUBERNETES="\${STEWARD_KUBERNETES:-$CACHE/kubernetes/current/bin}"
export STEWARD_NODE="\${STEWARD_NODE:-$CACHE/node}"
export STEWARD_WEED="\${STEWARD_WEED:-$CACHE/stores/weed/bin/weed}"
export STEWARD_AZURITE="\${STEWARD_AZURITE:-$CACHE/stores/azurite/azurite}"
export STEWARD_GCS_EMULATOR="\${STEWARD_GCS_EMULATOR:-$CACHE/stores/gcs/bin/gcp-storage-emulator}"
export STEWARD_PROMTOOL="\${STEWARD_PROMTOOL:-$CACHE/promtool/promtool}"
export STEWARD_HELM="\${STEWARD_HELM:-$CACHE/helm/4/helm}"
export STEWARD_KUBERNETES_VALIDATE="\${STEWARD_KUBERNETES_VALIDATE:-$CACHE/kubernetes-validate/bin/kubernetes-validate}"
export STEWARD_HELM_3="\${STEWARD_HELM_3:-$CACHE/helm/3/helm}"
case ":\$PATH:" in *":$CACHE/cargo/bin:"*) ;; *) export PATH="\$PATH:$CACHE/cargo/bin" ;; esac
VARIABLES
mv "$CACHE/env.new" "$CACHE/env"

. "$CACHE/env"
check() {
  local directory=$1 program
  shift
  for program in "$@"; do
    [ -x "$directory/$program" ] || die "set-up is incomplete: $directory holds no $program"
  done
}
check "$STEWARD_KUBERNETES" kube-apiserver kube-controller-manager kube-scheduler kubelet kube-proxy kubectl
check "$STEWARD_NODE/bin" containerd ctr runc
check "$STEWARD_ETCD_3_5_NEW" etcd etcdctl
check "" "$STEWARD_WEED" "$STEWARD_HELM"
if [ "$purpose" = test ]; then
  check "$STEWARD_ETCD_3_4" etcd etcdctl
  check "$STEWARD_ETCD_3_5" etcd etcdctl
  check "" "$STEWARD_AZURITE" "$STEWARD_GCS_EMULATOR" "$STEWARD_PROMTOOL" "$STEWARD_HELM_3" \
    "$STEWARD_KUBERNETES_VALIDATE"
fi
say "ready in $CACHE"
