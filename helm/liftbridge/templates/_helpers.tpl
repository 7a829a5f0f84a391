{{- define "liftbridge.cluster" -}}
{{- .Values.cluster.name | default .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{- define "liftbridge.labels" -}}
app.kubernetes.io/name: liftbridge
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/part-of: liftbridge
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}
