package election

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics are those of one election. All methods of a nil *metrics do nothing: they were not asked for.
type metrics struct {
	all         []prometheus.Collector
	transitions prometheus.Counter
	renewals    prometheus.Histogram
	losses      *prometheus.CounterVec
}

const subsystem = "redlock_leader_election"

// newMetrics makes the metrics of e. What depends on the clock is read when it is asked for.
func newMetrics(e *Elector) *metrics {
	labels := prometheus.Labels{"name": e.lease}
	gauge := func(name, help string, value func(*term) float64) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Subsystem: subsystem, Name: name, ConstLabels: labels, Help: help,
		}, func() float64 {
			if t := e.leading(); t != nil {
				return value(t)
			}
			return 0
		})
	}
	m := &metrics{
		transitions: prometheus.NewCounter(prometheus.CounterOpts{
			Subsystem: subsystem, Name: "transitions_total", ConstLabels: labels,
			Help: "Changes of leader that this candidate has seen. 'name' is the election.",
		}),
		renewals: prometheus.NewHistogram(prometheus.HistogramOpts{
			Subsystem: subsystem, Name: "renewal_duration_seconds", ConstLabels: labels,
			Help:    "Time until a renewal of the lease was confirmed or given up, repetitions included. 'name' is the election.",
			Buckets: []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10},

			NativeHistogramBucketFactor:     1.1,
			NativeHistogramMaxBucketNumber:  100,
			NativeHistogramMinResetDuration: time.Hour,
		}),
		losses: prometheus.NewCounterVec(prometheus.CounterOpts{
			Subsystem: subsystem, Name: "losses_total", ConstLabels: labels,
			Help: "Terms of this candidate that ended by losing the lease. 'name' is the election; 'reason' is expired, unreachable or gone.",
		}, []string{"reason"}),
	}
	for _, reason := range []string{lossExpired, lossUnreachable, lossGone} {
		m.losses.WithLabelValues(reason)
	}
	m.all = []prometheus.Collector{
		gauge("master_status", "1 while this candidate leads, 0 otherwise. 'name' is the election.",
			func(*term) float64 { return 1 }),
		gauge("epoch", "Epoch of this candidate's term, 0 while it does not lead. 'name' is the election.",
			func(t *term) float64 { return float64(t.epoch) }),
		gauge("validity_seconds", "Time for which this candidate's lease can be relied on if it is not renewed, 0 without one. 'name' is the election.",
			func(t *term) float64 { return max(0, time.Until(t.lock.ValidUntil()).Seconds()) }),
		m.transitions, m.renewals, m.losses,
	}
	return m
}

// Describe and Collect make metrics one prometheus.Collector, which is registered as a whole or not at all.
func (m *metrics) Describe(ch chan<- *prometheus.Desc) {
	for _, c := range m.all {
		c.Describe(ch)
	}
}

func (m *metrics) Collect(ch chan<- prometheus.Metric) {
	for _, c := range m.all {
		c.Collect(ch)
	}
}

func (m *metrics) register(r prometheus.Registerer) error {
	if m == nil {
		return nil
	}
	return r.Register(m)
}

func (m *metrics) unregister(r prometheus.Registerer) {
	if m != nil {
		r.Unregister(m)
	}
}

func (m *metrics) transition() {
	if m != nil {
		m.transitions.Inc()
	}
}

func (m *metrics) renewal(d time.Duration) {
	if m != nil {
		m.renewals.Observe(d.Seconds())
	}
}

func (m *metrics) loss(reason string) {
	if m != nil {
		m.losses.WithLabelValues(reason).Inc()
	}
}
