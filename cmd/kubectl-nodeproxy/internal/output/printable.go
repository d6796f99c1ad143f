package output

import (
	"strconv"
	"strings"
	"unicode"
)

// Printable quotes characters that would control a terminal, or hide text on it: others can
// write texts of objects, such as the status of a pod. Line breaks and tabs, which tables
// need, stay.
func Printable(text string) string {
	if strings.IndexFunc(text, controls) < 0 {
		return text
	}
	var out strings.Builder
	for _, r := range text {
		if controls(r) {
			out.WriteString(strings.Trim(strconv.QuoteRuneToASCII(r), "'"))
			continue
		}
		out.WriteRune(r)
	}
	return out.String()
}

func controls(r rune) bool {
	return r != '\n' && r != '\t' && unicode.In(r, unicode.Cc, unicode.Cf)
}

// escaped quotes control characters that JSON permits.
func escaped(text []byte) []byte {
	var out []byte
	for _, r := range string(text) {
		if r >= 0x7f && r <= 0x9f {
			out = append(out, "\\u00"+strconv.FormatInt(int64(r), 16)...)
			continue
		}
		out = append(out, string(r)...)
	}
	return out
}
