package docs

import (
	"fmt"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"unicode"
)

var (
	inlineCode = regexp.MustCompile("`[^`]*`")
	link       = regexp.MustCompile(`\]\(([^()\s]+)\)`)
	external   = regexp.MustCompile(`^(https?|mailto):`)
	heading    = regexp.MustCompile(`^#{1,6} +(.*)$`)
)

// deadLinks returns the links, of pages to files of the project and to headings, that lead nowhere.
func deadLinks(pages []page) (found []string) {
	anchors := make(map[string]map[string]bool)
	for _, p := range pages {
		anchors[p.file] = p.anchors()
	}
	for _, p := range pages {
		for i, line := range p.lines {
			line = inlineCode.ReplaceAllString(line, "code")
			for _, m := range link.FindAllStringSubmatch(line, -1) {
				if external.MatchString(m[1]) {
					continue
				}
				if why := dead(p.file, m[1], anchors); why != "" {
					found = append(found, fmt.Sprintf("%s:%d: the link to %s is dead: %s", p.file, i+1, m[1], why))
				}
			}
		}
	}
	return found
}

// dead says why a link on the page from leads nowhere; it is empty for one that leads somewhere.
func dead(from, target string, anchors map[string]map[string]bool) string {
	file, anchor, _ := strings.Cut(target, "#")
	to := from
	if file != "" {
		to = path.Join(path.Dir(from), file)
	}
	known, isPage := anchors[to]
	switch {
	case isPage && anchor != "" && !known[anchor]:
		return "the page has no such heading"
	case isPage:
		return ""
	case anchor != "":
		return "it is no page, and has no headings"
	}
	if _, err := os.Stat(filepath.Join(root, to)); err != nil {
		return "there is no such file"
	}
	return ""
}

// anchors are the names under which GitHub makes the page's headings known.
func (p page) anchors() map[string]bool {
	names := make(map[string]bool)
	for _, line := range p.lines {
		m := heading.FindStringSubmatch(line)
		if m == nil {
			continue
		}
		name := anchorOf(m[1])
		for i := 1; names[name]; i++ {
			name = fmt.Sprintf("%s-%d", anchorOf(m[1]), i)
		}
		names[name] = true
	}
	return names
}

func anchorOf(title string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == ' ':
			return '-'
		case r == '-' || r == '_' || unicode.IsLetter(r) || unicode.IsDigit(r):
			return unicode.ToLower(r)
		default:
			return -1
		}
	}, strings.TrimSpace(title))
}
