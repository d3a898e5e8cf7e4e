// Command tally reads the output of go test -json and prints what one wants to read of it: a line for each package,
// what failed and what skipped, and at the end the counts. It fails unless tests ran and every one of them passed: a
// test that skipped has not shown what it is there to show.
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"maps"
	"os"
	"slices"
	"strings"
)

func main() {
	log.SetFlags(0)
	if err := tally(os.Stdin, os.Stdout); err != nil {
		log.Fatal(err)
	}
}

// event is one line of go test -json; `go doc test2json` describes it.
type event struct {
	Action, Package, Test, Output string
}

// counts are of tests and subtests. A package that fails by itself (it does not build, its TestMain fails, it runs out
// of time) counts as one failure.
type counts struct {
	passed, failed, skipped int
}

func tally(in io.Reader, out io.Writer) error {
	var n counts
	said := map[string]map[string]string{} // package, test: what it said; forgotten when it has passed
	failedIn := map[string]int{}

	lines := bufio.NewReader(in)
	for {
		line, err := lines.ReadString('\n')
		var e event
		if json.Unmarshal([]byte(line), &e) != nil || e.Action == "" {
			fmt.Fprint(out, line) // of make, or of go itself
		}
		of := said[e.Package]
		if of == nil {
			of = map[string]string{}
			said[e.Package] = of
		}
		switch {
		case e.Action == "build-output":
			fmt.Fprint(out, e.Output)
		case e.Action == "output" && e.Test == "" && isResult(e.Output):
			fmt.Fprint(out, e.Output)
		case e.Action == "output":
			of[e.Test] += e.Output
		case e.Action == "pass" && e.Test != "":
			n.passed++
			delete(of, e.Test)
		case e.Action == "skip" && e.Test != "":
			n.skipped++
			fmt.Fprintf(out, "%s skipped:\n%s", e.Package, of[e.Test])
			delete(of, e.Test)
		case e.Action == "fail" && e.Test != "":
			n.failed++
			failedIn[e.Package]++
			fmt.Fprintf(out, "%s failed:\n%s", e.Package, of[e.Test])
			delete(of, e.Test)
		case e.Action == "fail":
			if failedIn[e.Package] == 0 {
				n.failed++
			}
			for _, test := range slices.Sorted(maps.Keys(of)) { // "" is the package itself; the others never ended
				fmt.Fprint(out, of[test])
			}
		}
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
	}
	fmt.Fprintf(out, "%d passed, %d failed, %d skipped\n", n.passed, n.failed, n.skipped)
	return n.verdict()
}

// isResult reports whether a package's output is the line that go test prints of it without -json, or part of a table
// of what it has measured.
func isResult(output string) bool {
	return strings.HasPrefix(output, "ok  \t") || strings.HasPrefix(output, "FAIL\t") || strings.HasPrefix(output, "| ") ||
		strings.Contains(output, "[no test files]")
}

func (n counts) verdict() error {
	switch {
	case n.failed > 0:
		return errors.New("tests failed")
	case n.skipped > 0:
		return errors.New("tests skipped: that counts as a failure here")
	case n.passed == 0:
		return errors.New("no test ran")
	}
	return nil
}
