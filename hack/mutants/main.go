// Command mutants shows that the simulation bites: it breaks the library on purpose, one way at a time, and
// expects the simulation to find each within a number of seeds. The sources stay as they are: the broken file is
// put over the real one for the one test binary only (go test -c -overlay). It exits with 1 if one is not found.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"sync"
	"text/tabwriter"
	"time"
)

// mutant is one way to break the library.
type mutant struct {
	name     string
	file     string
	old, new string
}

// result is what became of the hunt for a mutant.
type result struct {
	mutant
	seed, fault string // where it was found
	err         error  // why it was not
	took        time.Duration
}

func main() {
	seeds := flag.Int("seeds", 1000, "how many seeds the simulation may take for each")
	only := flag.String("only", "", "run the mutants whose name contains this")
	flag.Parse()
	var results []*result
	for _, m := range mutants {
		if strings.Contains(m.name, *only) {
			results = append(results, &result{mutant: m})
		}
	}
	huntAll(results, *seeds)
	if found := report(results, *seeds); found < len(results) || found == 0 {
		os.Exit(1)
	}
}

// huntAll hunts for as many at a time as there are processors.
func huntAll(results []*result, seeds int) {
	var wg sync.WaitGroup
	places := make(chan struct{}, runtime.NumCPU())
	for _, r := range results {
		places <- struct{}{}
		wg.Go(func() {
			start := time.Now()
			r.seed, r.fault, r.err = hunt(r.mutant, seeds)
			r.took = time.Since(start)
			fmt.Fprintf(os.Stderr, "%s: done in %.0fs\n", r.name, r.took.Seconds())
			<-places
		})
	}
	wg.Wait()
}

// report prints the table, and returns how many were found.
func report(results []*result, seeds int) (found int) {
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "broken variant\tseed\ttime\tfault")
	for _, r := range results {
		seed, what := r.seed, r.fault
		if r.err == nil {
			found++
		} else {
			seed, what = "NOT FOUND", r.err.Error()
		}
		fmt.Fprintf(w, "%s\t%s\t%.1fs\t%s\n", r.name, seed, r.took.Seconds(), what)
	}
	_ = w.Flush()
	fmt.Printf("%d of %d broken variants found within %d seeds\n", found, len(results), seeds)
	return found
}

var firstFault = regexp.MustCompile(`(?m)seed (\d+):\n\s*(.*)`)

// hunt runs the simulation over the broken library, seed by seed, and returns the first one that finds a fault.
func hunt(m mutant, seeds int) (seed, fault string, err error) {
	dir, err := os.MkdirTemp("", "mutant")
	if err != nil {
		return "", "", err
	}
	defer os.RemoveAll(dir)
	overlay, err := m.overlay(dir)
	if err != nil {
		return "", "", err
	}
	binary := filepath.Join(dir, "sim.test")
	if out, err := exec.Command("go", "test", "-c", "-overlay", overlay, "-o", binary, "./internal/sim").CombinedOutput(); err != nil {
		return "", "", fmt.Errorf("it cannot be built: %w\n%s", err, out)
	}
	run := exec.Command(binary, "-test.run=TestPlans", "-test.timeout=20m", fmt.Sprint("-seeds=", seeds))
	run.Env = append(os.Environ(), "GOMAXPROCS=1")
	out, err := run.CombinedOutput()
	if err == nil {
		return "", "", fmt.Errorf("the simulation is content with it")
	}
	found := firstFault.FindSubmatch(out)
	if found == nil {
		return "", "", fmt.Errorf("the simulation failed in another way: %w\n%.2000s", err, out)
	}
	return string(found[1]), string(found[2]), nil
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
