{{- define "tfgpujob.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 63 | trimSuffix "-" -}}
{{- else -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- ternary .Release.Name (printf "%s-%s" .Release.Name $name) (contains $name .Release.Name) | trunc 63 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "tfgpujob.selectorLabels" -}}
app.kubernetes.io/name: {{ default .Chart.Name .Values.nameOverride }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: operator
{{- end -}}

{{- define "tfgpujob.ownLabels" -}}
{{ include "tfgpujob.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end -}}

{{/* The chart's own win: selectors hang on them. */}}
{{- define "tfgpujob.labels" -}}
{{ merge (fromYaml (include "tfgpujob.ownLabels" .)) .Values.commonLabels | toYaml }}
{{- end -}}

{{- define "tfgpujob.serviceAccountName" -}}
{{- default (ternary (include "tfgpujob.fullname" .) "default" .Values.serviceAccount.create) .Values.serviceAccount.name -}}
{{- end -}}

{{/* Call with (list $ .Values.image): the reference by digest, else by tag, else by appVersion. */}}
{{- define "tfgpujob.image" -}}
{{- $root := index . 0 -}}{{- $image := index . 1 -}}
{{- $repository := printf "%s%s" (empty $root.Values.imageRegistry | ternary "" (printf "%s/" $root.Values.imageRegistry)) $image.repository -}}
{{- if $image.digest -}}
{{- printf "%s@%s" $repository $image.digest -}}
{{- else -}}
{{- printf "%s:%s" $repository (default $root.Chart.AppVersion $image.tag) -}}
{{- end -}}
{{- end -}}

{{/* Before values are read: `profile: multiTenant` turns every protection on. What a list says already stays. */}}
{{- define "tfgpujob.profile" -}}
{{- range list "imageVolumes" "kueue" "ui" "history" -}}
{{- if not (hasKey $.Values .) -}}
{{- printf "%s is missing, as in the values of an older chart: in place of --reuse-values use --reset-then-reuse-values (Helm 3.14 or later), or --values" . | fail -}}
{{- end -}}
{{- end -}}
{{- if eq .Values.profile "multiTenant" -}}
{{- $_ := set .Values "podSecurity" "restricted" -}}
{{- $_ := set .Values "allowedServiceAccounts" (default (list "*/default") .Values.allowedServiceAccounts) -}}
{{- $_ := set .Values.admissionPolicy "enabled" (semverCompare ">=1.30.0-0" .Capabilities.KubeVersion.Version) -}}
{{- $_ := set .Values.admissionPolicy "operator" .Values.admissionPolicy.enabled -}}
{{- $_ := set .Values.networkPolicy "enabled" true -}}
{{- $_ := set .Values.networkPolicy "jobNamespaces" (default (list "*") .Values.networkPolicy.jobNamespaces) -}}
{{- $_ := set .Values.networkPolicy "metricsFrom" (default (list (dict "podSelector" dict)) .Values.networkPolicy.metricsFrom) -}}
{{- $_ := set .Values.rbac "aggregateToDefaultRoles" false -}}
{{- $_ := set .Values.kueue "manageJobsWithoutQueueName" true -}}
{{- end -}}
{{- end -}}

{{/* "true" if the history is a file of this pod's volume. */}}
{{- define "tfgpujob.sqlite" -}}
{{- and .Values.history.enabled (not .Values.history.databaseSecret) -}}
{{- end -}}

{{/* The variable with the database of the history, for operator and page. */}}
{{- define "tfgpujob.historyDatabase" -}}
- name: HISTORY_DATABASE
{{- with .Values.history.databaseSecret }}
  valueFrom: {secretKeyRef: {name: {{ . }}, key: url}}
{{- else }}
  value: sqlite:////var/lib/tfgpu/history.db
{{- end }}
{{- end -}}

{{/* What is off of what keeps jobs apart whose authors don't trust each other, one a line: NOTES.txt and `tfgpu doctor` say it. */}}
{{- define "tfgpujob.off" -}}
{{- include "tfgpujob.profile" . -}}
{{- with .Values -}}
{{- if ne .podSecurity "restricted" }}
podSecurity: templates may run as root and mount nfs and the like
{{- end }}
{{- if .allowHostAccessNamespaces }}
allowHostAccessNamespaces: jobs in {{ join ", " .allowHostAccessNamespaces }} may do what they like to their nodes
{{- end }}
{{- if not .allowedServiceAccounts }}
allowedServiceAccounts: a job runs as any ServiceAccount of its namespace
{{- end }}
{{- if not .networkPolicy.jobNamespaces }}
networkPolicy.jobNamespaces: every pod reaches the port of TensorFlow, which asks for no password
{{- end }}
{{- if not .networkPolicy.enabled }}
networkPolicy.enabled: every pod may ask the operator for its metrics, and which jobs it can't read
{{- end }}
{{- if not .admissionPolicy.enabled }}
admissionPolicy.enabled: what the operator refuses is refused in the job's status, and not at kubectl apply (Kubernetes 1.30)
{{- end }}
{{- if not .admissionPolicy.operator }}
admissionPolicy.operator: a client with the operator's token may create pods that control their node (Kubernetes 1.30)
{{- end }}
{{- if .rbac.aggregateToDefaultRoles }}
rbac.aggregateToDefaultRoles: users with the role edit in a namespace may create jobs there
{{- end }}
{{- if and .kueue.enabled (not .kueue.manageJobsWithoutQueueName) }}
kueue.manageJobsWithoutQueueName: a job without a queue runs at once, past all quotas
{{- end }}
{{- if not .watchNamespaces }}
watchNamespaces: the operator's token has rights in every namespace
{{- end }}
{{- end -}}
{{- end -}}

{{/* What the operator does in a namespace whose jobs it runs. Pods are created and deleted, never changed. */}}
{{- define "tfgpujob.jobRules" -}}
- apiGroups: [tfgpu.dev]
  resources: [tfgpujobs]
  verbs: [get, list, watch, delete]
- apiGroups: [tfgpu.dev]
  resources: [tfgpujobs/status, tfgpujobs/finalizers]
  verbs: [update]
- apiGroups: [""]
  resources: [pods]
  verbs: [get, list, watch, create, delete]
# A service goes with its job, by garbage collection.
- apiGroups: [""]
  resources: [services]
  verbs: [get, list, watch, create]
{{- if .Values.networkPolicy.jobNamespaces }}
# So does a NetworkPolicy.
- apiGroups: [networking.k8s.io]
  resources: [networkpolicies]
  verbs: [get, list, watch, create]
{{- end }}
{{- if .Values.volumeClaims.enabled }}
# The claims of volumeClaimTemplates, which garbage collection deletes, if anybody.
- apiGroups: [""]
  resources: [persistentvolumeclaims]
  verbs: [get, create]
{{- end }}
{{- if .Values.deviceClaims.enabled }}
# The template of spec.gpu.claim goes with its job.
- apiGroups: [resource.k8s.io]
  resources: [resourceclaimtemplates]
  verbs: [get, create]
{{- end }}
{{- range .Values.gang.backends }}
# An attempt's pod group goes with its pods.
- apiGroups: [{{ get (dict "Volcano" "scheduling.volcano.sh" "SchedulerPlugins" "scheduling.x-k8s.io" "Native" "scheduling.k8s.io") . }}]
  resources: [podgroups]
  verbs: [get, list, watch, create, delete]
{{- end }}
{{- if .Values.kueue.enabled }}
# A Workload goes with its job, or when it asks for what the job does not want any more.
- apiGroups: [kueue.x-k8s.io]
  resources: [workloads]
  verbs: [get, list, watch, create, delete]
- apiGroups: [kueue.x-k8s.io]
  resources: [workloads/status]
  verbs: [update]
{{- end }}
- apiGroups: [""]
  resources: [events]
  verbs: [create]
{{- end -}}
