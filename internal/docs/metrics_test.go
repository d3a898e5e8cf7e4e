package docs

import (
	"context"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/alicebob/miniredis/v2"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"

	"github.com/ndyakov/go-redlock/election"
	"github.com/ndyakov/go-redlock/redlock"
)

var metric = regexp.MustCompile(`redlock_[a-z_]+[a-z]`)

// An alert on a metric that does not exist never fires.
func TestTheMetricsOfThePagesExist(t *testing.T) {
	names := metricsOfALeader(t)
	for _, p := range readPages(t, root) {
		text := strings.Join(p.lines, "\n")
		for _, b := range p.blocks {
			text += b.text
		}
		for _, name := range metric.FindAllString(text, -1) {
			if !slices.Contains(names, strings.TrimSuffix(name, "_bucket")) {
				t.Errorf("%s: there is no metric %s: a leader has %q", p.file, name, names)
			}
		}
	}
}

func metricsOfALeader(t *testing.T) (names []string) {
	t.Helper()
	rdb := redis.NewClient(&redis.Options{Addr: miniredis.RunT(t).Addr()})
	defer rdb.Close()
	m, err := redlock.NewSingle(rdb)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	registry := prometheus.NewRegistry()
	err = election.Lead(t.Context(), election.Config{Manager: m, Name: "pages", Registerer: registry}, func(context.Context) error {
		families, err := registry.Gather()
		for _, f := range families {
			names = append(names, f.GetName())
		}
		return err
	})
	if err != nil || len(names) == 0 {
		t.Fatalf("%q: %v", names, err)
	}
	return names
}
