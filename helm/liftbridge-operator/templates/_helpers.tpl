{{- define "operator.name" -}}
{{- .Values.nameOverride | default .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{- define "operator.account" -}}
{{- .Values.serviceAccount.name | default (include "operator.name" .) -}}
{{- end -}}

{{- define "operator.selector" -}}
app.kubernetes.io/name: liftbridge-operator
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "operator.labels" -}}
{{ include "operator.selector" . }}
app.kubernetes.io/component: operator
app.kubernetes.io/part-of: liftbridge
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "operator.image" -}}
{{- $image := .Values.image -}}
{{- $name := $image.repository -}}
{{- if $image.registry }}{{ $name = printf "%s/%s" $image.registry $image.repository }}{{ end -}}
{{- if $image.digest -}}
{{ printf "%s@%s" $name $image.digest }}
{{- else -}}
{{ printf "%s:%s" $name ($image.tag | default .Chart.AppVersion) }}
{{- end -}}
{{- end -}}

{{/* Permissions in each managed namespace; the operator uses each of these verbs, and no other
(tests/meta/test_operator_rights.py). Applying a missing object needs the permission to create it. */}}
{{- define "operator.rules" -}}
- apiGroups: [liftbridge.io]
  resources: [liftbridgeclusters, streampipelines]
  verbs: [get, list, watch]
- apiGroups: [liftbridge.io]
  resources: [streams, liftbridgeusers]
  verbs: [get, list, watch, patch]
- apiGroups: [liftbridge.io]
  resources: [liftbridgeclusters/status, streams/status, streampipelines/status, liftbridgeusers/status]
  verbs: [patch]
- apiGroups: [""]
  resources: [pods, persistentvolumeclaims]
  verbs: [get, list, watch, patch, delete]
- apiGroups: [""]
  resources: [configmaps, services]
  verbs: [get, list, watch, create, patch, delete]
# Read by name, never listed: the operator reads only Secrets that a resource names.
- apiGroups: [""]
  resources: [secrets]
  verbs: [get, create, patch]
- apiGroups: [""]
  resources: [serviceaccounts]
  verbs: [get, list, watch, create, patch]
- apiGroups: [apps]
  resources: [statefulsets, deployments]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [batch]
  resources: [jobs, cronjobs]
  verbs: [get, list, watch, create, patch, delete]
{{- if .Values.rbac.executors }}
- apiGroups: [rbac.authorization.k8s.io]
  resources: [rolebindings]
  verbs: [get, list, create, patch, delete]
# Drivers of pipelines get only this role: the operator may bind it, but not change it.
- apiGroups: [rbac.authorization.k8s.io]
  resources: [clusterroles]
  resourceNames: ['{{ include "operator.name" . }}-executors']
  verbs: [bind]
{{- end }}
- apiGroups: [policy]
  resources: [poddisruptionbudgets]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [networking.k8s.io]
  resources: [networkpolicies]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [events.k8s.io]
  resources: [events]
  verbs: [list, create, patch]
{{- if .Values.rbac.certManager }}
- apiGroups: [cert-manager.io]
  resources: [certificates]
  verbs: [get, create, patch]
{{- end }}
{{- if .Values.rbac.monitoring }}
- apiGroups: [monitoring.coreos.com]
  resources: [servicemonitors, prometheusrules]
  verbs: [get, list, create, patch, delete]
{{- end }}
{{- end -}}

{{/* Annotations of the objects that the Job before an uninstall needs: created before it, deleted after it. */}}
{{- define "operator.before" -}}
helm.sh/hook: pre-delete
helm.sh/hook-weight: "-1"
helm.sh/hook-delete-policy: before-hook-creation,hook-succeeded
{{- end -}}

{{- define "operator.subjects" -}}
- kind: ServiceAccount
  name: {{ include "operator.account" . }}
  namespace: {{ .Release.Namespace }}
{{- end -}}
