{{- define "gvList" -}}
<!-- Written by make generate from the Go types in api. Change the comments there. -->
# The API

Every field of every kind: its meaning, unit, default and source. A type's source is that of all
its fields that name no other; fields with `Source: user` are yours to set, in a NodeProxy or a
policy. `kubectl explain nodeproxy.spec --recursive` shows the same in a cluster.
`config/samples` has complete objects.
{{ range . }}
{{ template "gvDetails" . }}
{{- end }}
{{- end -}}
