{{- define "warmroute.name" -}}
{{- if contains .Chart.Name .Release.Name }}{{ .Release.Name | trunc 50 | trimSuffix "-" }}{{ else }}{{ printf "%s-%s" .Release.Name .Chart.Name | trunc 50 | trimSuffix "-" }}{{ end }}
{{- end }}

{{- define "warmroute.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "warmroute.labels" -}}
{{ include "warmroute.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{- define "warmroute.serviceAccount" -}}
{{- if .Values.serviceAccount.create }}{{ .Values.serviceAccount.name | default (include "warmroute.name" .) }}{{ else }}{{ .Values.serviceAccount.name | default "default" }}{{ end }}
{{- end }}

{{- /* What a person got wrong: one sentence that names the value. */ -}}
{{- define "warmroute.check" -}}
{{- $shared := or .Values.valkey.enabled .Values.secrets.keys.redisUrl .Values.config.redis_url }}
{{- $many := or .Values.autoscaling.enabled (gt (int .Values.replicaCount) 1) }}
{{- if and (not .Values.fleet.service) (not .Values.fleet.urls) (not .Values.config.replicas) }}
{{- fail "no engine is named: set fleet.service to the Service in front of them, or fleet.urls" }}
{{- end }}
{{- if and .Values.fleet.urls .Values.config.replicas }}
{{- fail "engines are named twice: keep fleet.urls or config.replicas" }}
{{- end }}
{{- if and .Values.valkey.enabled (or .Values.secrets.keys.redisUrl .Values.config.redis_url) }}
{{- fail "there are two of Redis: keep valkey.enabled, secrets.keys.redisUrl or config.redis_url" }}
{{- end }}
{{- if and $many (not $shared) }}
{{- fail "several proxies need one Redis to share their index: set valkey.enabled, or secrets.keys.redisUrl, or replicaCount to 1" }}
{{- end }}
{{- if and $shared (not .Values.secrets.name) }}
{{- fail "proxies on one Redis need one secret: make a Secret with the key `secret` (openssl rand -hex 32) and name it in secrets.name" }}
{{- end }}
{{- end }}
