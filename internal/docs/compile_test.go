package docs

import (
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime/debug"
	"slices"
	"strings"
	"testing"
)

// imports are those that a block without a package clause has when it uses them. Statements may use the names in
// testdata/names.go as well.
var imports = map[string]string{
	"context":        "context",
	"ctrl":           "sigs.k8s.io/controller-runtime",
	"election":       "github.com/ndyakov/go-redlock/election",
	"errors":         "errors",
	"leaderelection": "k8s.io/client-go/tools/leaderelection",
	"log":            "log",
	"manager":        "sigs.k8s.io/controller-runtime/pkg/manager",
	"os":             "os",
	"redis":          "github.com/redis/go-redis/v9",
	"redlock":        "github.com/ndyakov/go-redlock/redlock",
	"resourcelock":   "github.com/ndyakov/go-redlock/resourcelock",
	"rest":           "k8s.io/client-go/rest",
	"rl":             "k8s.io/client-go/tools/leaderelection/resourcelock",
	"time":           "time",
	"tls":            "crypto/tls",
}

// compile returns what the compiler has to say about blocks. Each is a package of its own, which exists in an overlay only.
func compile(t *testing.T, blocks []block) (found []string) {
	t.Helper()
	dir := t.TempDir()
	module, err := filepath.Abs(root)
	if err != nil {
		t.Fatal(err)
	}
	const at = "internal/docs/block"
	names, files := predeclared(t), make(map[string]string)
	for i, b := range blocks {
		src, err := program(b, names)
		if err != nil {
			found = append(found, err.Error())
			continue
		}
		real := filepath.Join(dir, fmt.Sprintf("%d.go", i))
		write(t, real, []byte(src))
		pkg := filepath.Join(module, at, fmt.Sprint(i))
		files[filepath.Join(pkg, "block.go")] = real
		if isStatements(b) {
			files[filepath.Join(pkg, "names.go")] = filepath.Join(module, "internal/docs/testdata/names.go")
		}
	}
	if len(files) == 0 {
		return found
	}
	overlay, err := json.Marshal(map[string]any{"Replace": files})
	if err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(dir, "overlay.json"), overlay)

	cmd := exec.CommandContext(t.Context(), "go", "build", "-overlay", filepath.Join(dir, "overlay.json"))
	if raceEnabled() { // what is compiled already is compiled so
		cmd.Args = append(cmd.Args, "-race")
	}
	cmd.Args = append(cmd.Args, "./"+at+"/...")
	cmd.Dir = module
	out, err := cmd.CombinedOutput()
	if err == nil {
		return found
	}
	for line := range strings.Lines(string(out)) {
		if !strings.HasPrefix(line, "#") { // the name of the package, which exists here only
			found = append(found, strings.TrimSpace(line))
		}
	}
	return append(found, err.Error())
}

var (
	aFile         = regexp.MustCompile(`(?m)\A(//.*\n|\n)*package \w+$`)
	aDeclaration  = regexp.MustCompile(`(?m)\A(//.*\n|\n)*(type |func (\([^)]*\) )?\w+\()`)
	packageClause = regexp.MustCompile(`(?m)^package \w+$`)
)

func isFile(b block) bool       { return aFile.MatchString(b.text) }
func isStatements(b block) bool { return !isFile(b) && !aDeclaration.MatchString(b.text) }

// program makes a file of a block: as it is if it is one, else declarations or statements, which are the body of a function
// that returns an error.
func program(b block, names map[string]bool) (string, error) {
	body := fmt.Sprintf("//line %s:%d:1\n%s", b.file, b.line, b.text)
	if isFile(b) { // nobody links it
		return packageClause.ReplaceAllString(body, "package block"), nil
	}
	if isStatements(b) {
		body = "func _() error {\n" + body + "\nreturn nil\n}\n"
	} else {
		names = nil
	}
	f, err := parser.ParseFile(token.NewFileSet(), "", "package block\n"+body, 0)
	if err != nil {
		return "", err
	}
	return "package block\n" + importsOf(f, names) + body, nil
}

// importsOf returns the import declarations of what f uses and neither itself nor names declare.
func importsOf(f *ast.File, names map[string]bool) string {
	var lines []string
	for _, used := range f.Unresolved {
		path, known := imports[used.Name]
		if known && !names[used.Name] {
			lines = append(lines, fmt.Sprintf("import %s %q\n", used.Name, path))
		}
	}
	slices.Sort(lines)
	return strings.Join(slices.Compact(lines), "")
}

// predeclared returns the variables that statements may use.
func predeclared(t *testing.T) map[string]bool {
	t.Helper()
	f, err := parser.ParseFile(token.NewFileSet(), "testdata/names.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	names := make(map[string]bool)
	ast.Inspect(f, func(n ast.Node) bool {
		if v, ok := n.(*ast.ValueSpec); ok {
			for _, name := range v.Names {
				names[name.Name] = true
			}
		}
		return true
	})
	return names
}

// raceEnabled reports whether this test was built with the race detector.
func raceEnabled() bool {
	info, _ := debug.ReadBuildInfo()
	return info != nil && slices.Contains(info.Settings, debug.BuildSetting{Key: "-race", Value: "true"})
}

func write(t *testing.T, file string, content []byte) {
	t.Helper()
	if err := os.WriteFile(file, content, 0o600); err != nil {
		t.Fatal(err)
	}
}
