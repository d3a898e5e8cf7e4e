package election

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	ctrlmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/ndyakov/go-redlock/internal/bubble"
)

// value returns a metric of an election, as a scrape would find it.
func value(t *testing.T, g prometheus.Gatherer, metric, election, reason string) float64 {
	t.Helper()
	families, err := g.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			labels := map[string]string{}
			for _, l := range m.GetLabel() {
				labels[l.GetName()] = l.GetValue()
			}
			if f.GetName() != "redlock_leader_election_"+metric || labels["name"] != election || labels["reason"] != reason {
				continue
			}
			switch {
			case m.Gauge != nil:
				return m.Gauge.GetValue()
			case m.Counter != nil:
				return m.Counter.GetValue()
			default:
				return float64(m.Histogram.GetSampleCount())
			}
		}
	}
	t.Fatalf("there is no %s of %s", metric, election)
	return 0
}

func TestMetrics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server, _ := bubble.Redis(t)
		h := newHistory()
		registry := prometheus.NewPedanticRegistry()
		measured := func(c *Config) { c.Registerer = registry }
		a := newCandidate(t, h, server, "a", measured).run()
		shard := newCandidate(t, h, server, "b", measured, func(c *Config) { c.Name = "shard-2" }).run()
		time.Sleep(time.Second)
		other := newCandidate(t, h, server, "b").run()
		time.Sleep(time.Minute)

		check := func(metric, reason string, least, most float64) {
			t.Helper()
			if v := value(t, registry, metric, "ns/name", reason); v < least || v > most {
				t.Errorf("%s %s is %v, want %v to %v", metric, reason, v, least, most)
			}
		}
		check("master_status", "", 1, 1)
		check("epoch", "", 1, 1)
		check("validity_seconds", "", 12, 15)
		check("transitions_total", "", 0, 0)
		check("renewal_duration_seconds", "", 30, 41)
		check("losses_total", "gone", 0, 0)
		families, err := registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		if problems, err := promlint.NewWithMetricFamilies(families).Lint(); err != nil || len(problems) != 0 {
			t.Errorf("the linter says %v, %v", problems, err)
		}

		server.Del(leaseKey)
		time.Sleep(3 * time.Second)
		check("losses_total", "gone", 1, 1)
		a.link.Cut()
		time.Sleep(20 * time.Second)
		check("losses_total", "unreachable", 1, 1)
		check("losses_total", "expired", 0, 0)
		check("master_status", "", 0, 0)
		check("validity_seconds", "", 0, 0)
		a.link.Mend()
		time.Sleep(5 * time.Second)
		check("transitions_total", "", 2, 2)
		if !other.IsLeader() || value(t, registry, "master_status", "ns/shard-2", "") != 1 {
			t.Error("the shard is of another election")
		}

		// The same election again, in the same registry.
		again := newCandidate(t, h, server, "c", measured).run()
		<-again.done
		if again.err == nil || !strings.Contains(again.err.Error(), "Config.Registerer") {
			t.Errorf("the same election was registered twice: %v", again.err)
		}
		a.end()
		again.run()
		time.Sleep(time.Second)
		check("master_status", "", 0, 0)
		again.end()
		shard.end()
		if families, err := registry.Gather(); len(families) != 0 || err != nil {
			t.Errorf("%v are left, %v", families, err)
		}
	})
}

// controller-runtime's registry has client-go's own leader election metrics.
func TestMetricsInTheRegistryOfControllerRuntime(t *testing.T) {
	cfg := validConfig(t)
	cfg.Registerer = ctrlmetrics.Registry
	e, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if err := e.metrics.register(cfg.Registerer); err != nil {
		t.Error(err)
	}
	e.metrics.unregister(cfg.Registerer)
}
