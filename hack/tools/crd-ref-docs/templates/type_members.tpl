{{- define "type_members" -}}
{{- $doc := trimSuffix .source (.member.Doc | replace "\n" " ") -}}
{{ template "sentence" dict "doc" $doc "name" (printf "^%s( is| are|:) " .member.Name) }}
{{- range .member.Validation }}{{ if and (regexMatch "^(Max|Min|Pattern)" .) (not (contains "e+09" .)) }} {{ markdownRenderFieldDoc . }}.{{ end }}{{ end }}
{{- end -}}

{{- /* A comment without the name that it begins with: the heading or the first column has it. */ -}}
{{- define "sentence" -}}
{{- $doc := markdownRenderFieldDoc .doc | replace "<br />" " " | replace "<" "\\<" | trim -}}
{{- $rest := regexReplaceAll .name $doc "" -}}
{{- if eq $rest $doc }}{{ $doc }}{{ else }}{{ substr 0 1 $rest | upper }}{{ substr 1 -1 $rest }}{{ end -}}
{{- end -}}
