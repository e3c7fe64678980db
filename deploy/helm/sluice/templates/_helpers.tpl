{{- define "sluice.name" -}}
{{- if contains "sluice" .Release.Name }}{{ .Release.Name | trunc 50 | trimSuffix "-" }}{{ else }}{{ printf "%s-sluice" .Release.Name | trunc 50 | trimSuffix "-" }}{{ end }}
{{- end }}

{{- define "sluice.selector" -}}
app.kubernetes.io/name: sluice
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "sluice.labels" -}}
{{ include "sluice.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{- define "sluice.image" -}}
{{- if .Values.image.digest }}{{ .Values.image.repository }}@{{ .Values.image.digest }}{{ else }}{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}{{ end }}
{{- end }}

{{- /* The whole of the operator's file: what the chart decides over what the values say. */ -}}
{{- define "sluice.file" -}}
{{- $c := deepCopy .Values.config -}}
{{- range $key := list "listen" "admin.listen" "admin.token" "tls.mode" "tls.cert" "tls.key" "drain_delay" "drain_timeout" "store.url" "redis" "auth.sealing_key" }}
  {{- $at := $c }}
  {{- range splitList "." $key }}{{ if kindIs "map" $at }}{{ $at = get $at . }}{{ else }}{{ $at = "" }}{{ end }}{{ end }}
  {{- if $at }}{{ fail (printf "config.%s is the chart's own: say it by the values beside config" $key) }}{{ end }}
{{- end }}
{{- $_ := required "secrets.adminToken.name: the Secret with the admin listener's token" .Values.secrets.adminToken.name }}
{{- $own := dict
  "listen" (printf ":%d" (include "sluice.port" . | int))
  "admin" (dict "listen" ":9090" "token" "${SLUICE_ADMIN_TOKEN}")
  "drain_delay" (printf "%ds" (int .Values.drain.delaySeconds))
  "drain_timeout" (printf "%ds" (int .Values.drain.timeoutSeconds)) }}
{{- if .Values.tls.secretName }}
  {{- $_ := set $own "tls" (dict "mode" "files" "cert" "/etc/sluice-tls/tls.crt" "key" "/etc/sluice-tls/tls.key") }}
{{- else }}
  {{- $_ := set $own "tls" (dict "mode" "off") }}
{{- end }}
{{- if .Values.secrets.databaseURL.name }}
  {{- $_ := required "secrets.sealingKey.name: a store needs the key that its secrets are sealed with" .Values.secrets.sealingKey.name }}
  {{- $_ := set $own "store" (dict "url" "${DATABASE_URL}") }}
  {{- $_ := set $own "auth" (dict "sealing_key" "${SLUICE_SEALING_KEY}") }}
{{- end }}
{{- if .Values.secrets.redisURL.name }}
  {{- $_ := set $own "redis" (dict "url" "${REDIS_URL}") }}
{{- end }}
{{- toYaml (mergeOverwrite $c $own) }}
{{- end }}

{{- define "sluice.port" -}}{{ if .Values.tls.secretName }}8443{{ else }}8080{{ end }}{{- end }}

{{- /* What a reload does not take up: a change of it starts new pods, any other none. */ -}}
{{- define "sluice.restart" -}}
{{- $file := include "sluice.file" . | fromYaml -}}
{{- $auth := get $file "auth" | default dict -}}
{{- $tls := omit (get $file "tls" | default dict) "domains" "email" -}}
{{- dict "auth" (pick $auth "sealing_key") "tls" $tls "rest" (pick $file "listen" "origin" "admin" "store" "usage" "redis" "proxy_protocol") | toJson | sha256sum -}}
{{- end }}

{{- define "sluice.secretEnv" -}}
{{- range $env, $ref := dict "SLUICE_ADMIN_TOKEN" .Values.secrets.adminToken "DATABASE_URL" .Values.secrets.databaseURL "SLUICE_SEALING_KEY" .Values.secrets.sealingKey "REDIS_URL" .Values.secrets.redisURL }}
{{- if $ref.name }}
- name: {{ $env }}
  valueFrom: {secretKeyRef: {name: {{ $ref.name | quote }}, key: {{ $ref.key | quote }}}}
{{- end }}
{{- end }}
{{- end }}
