// Command mutants shows that the simulation bites: it breaks the library on purpose, one way at a time, and
// expects the simulation to find each within a number of seeds. The sources stay as they are: the broken file is
// put over the real one for the one test run only (go test -overlay).
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"time"
)

// mutant is one way to break the library.
type mutant struct {
	name     string
	file     string
	old, new string
}

func main() {
	seeds := flag.Int("seeds", 1000, "how many seeds the simulation may take for each")
	only := flag.String("only", "", "run the mutants whose name contains this")
	flag.Parse()
	survivors := 0
	ran := 0
	for _, m := range mutants {
		if !strings.Contains(m.name, *only) {
			continue
		}
		ran++
		start := time.Now()
		how, err := hunt(m, *seeds)
		if err != nil {
			fmt.Printf("NOT FOUND  %-60s %v\n", m.name, err)
			survivors++
			continue
		}
		fmt.Printf("found      %-60s %6.1fs  %s\n", m.name, time.Since(start).Seconds(), how)
	}
	fmt.Printf("%d of %d broken variants found within %d seeds\n", ran-survivors, ran, *seeds)
	if survivors > 0 || ran == 0 {
		os.Exit(1)
	}
}

// hunt runs the simulation over the broken library, and returns what it found.
func hunt(m mutant, seeds int) (string, error) {
	dir, err := os.MkdirTemp("", "mutant")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(dir)
	overlay, err := m.overlay(dir)
	if err != nil {
		return "", err
	}
	args := []string{"test", "-overlay", overlay, "-count=1", "-timeout=20m", "./internal/sim", "-run=TestPlans", fmt.Sprint("-seeds=", seeds)}
	out, err := exec.Command("go", args...).CombinedOutput()
	if err == nil {
		return "", fmt.Errorf("the simulation is content with it")
	}
	found := regexp.MustCompile(`(?m)seed (\d+):\n\s*(.*)`).FindStringSubmatch(string(out))
	if found == nil {
		return "", fmt.Errorf("the simulation failed in another way:\n%.2000s", out)
	}
	return fmt.Sprintf("seed %s: %s", found[1], found[2]), nil
}

// overlay writes the broken file, and the list of files to replace.
func (m mutant) overlay(dir string) (string, error) {
	path, err := filepath.Abs(m.file)
	if err != nil {
		return "", err
	}
	source, err := os.ReadFile(path)
	if err != nil {
		return "", err
	}
	if n := strings.Count(string(source), m.old); n != 1 {
		return "", fmt.Errorf("%s has the text to break %d times, want once: %q", m.file, n, m.old)
	}
	broken := filepath.Join(dir, filepath.Base(path))
	if err := os.WriteFile(broken, []byte(strings.Replace(string(source), m.old, m.new, 1)), 0o600); err != nil {
		return "", err
	}
	list, err := json.Marshal(map[string]map[string]string{"Replace": {path: broken}})
	if err != nil {
		return "", err
	}
	name := filepath.Join(dir, "overlay.json")
	return name, os.WriteFile(name, list, 0o600)
}
