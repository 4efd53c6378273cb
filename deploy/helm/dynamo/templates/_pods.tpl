{{/* Names, labels, and what the pods of the operator and of the picker have in common. Each takes a list of the root and a
     component: "operator" or "picker". */}}

{{- define "dynamo.name" -}}
{{- $root := first . -}}
{{- $base := ternary $root.Release.Name (printf "%s-%s" $root.Release.Name $root.Chart.Name) (contains $root.Chart.Name $root.Release.Name) -}}
{{- printf "%s-%s" ($base | trunc 50 | trimSuffix "-") (last .) -}}
{{- end -}}

{{/* Roles of the cluster are one for each release. */}}
{{- define "dynamo.clusterName" -}}
{{- $root := first . -}}
{{- printf "%s-%s" $root.Release.Namespace (include "dynamo.name" .) -}}
{{- end -}}

{{- define "dynamo.selector" -}}
{{- $root := first . -}}
app.kubernetes.io/name: {{ $root.Chart.Name }}
app.kubernetes.io/instance: {{ $root.Release.Name }}
app.kubernetes.io/component: {{ last . }}
{{- end -}}

{{- define "dynamo.labels" -}}
{{- $root := first . -}}
{{ include "dynamo.selector" . }}
app.kubernetes.io/part-of: dynamo-serving
app.kubernetes.io/version: {{ $root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ $root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" $root.Chart.Name $root.Chart.Version }}
{{- end -}}

{{- define "dynamo.image" -}}
{{- with .Values.image -}}
{{ .repository }}{{ if .digest }}@{{ .digest }}{{ else }}:{{ .tag | default $.Chart.AppVersion }}{{ end }}
{{- end -}}
{{- end -}}

{{/* What a pod template has before its containers. */}}
{{- define "dynamo.podTemplate" -}}
{{- $root := first . -}}
metadata:
  labels:
    {{- merge (include "dynamo.selector" . | fromYaml) $root.Values.pods.labels | toYaml | nindent 4 }}
  {{- with $root.Values.pods.annotations }}
  annotations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
spec:
  serviceAccountName: {{ include "dynamo.name" . }}
  {{- include "dynamo.podSpec" $root | nindent 2 }}
{{- end -}}

{{- define "dynamo.podSpec" -}}
securityContext:
  {{- merge (deepCopy .Values.pods.securityContext) (dict "runAsNonRoot" true "seccompProfile" (dict "type" "RuntimeDefault")) | toYaml | nindent 2 }}
{{- with .Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.pods.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.pods.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.pods.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.pods.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- end -}}

{{/* What every container has. */}}
{{- define "dynamo.container" -}}
image: {{ include "dynamo.image" . | quote }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
{{- end -}}

{{- define "dynamo.podVariables" -}}
- {name: POD_NAME, valueFrom: {fieldRef: {fieldPath: metadata.name}}}
- {name: POD_UID, valueFrom: {fieldRef: {fieldPath: metadata.uid}}}
- {name: POD_NAMESPACE, valueFrom: {fieldRef: {fieldPath: metadata.namespace}}}
{{- end -}}
