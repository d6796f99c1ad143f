{{- define "gvDetails" -}}
{{- $gv := . -}}
The group and version of all kinds is `{{ $gv.GroupVersionString }}`.
{{ range $gv.SortedKinds }}
- {{ $gv.TypeForKind . | markdownRenderTypeLink }}
{{- end }}
{{ range $gv.SortedKinds }}
{{ template "type" ($gv.TypeForKind .) }}
{{- end }}
{{- range $gv.SortedTypes }}
{{- if not .GVK }}
{{ template "type" . }}
{{- end }}
{{- end }}
{{- end -}}
