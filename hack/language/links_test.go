package main

import (
	"slices"
	"testing"
)

func TestBrokenLinks(t *testing.T) {
	pages := map[string]string{
		"README.md": "# Top\n[a](docs/a.md) [b](docs/a.md#two-parts) [c](docs/a.md#three) [d](docs/none.md)\n" +
			"[e](https://example.com/none) [f](#top) [g](config)\n```\n[h](none)\n```\n[i](none)\n",
		"docs/a.md": "# Two `parts`\n## Same\n## Same\n```\n# Three\n```\n[up](../README.md#top) [one](#same) [two](#same-1) [three](#same-2)\n",
	}
	got := brokenLinks(pages, func(file string) bool { return file == "config" })
	slices.Sort(got)
	want := []string{
		"README.md:2: docs/a.md has no heading #three",
		"README.md:2: docs/none.md does not exist",
		"README.md:7: none does not exist",
		"docs/a.md:7: docs/a.md has no heading #same-2",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}
