{{/* Name of all objects of this release. */}}
{{- define "etcd-mainstay.name" -}}
{{- if contains .Chart.Name .Release.Name -}}
{{- .Release.Name | trunc 52 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name .Chart.Name | trunc 52 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "etcd-mainstay.selectorLabels" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: controller
{{- end -}}

{{- define "etcd-mainstay.labels" -}}
{{ include "etcd-mainstay.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end -}}

{{/* registry/repository:tag@digest. A tag replaces the digest, which belongs to the version of the chart. */}}
{{- define "etcd-mainstay.image" -}}
{{- with .root.Values.registry }}{{ . }}/{{ end -}}
{{- printf "%s:%s" .image.repository (.image.tag | default .root.Chart.AppVersion) -}}
{{- if and .image.digest (not .image.tag) }}@{{ .image.digest }}{{ end -}}
{{- end -}}

{{- define "etcd-mainstay.port" -}}
{{- dig "server" "metrics" "port" 8080 .Values.operatorConfig | int -}}
{{- end -}}

{{- define "etcd-mainstay.electionLease" -}}
{{- dig "leaderElection" "resourceName" "druid-leader-election" .Values.operatorConfig -}}
{{- end -}}

{{/* Log settings. etcd-druid's chart calls them logConfiguration. */}}
{{- define "etcd-mainstay.logging" -}}
{{- $logging := .Values.operatorConfig.logging | default dict | deepCopy -}}
{{- mergeOverwrite $logging (.Values.operatorConfig.logConfiguration | default dict) | toYaml -}}
{{- end -}}

{{/* A flag with its value. Nothing if the value is empty or extraArgs sets the flag. */}}
{{- define "etcd-mainstay.flag" -}}
{{- $given := printf "--%s" .flag -}}
{{- $is_given := false -}}
{{- range .root.Values.extraArgs -}}
{{- if or (eq . $given) (hasPrefix (printf "%s=" $given) .) }}{{ $is_given = true }}{{ end -}}
{{- end -}}
{{- if and (ne (toString .value) "") (not $is_given) }}
- {{ printf "%s=%v" $given .value | quote }}
{{- end -}}
{{- end -}}

{{/* operatorConfig as flags, as far as flags exist. */}}
{{- define "etcd-mainstay.flags" -}}
{{- $config := .Values.operatorConfig -}}
{{- $etcd := dig "controllers" "etcd" dict $config -}}
{{- $compaction := dig "controllers" "compaction" dict $config -}}
{{- $flags := list
  (list "enable-leader-election" (dig "leaderElection" "enabled" false $config))
  (list "leader-election-id" (include "etcd-mainstay.electionLease" .))
  (list "metrics-bind-address" (dig "server" "metrics" "bindAddress" "" $config))
  (list "metrics-port" (include "etcd-mainstay.port" .))
  (list "etcd-workers" (dig "concurrentSyncs" "" $etcd))
  (list "enable-etcd-spec-auto-reconcile" (dig "enableEtcdSpecAutoReconcile" false $etcd))
  (list "disable-etcd-serviceaccount-automount" (dig "disableEtcdServiceAccountAutomount" false $etcd))
  (list "etcd-member-notready-threshold" (dig "etcdMember" "notReadyThreshold" "" $etcd))
  (list "etcd-member-unknown-threshold" (dig "etcdMember" "unknownThreshold" "" $etcd))
  (list "enable-backup-compaction" (dig "enabled" true $compaction))
  (list "etcd-events-threshold" (dig "eventsThreshold" 1000000 $compaction | int64))
  (list "active-deadline-duration" (dig "activeDeadlineDuration" "" $compaction))
  (list "metrics-scrape-wait-duration" (dig "metricsScrapeWaitDuration" "" $compaction))
-}}
{{- range $flags -}}
{{- include "etcd-mainstay.flag" (dict "flag" (first .) "value" (last .) "root" $) -}}
{{- end -}}
{{- end -}}

{{/* Rights of the controller in the namespaces it reconciles. Server-side apply needs create and patch. */}}
{{- define "etcd-mainstay.rules" -}}
# The controller patches metadata and never the spec.
- apiGroups: [druid.gardener.cloud]
  resources: [etcds]
  verbs: [get, list, watch, patch]
# Finished tasks are deleted after ttlSecondsAfterFinished.
- apiGroups: [druid.gardener.cloud]
  resources: [etcdcopybackupstasks, etcdopstasks]
  verbs: [get, list, watch, patch, delete]
- apiGroups: [druid.gardener.cloud]
  resources: [etcds/status, etcdcopybackupstasks/status, etcdopstasks/status]
  verbs: [get, patch]
# Needed for blockOwnerDeletion if the admission plugin OwnerReferencesPermissionEnforcement is enabled.
- apiGroups: [druid.gardener.cloud]
  resources: [etcds/finalizers, etcdcopybackupstasks/finalizers, etcdopstasks/finalizers]
  verbs: [update]
# Objects of a cluster.
- apiGroups: [""]
  resources: [serviceaccounts, services, configmaps]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [apps]
  resources: [statefulsets]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [policy]
  resources: [poddisruptionbudgets]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [batch]
  resources: [jobs]
  verbs: [get, list, watch, create, patch, delete]
# Members need update. The controller can only grant rights that it has itself.
- apiGroups: [coordination.k8s.io]
  resources: [leases]
  verbs: [get, list, watch, create, patch, update, delete]
- apiGroups: [rbac.authorization.k8s.io]
  resources: [roles, rolebindings]
  verbs: [get, list, watch, create, patch, delete]
# Members are replaced by deleting their pods. Volumes grow by patching their PVCs.
- apiGroups: [""]
  resources: [pods]
  verbs: [get, list, watch, delete]
# Progress of a restore.
- apiGroups: [""]
  resources: [pods/log]
  verbs: [get]
- apiGroups: [""]
  resources: [persistentvolumeclaims]
  verbs: [get, list, watch, patch, delete]
- apiGroups: [events.k8s.io]
  resources: [events]
  verbs: [create, patch]
{{- end -}}

{{/* Secrets that a resource refers to. The controller may neither list nor watch Secrets. */}}
{{- define "etcd-mainstay.secretRules" -}}
- apiGroups: [""]
  resources: [secrets]
  verbs: [get{{ if .Values.rbac.releaseSecrets }}, patch{{ end }}]
{{- end -}}
