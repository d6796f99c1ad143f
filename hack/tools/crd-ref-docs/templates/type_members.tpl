{{- define "type_members" -}}
{{- if eq .Name "metadata" -}}
As of every object of Kubernetes.
{{- else -}}
{{ markdownRenderFieldDoc .Doc | replace "<br />" " " | replace "<" "\\<" | trim }}
{{- range .Validation }}{{ if regexMatch "^(Max|Min|Pattern)" . }} {{ markdownRenderFieldDoc . }}.{{ end }}{{ end }}
{{- end -}}
{{- end -}}
