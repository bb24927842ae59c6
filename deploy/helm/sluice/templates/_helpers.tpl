{{- define "sluice.fullname" -}}
{{- .Values.fullnameOverride | default .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- end }}

{{- define "sluice.selector" -}}
app.kubernetes.io/name: sluice
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "sluice.labels" -}}
{{ include "sluice.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
{{- end }}

{{- define "sluice.adminPort" -}}
{{- splitList ":" .Values.config.admin.bind | last -}}
{{- end }}

{{/* The most pods that there may be: each may have a Service of its own. */}}
{{- define "sluice.mostPods" -}}
{{- if .Values.autoscaling.enabled }}{{ max (int .Values.replicas) (int .Values.autoscaling.maxReplicas) }}{{ else }}{{ .Values.replicas }}{{ end -}}
{{- end }}

{{/* The ports of a pod, for a Service of its own: of listeners with a port per broker. Names lead to any pod. */}}
{{- define "sluice.servicePorts" -}}
{{- range .Values.config.listeners }}
{{- if not .sni }}
{{- $name := .name | lower | replace "_" "-" | replace "." "-" }}
{{- $bootstrap := splitList ":" .bind | last | int }}
{{- $lowest := .lowest_broker_id | default 0 | int }}
- {name: {{ $name }}, port: {{ $bootstrap }}, targetPort: {{ $bootstrap }}}
{{- $first := .first_broker_port | default (add1 $bootstrap) | int }}
{{- range $at := until (.broker_ports | default 100 | int) }}
- {name: {{ $name }}-{{ add $lowest $at }}, port: {{ add $first $at }}, targetPort: {{ add $first $at }}}
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{/* One table of a TOML file, with those below it. Texts, numbers and arrays are written alike in JSON and TOML. */}}
{{- define "sluice.tomlKey" -}}
{{- if regexMatch "^[A-Za-z0-9_-]+$" . }}{{ . }}{{ else }}{{ toJson . }}{{ end -}}
{{- end }}
{{- define "sluice.tomlTable" -}}
{{- $path := .path }}
{{- range $key, $value := .table }}
{{- $tables := and (kindIs "slice" $value) (gt (len $value) 0) (kindIs "map" (first (default (list "") $value))) }}
{{- if not (or (kindIs "map" $value) (kindIs "invalid" $value) $tables) }}
{{ include "sluice.tomlKey" $key }} = {{ toJson $value }}
{{- end }}
{{- end }}
{{- range $key, $value := .table }}
{{- $below := include "sluice.tomlKey" $key }}
{{- if $path }}{{ $below = printf "%s.%s" $path $below }}{{ end }}
{{- if kindIs "map" $value }}

[{{ $below }}]
{{- include "sluice.tomlTable" (dict "path" $below "table" $value) }}
{{- else if kindIs "slice" $value }}
{{- range $value }}
{{- if kindIs "map" . }}

[[{{ $below }}]]
{{- include "sluice.tomlTable" (dict "path" $below "table" .) }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{/* sluice.toml: the values, and what a pod's place in the set decides. */}}
{{- define "sluice.configuration" -}}
{{- $config := deepCopy .Values.config }}
{{- $domain := .Values.advertisedDomain | default (printf "${POD_NAMESPACE}.svc.%s" .Values.clusterDomain) }}
{{- range $config.listeners }}
{{- if not (or .advertised_host .sni) }}{{ $_ := set . "advertised_host" (printf "${POD_NAME}.%s" $domain) }}{{ end }}
{{- end }}
{{- $pods := printf "%s-pods" (include "sluice.fullname" .) }}
{{- $hosts := concat ($config.admin.allowed_hosts | default list) (list $pods (printf "*.%s" $pods)) }}
{{- if ne .Values.clusterDomain "cluster.local" }}{{ $hosts = append $hosts (printf "*.svc.%s" .Values.clusterDomain) }}{{ end }}
{{- $_ := set $config.admin "allowed_hosts" $hosts }}
{{- if eq (dig "client_quota" "scope" "gateway" $config) "fleet" }}
{{- $least := .Values.autoscaling.enabled | ternary .Values.autoscaling.minReplicas .Values.replicas }}
{{- $_ := set $config "fleet" (merge (dict "member" "${POD_NAME}" "members" $least) ($config.fleet | default dict)) }}
{{- end }}
{{- if .Values.quotas }}{{ $_ := set $config "quotas" .Values.quotas }}{{ end }}
{{- include "sluice.tomlTable" (dict "path" "" "table" $config) | trim }}
{{- end }}
