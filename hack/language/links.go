package main

import (
	"fmt"
	"path"
	"regexp"
	"strings"
)

var (
	link    = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	remote  = regexp.MustCompile(`^[a-z]+:`)
	heading = regexp.MustCompile(`^#+ +(.*)$`)
	noSlug  = regexp.MustCompile(`[^\p{L}\p{N}_ -]`)
)

// brokenLinks returns the relative links of Markdown pages that lead nowhere: to a file or
// directory that does not exist, or to a heading that its page lacks.
func brokenLinks(pages map[string]string, exists func(file string) bool) []string {
	var broken []string
	for page, content := range pages {
		for i, line := range prose(content) {
			for _, m := range link.FindAllStringSubmatch(line, -1) {
				file, anchor, _ := strings.Cut(m[1], "#")
				target := page
				if file != "" {
					target = path.Join(path.Dir(page), file)
				}
				text, isPage := pages[target]
				switch {
				case remote.MatchString(m[1]):
				case !isPage && !exists(target):
					broken = append(broken, fmt.Sprintf("%s:%d: %s does not exist", page, i+1, target))
				case isPage && anchor != "" && !anchors(text)[anchor]:
					broken = append(broken, fmt.Sprintf("%s:%d: %s has no heading #%s", page, i+1, target, anchor))
				}
			}
		}
	}
	return broken
}

// prose returns the lines of a page, with empty lines for code blocks.
func prose(content string) []string {
	lines, code := strings.Split(content, "\n"), false
	for i, line := range lines {
		fence := strings.HasPrefix(strings.TrimLeft(line, " "), "```")
		if code || fence {
			lines[i] = ""
		}
		code = code != fence
	}
	return lines
}

// anchors are the names by which links find the headings of a page, as GitHub makes them.
func anchors(content string) map[string]bool {
	found := map[string]bool{}
	for _, line := range prose(content) {
		m := heading.FindStringSubmatch(line)
		if m == nil {
			continue
		}
		text := link.ReplaceAllString(m[1], "")
		slug := strings.ReplaceAll(noSlug.ReplaceAllString(strings.ToLower(strings.TrimSpace(text)), ""), " ", "-")
		name := slug
		for n := 1; found[name]; n++ {
			name = fmt.Sprintf("%s-%d", slug, n)
		}
		found[name] = true
	}
	return found
}
