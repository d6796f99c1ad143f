{{- define "type" -}}
{{- $type := . -}}
{{- if markdownShouldRenderType $type -}}
{{- /* The source that fields have in common is given once. */ -}}
{{- $source := "" -}}
{{- range $type.Members }}{{ if not $source }}{{ $source = regexFind " Source: (user|controller|agent|the EndpointSlices)\\.$" (.Doc | replace "\n" " ") }}{{ end }}{{ end -}}
{{ if $type.GVK }}##{{ else }}###{{ end }} {{ $type.Name }}

{{ template "sentence" dict "doc" $type.Doc "name" (printf "^%s( is| are|:) " $type.Name) }}
{{ if $type.References }}
Used in {{ range $i, $other := $type.SortedReferences }}{{ if $i }}, {{ end }}{{ markdownRenderTypeLink $other }}{{ end }}.
{{- if ne $type.Name "WrittenSettings" }}{{ $source }}{{ end }}
{{ end }}
{{- if eq $type.Name "WrittenSettings" }}
The fields are those of [ProxySettings](#proxysettings).
{{ else if $type.Members }}
| field | type | meaning |
| --- | --- | --- |
{{- range $type.Members }}{{ if ne .Name "metadata" }}
| `{{ .Name }}` | {{ markdownRenderType .Type }} | {{ template "type_members" dict "member" . "source" $source }} |
{{- end }}{{ end }}
{{ end }}
{{- if $type.EnumValues }}
Values: {{ range $i, $value := $type.EnumValues }}{{ if $i }}, {{ end }}`{{ $value.Name }}`{{ end }}.
{{ end }}
{{- end -}}
{{- end -}}
