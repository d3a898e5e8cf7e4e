package docs

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strings"

	"k8s.io/apimachinery/pkg/util/yaml"
)

func unchecked(block) error { return nil }

func parseJSON(b block) error {
	var v any
	return json.Unmarshal([]byte(b.text), &v)
}

func parseYAML(b block) error {
	for d := yaml.NewYAMLOrJSONDecoder(strings.NewReader(b.text), 4096); ; {
		var v any
		if err := d.Decode(&v); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
	}
}

// parseShell is for commands that need a place of the reader's own, such as a cluster.
func parseShell(b block) error {
	cmd := exec.Command("bash", "-n")
	cmd.Stdin = strings.NewReader(b.text)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	return nil
}

// prompts has commands told from what they print, so that a reader knows what to type.
func prompts(b block) error {
	if !strings.HasPrefix(b.text, "$ ") {
		return fmt.Errorf("it does not begin with a command: %q", strings.SplitN(b.text, "\n", 2)[0])
	}
	return nil
}
