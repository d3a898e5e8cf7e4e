// Package docs checks the pages that people read: the README, docs/ and what stands beside them. Their Go compiles, their
// YAML and JSON parse, their links lead somewhere.
package docs

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// root is the module's folder.
const root = "../.."

// page is a Markdown file.
type page struct {
	file  string   // relative to the folder of all pages
	lines []string // with those of blocks left empty
	blocks
}

// block is what stands between two fences.
type block struct {
	file     string
	line     int // of its first line, counted from 1
	language string
	text     string
}

type blocks []block

func (b block) at() string { return fmt.Sprintf("%s:%d", b.file, b.line) }

// readPages returns every page under dir, except those of other people's and of tests.
func readPages(t *testing.T, dir string) (pages []page) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := d.Name()
		if d.IsDir() && path != dir && (strings.HasPrefix(name, ".") || name == "testdata" || name == "node_modules") {
			return filepath.SkipDir
		}
		if d.IsDir() || filepath.Ext(name) != ".md" {
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		file, err := filepath.Rel(dir, path)
		pages = append(pages, parsePage(filepath.ToSlash(file), string(text)))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(pages) == 0 {
		t.Fatalf("no pages in %s", dir)
	}
	return pages
}

var fence = regexp.MustCompile("^( *)(```+|~~~+) *([^ `]*)[^`]*$")

func parsePage(file, text string) page {
	p := page{file: file}
	var open []string // the fence of the block that we are in
	for i, line := range strings.Split(text, "\n") {
		m := fence.FindStringSubmatch(line)
		switch {
		case open == nil && m == nil:
			p.lines = append(p.lines, line)
			continue
		case open == nil:
			open = m
			p.blocks = append(p.blocks, block{file: file, line: i + 2, language: m[3]})
		case m != nil && m[3] == "" && strings.HasPrefix(m[2], open[2]):
			open = nil
		default:
			b := &p.blocks[len(p.blocks)-1]
			b.text += strings.TrimPrefix(line, open[1]) + "\n"
		}
		p.lines = append(p.lines, "")
	}
	return p
}

// languages are those of the blocks, and whether somebody checks them here.
var languages = map[string]func(block) error{
	"go":      nil, // all at once: see compile
	"json":    parseJSON,
	"yaml":    parseYAML,
	"console": prompts,
	"sh":      parseShell,
	"sql":     unchecked,
	"text":    unchecked,
	"mermaid": unchecked,
}

func TestPages(t *testing.T) {
	for _, problem := range problems(t, readPages(t, root)) {
		t.Error(problem)
	}
}

// problems returns what is wrong with pages, each with its place.
func problems(t *testing.T, pages []page) (found []string) {
	t.Helper()
	var code []block
	for _, p := range pages {
		for _, b := range p.blocks {
			check, known := languages[b.language]
			switch {
			case !known:
				found = append(found, fmt.Sprintf("%s: a block in %q: say what it is, as one of the languages that are known here", b.at(), b.language))
			case check == nil:
				code = append(code, b)
			default:
				if err := check(b); err != nil {
					found = append(found, fmt.Sprintf("%s: %v", b.at(), err))
				}
			}
		}
	}
	found = append(found, compile(t, code)...)
	return append(found, deadLinks(pages)...)
}
