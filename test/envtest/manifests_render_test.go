//go:build envtest

package envtest

import (
	"bytes"
	"cmp"
	"errors"
	"io"
	"os"
	"os/exec"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/yaml"
)

// overlays are the manifests that can be deployed, and how many Redis servers they have.
var overlays = map[string]int{"single": 1, "redlock": 3}

// manifests are the objects of an overlay.
type manifests []*unstructured.Unstructured

// render does what kubectl apply -k does, with the tool that kubectl has built in.
func render(t *testing.T, overlay string) manifests {
	t.Helper()
	cmd := exec.Command(goCommand(), "tool", "-modfile=../../hack/tools/go.mod", "kustomize", "build", deployDir+"overlays/"+overlay)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("kustomize build of overlay %s: %v\n%s", overlay, err, &stderr)
	}
	return decode(t, out)
}

func decodeFile(t *testing.T, path string) manifests {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return decode(t, data)
}

func decode(t *testing.T, data []byte) (all manifests) {
	t.Helper()
	for d := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(data), 4096); ; {
		obj := &unstructured.Unstructured{}
		err := d.Decode(obj)
		if errors.Is(err, io.EOF) {
			return all
		}
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, obj)
	}
}

// goCommand is the one that runs the tests.
func goCommand() string { return cmp.Or(os.Getenv("GO"), "go") }

// ofKind returns the objects of a kind as the type T.
func ofKind[T any](t *testing.T, all manifests, kind string) (found []T) {
	t.Helper()
	for _, obj := range all {
		if obj.GetKind() != kind {
			continue
		}
		var typed T
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(obj.Object, &typed); err != nil {
			t.Fatalf("%s %s: %v", kind, obj.GetName(), err)
		}
		found = append(found, typed)
	}
	if len(found) == 0 {
		t.Fatalf("there is no %s", kind)
	}
	return found
}

// only returns the one object of a kind.
func only[T any](t *testing.T, all manifests, kind string) T {
	t.Helper()
	found := ofKind[T](t, all, kind)
	if len(found) != 1 {
		t.Fatalf("there are %d of kind %s, want 1", len(found), kind)
	}
	return found[0]
}
