{{- /* Labels of every object. Objects have fixed names, as in deploy/kubernetes: one release to a namespace. */ -}}
{{- define "tollgate.labels" -}}
app.kubernetes.io/part-of: tollgate
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version | replace "+" "_" }}
{{- end }}

{{- define "tollgate.tag" -}}
{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{- define "tollgate.image" -}}
{{ .Values.image.repository }}:{{ include "tollgate.tag" . }}
{{- end }}

{{- define "tollgate.scheme" -}}
{{ if .Values.podTlsSecretName }}https{{ else }}http{{ end }}
{{- end }}

{{- /* The member of a probe at a port that may speak TLS. */ -}}
{{- define "tollgate.probeScheme" -}}
{{ if .Values.podTlsSecretName }}, scheme: HTTPS{{ end }}
{{- end }}

{{- define "tollgate.tlsSettings" -}}
- {name: TOLLGATE_TLS_CERT_FILE, value: /tls/tls.crt}
- {name: TOLLGATE_TLS_KEY_FILE, value: /tls/tls.key}
{{- end }}

{{- /* Pods are replaced when the settings change, which they read as they start. */ -}}
{{- define "tollgate.settingsChecksum" -}}
tollgate/settings-checksum: {{ toJson .Values.settings | sha256sum }}
{{- end }}

{{- /* Labels of what Prometheus selects by label. */ -}}
{{- define "tollgate.monitoringLabels" -}}
{{ include "tollgate.labels" . }}
{{- with .Values.monitoring.labels }}
{{ toYaml . }}
{{- end }}
{{- end }}
