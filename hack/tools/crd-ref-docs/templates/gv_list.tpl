{{- define "gvList" -}}
<!-- Written by make generate from the Go types in api. Change the comments there. -->
# The API

Every field of every kind: what it means, its unit, its default and who writes it.
`kubectl explain nodeproxy.spec --recursive` tells the same in a cluster. Complete
objects to start from are in `config/samples`.
{{ range . }}
{{ template "gvDetails" . }}
{{- end }}
{{- end -}}
