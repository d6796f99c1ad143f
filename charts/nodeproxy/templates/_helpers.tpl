{{/* The image of the program in "program": nodeproxy.image (dict "root" $ "program" "agent"). */}}
{{- define "nodeproxy.image" -}}
{{- $image := .root.Values.image -}}
{{- get $image .program | default (printf "%s/nodeproxy-%s:%s" (trimSuffix "/" $image.registry) .program ($image.tag | default .root.Chart.AppVersion)) -}}
{{- end }}

{{/* Not empty if Helm reads the cluster: not by helm template, nor in Argo CD. */}}
{{- define "nodeproxy.connected" -}}
{{- if lookup "v1" "Service" "default" "kubernetes" }}true{{ end -}}
{{- end }}

{{/* Sets the Secrets of spec.agent in the pods of "object". */}}
{{- define "nodeproxy.pullSecrets" -}}
{{- with dig "agent" "imagePullSecrets" "" .root.Values.nodeProxy.spec }}
{{- $_ := set $.object.spec.template.spec "imagePullSecrets" . }}
{{- end }}
{{- end }}

{{/* The API servers' URLs, separated by spaces. */}}
{{- define "nodeproxy.apiServers" -}}
{{- $urls := .Values.apiServers -}}
{{- if not $urls -}}
  {{- range (lookup "discovery.k8s.io/v1" "EndpointSlice" "default" "").items -}}
    {{- if eq (dig "labels" "kubernetes.io/service-name" "" .metadata) "kubernetes" -}}
      {{- $port := (first .ports).port -}}
      {{- range .endpoints -}}
        {{- $ip := first .addresses -}}
        {{- $urls = append $urls (printf "https://%s:%v" (contains ":" $ip | ternary (printf "[%s]" $ip) $ip) $port) -}}
      {{- end -}}
    {{- end -}}
  {{- end -}}
  {{- $urls = sortAlpha $urls -}}
{{- end -}}
{{- join " " $urls -}}
{{- end }}

{{/* How many controllers run. */}}
{{- define "nodeproxy.replicas" -}}
{{- $nodes := 0 -}}
{{- if kindIs "invalid" .Values.controller.replicas -}}
  {{- range (lookup "v1" "Node" "" "").items -}}
    {{- if eq (dig "labels" "kubernetes.io/os" "" .metadata) "linux" -}}
      {{- $nodes = add1 $nodes -}}
    {{- end -}}
  {{- end -}}
{{- end -}}
{{- .Values.controller.replicas | default (eq (int $nodes) 1 | ternary 1 2) -}}
{{- end }}

{{/* An object that the agents need: helm uninstall, Argo CD and Flux leave it in the cluster. */}}
{{- define "nodeproxy.kept" -}}
{{- $kept := dict "helm.sh/resource-policy" "keep" "argocd.argoproj.io/sync-options" "Prune=false,Delete=false" "kustomize.toolkit.fluxcd.io/prune" "disabled" -}}
{{- $_ := set .metadata "annotations" $kept -}}
{{ toYaml . }}
{{- end }}
