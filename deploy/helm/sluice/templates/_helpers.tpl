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

{{/* All clusters, as JSON. A file without `clusters` is one without a name. A section that a cluster lacks is the one beside `clusters`, where the chart's defaults are. */}}
{{- define "sluice.clusters" -}}
{{- $sections := omit .Values.config "clusters" "admin" "log" "traces" }}
{{- $clusters := list }}
{{- range .Values.config.clusters | default (list dict) }}
{{- $cluster := deepCopy . }}
{{- range $key, $value := $sections }}
{{- if not (hasKey $cluster $key) }}{{ $_ := set $cluster $key (deepCopy $value) }}{{ end }}
{{- end }}
{{- $clusters = append $clusters $cluster }}
{{- end }}
{{- toJson $clusters }}
{{- end }}

{{/* The listeners of all clusters, as JSON: with the name of their ports in Services, and their ports as numbers. */}}
{{- define "sluice.listeners" -}}
{{- $listeners := list }}
{{- range $cluster := include "sluice.clusters" . | fromJsonArray }}
{{- range $cluster.listeners }}
{{- $name := .name }}
{{- if $cluster.name }}{{ $name = printf "%s-%s" $cluster.name .name }}{{ end }}
{{- $bootstrap := splitList ":" .bind | last | int }}
{{- $first := .first_broker_port | default (add1 $bootstrap) | int }}
{{- $set := dict "portName" ($name | lower | replace "_" "-" | replace "." "-") "bootstrap" $bootstrap "first" $first "count" (.broker_ports | default 100 | int) }}
{{- $listeners = append $listeners (merge $set .) }}
{{- end }}
{{- end }}
{{- toJson $listeners }}
{{- end }}

{{/* The longest drain of a cluster, in seconds. */}}
{{- define "sluice.drainSeconds" -}}
{{- $longest := 0 }}
{{- range include "sluice.clusters" . | fromJsonArray }}{{ $longest = max $longest (div (dig "drain" "timeout_ms" 30000 . | int) 1000) }}{{ end }}
{{- $longest }}
{{- end }}

{{/* The ports of a pod, for a Service of its own: of listeners with a port per broker. Names lead to any pod. */}}
{{- define "sluice.servicePorts" -}}
{{- range include "sluice.listeners" . | fromJsonArray }}
{{- if not .sni }}
{{- $listener := . }}
{{- $lowest := .lowest_broker_id | default 0 | int }}
- {name: {{ .portName }}, port: {{ int .bootstrap }}, targetPort: {{ int .bootstrap }}}
{{- range $at := until (int .count) }}
{{- $port := add (int $listener.first) $at }}
- {name: {{ $listener.portName }}-{{ add $lowest $at }}, port: {{ $port }}, targetPort: {{ $port }}}
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
{{- $domain := .Values.advertisedDomain | default (printf "${POD_NAMESPACE}.svc.%s" .Values.clusterDomain) }}
{{- $least := .Values.autoscaling.enabled | ternary .Values.autoscaling.minReplicas .Values.replicas }}
{{- $clusters := list }}
{{- range include "sluice.clusters" . | fromJsonArray }}
{{- range .listeners }}
{{- if not (or .advertised_host .sni) }}{{ $_ := set . "advertised_host" (printf "${POD_NAME}.%s" $domain) }}{{ end }}
{{- end }}
{{- if eq (dig "client_quota" "scope" "gateway" .) "fleet" }}
{{- $_ := set . "fleet" (merge (dict "member" "${POD_NAME}" "members" $least) (.fleet | default dict)) }}
{{- end }}
{{- $clusters = append $clusters . }}
{{- end }}
{{- $config := deepCopy (pick .Values.config "admin" "log" "traces") }}
{{- $pods := printf "%s-pods" (include "sluice.fullname" .) }}
{{- $hosts := concat ($config.admin.allowed_hosts | default list) (list $pods (printf "*.%s" $pods)) }}
{{- if ne .Values.clusterDomain "cluster.local" }}{{ $hosts = append $hosts (printf "*.svc.%s" .Values.clusterDomain) }}{{ end }}
{{- $_ := set $config.admin "allowed_hosts" $hosts }}
{{- if .Values.config.clusters }}
{{- $_ := set $config "clusters" $clusters }}
{{- else }}
{{- range $key, $value := first $clusters }}{{ $_ := set $config $key $value }}{{ end }}
{{- if .Values.quotas }}{{ $_ := set $config "quotas" .Values.quotas }}{{ end }}
{{- end }}
{{- include "sluice.tomlTable" (dict "path" "" "table" $config) | trim }}
{{- end }}
