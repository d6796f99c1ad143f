{{- define "type" -}}
{{- $type := . -}}
{{- if markdownShouldRenderType $type -}}
{{ if $type.GVK }}##{{ else }}###{{ end }} {{ $type.Name }}

{{ $type.Doc | replace "<" "\\<" }}
{{ if $type.References }}
Used in {{ range $i, $other := $type.SortedReferences }}{{ if $i }}, {{ end }}{{ markdownRenderTypeLink $other }}{{ end }}.
{{ end }}
{{- if $type.Members }}
| field | type | meaning |
| --- | --- | --- |
{{- range $type.Members }}
| `{{ .Name }}` | {{ markdownRenderType .Type }} | {{ template "type_members" . }} |
{{- end }}
{{ end }}
{{- if $type.EnumValues }}
| value | meaning |
| --- | --- |
{{- range $type.EnumValues }}
| `{{ .Name }}` | {{ markdownRenderFieldDoc .Doc | replace "<br />" " " | replace "<" "\\<" | trim }} |
{{- end }}
{{ end }}
{{- end -}}
{{- end -}}
