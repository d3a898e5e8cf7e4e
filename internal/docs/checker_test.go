package docs

import (
	"slices"
	"strings"
	"testing"
)

// The checks themselves find what is wrong, at its place, and nothing else.
func TestBrokenPagesAreFound(t *testing.T) {
	code := func(language, text string) string { return "# Title\n\n```" + language + "\n" + text + "\n```\n" }
	cases := map[string]struct {
		page string
		want string // a problem begins so; empty: there is none
	}{
		"good.md": {code("go", "if !lock.NeedLeaderElection() {\n\treturn redlock.ErrLockLost\n}") + code("yaml", "a: 1\n---\nb: [2]") +
			code("json", `{"a": 1}`) + code("console", "$ make help\nwhat it prints") + code("sh", "ls 'a b'") + code("text", "anything (") +
			"[here](#title-1) [there](docs/faq.md#must-clocks-agree) [a file](LICENSE) `[not](a-link)` [outside](https://redis.io)\n", ""},
		"list.md":       {"- in a list:\n\n  ```json\n  {\"a\": 1}\n  ```\n", ""},
		"file.md":       {code("go", "package main\n\nfunc main() { undefined() }"), "file.md:6:"},
		"syntax.md":     {code("go", "x := (1"), "syntax.md:4:"},
		"name.md":       {code("go", "ctx.Done()\nmanager.NewLok(\"key\")"), "name.md:5:9: manager.NewLok undefined"},
		"type.md":       {code("go", "var _ redlock.Node = 1"), "type.md:4:"},
		"unused.md":     {code("go", "lock := manager.NewLock(\"key\")"), "unused.md:4:1: declared and not used: lock"},
		"declared.md":   {code("go", "func f(m *redlock.Manager) int { return m.Mode() }"), "declared.md:4:"},
		"complete.md":   {code("go", "func f() { manager.Close() }"), "complete.md:4:20: undefined: manager.Close"},
		"untagged.md":   {code("", "text"), `untagged.md:4: a block in ""`},
		"unknown.md":    {code("brainfuck", "+"), `unknown.md:4: a block in "brainfuck"`},
		"yaml.md":       {code("yaml", "a: [1"), "yaml.md:4:"},
		"json.md":       {code("json", `{"a": 1,}`), "json.md:4:"},
		"shell.md":      {code("sh", "if true; then"), "shell.md:4:"},
		"console.md":    {code("console", "make test"), "console.md:4:"},
		"deadfile.md":   {"[x](docs/nothing.md)", "deadfile.md:1: the link to docs/nothing.md is dead"},
		"deadanchor.md": {"\n[x](#nothing)", "deadanchor.md:2: the link to #nothing is dead"},
		"deadpage.md":   {"[x](docs/faq.md#nothing)", "deadpage.md:1: the link to docs/faq.md#nothing is dead"},
	}
	pages := []page{parsePage("docs/faq.md", "# Hard questions\n\n### Must clocks `agree`?\n")}
	for file, c := range cases {
		pages = append(pages, parsePage(file, c.page))
	}
	found := problems(t, pages)
	for file, c := range cases {
		i := slices.IndexFunc(found, func(s string) bool { return strings.HasPrefix(s, file) })
		switch {
		case c.want == "" && i >= 0:
			t.Errorf("%s is good, but: %s", file, found[i])
		case c.want != "" && (i < 0 || !strings.HasPrefix(found[i], c.want)):
			t.Errorf("%s: want %q among\n%s", file, c.want, strings.Join(found, "\n"))
		}
	}
}
