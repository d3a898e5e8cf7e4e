package redlock

import (
	"testing"
	"time"
)

func TestVersionsThatAreTooOld(t *testing.T) {
	for version, want := range map[string]bool{
		"2.8.24": true, "4.0.14": true, "5.0.14": true, "5.255.255": true,
		"6.0.0": false, "6.2.14": false, "7.0.15": false, "7.2.4": false, "8.2.1": false, "10.0.0": false, "255.255.255": false,
		"": false, "unstable": false, // not judged
	} {
		if got := tooOld(version); got != want {
			t.Errorf("%q is too old: %v, want %v", version, got, want)
		}
	}
}

// Half the trip is how much later or earlier than in its middle the server may have looked at its clock.
func TestClocksAreBlamedOnlyForWhatTheTripDoesNotExplain(t *testing.T) {
	at := func(node int, ahead, give time.Duration) *server {
		return &server{node: node, clock: &clock{ahead, give}}
	}
	for _, c := range []struct {
		name    string
		servers []*server
		blamed  []string
	}{
		{"none", nil, nil},
		{"one", []*server{at(0, time.Hour, 0)}, nil},
		{"not asked", []*server{at(0, time.Hour, 0), {node: 1}, at(2, time.Hour, 0)}, nil},
		{"at the limit", []*server{at(0, 0, 0), at(1, 0, 0), at(2, clockTolerance, 0)}, nil},
		{"beyond it", []*server{at(0, 0, 0), at(1, 0, 0), at(2, clockTolerance+time.Millisecond, 0)}, []string{"node 2", "1.001s ahead"}},
		{"behind", []*server{at(0, -2*time.Second, 0), at(1, 0, 0), at(2, 0, 0)}, []string{"node 0", "2s behind"}},
		{"a long trip", []*server{at(0, 0, 0), at(1, 0, 0), at(2, 1300*time.Millisecond, 400*time.Millisecond)}, nil},
		{"not long enough", []*server{at(0, 0, 0), at(1, 0, 0), at(2, 1500*time.Millisecond, 400*time.Millisecond)}, []string{"node 2", "1.5s ahead"}},
		{"a long trip to the one in the middle", []*server{at(0, -2*time.Second, 0), at(1, 0, 1100*time.Millisecond), at(2, 2*time.Second, 0)}, nil},
		{"local clock elsewhere", []*server{at(0, -time.Hour, 0), at(1, -time.Hour, 0), at(2, 0, 0)}, []string{"node 2", "1h0m0s ahead"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			faults := clocks(c.servers)
			if c.blamed == nil && len(faults) > 0 || c.blamed != nil && len(faults) != 1 {
				t.Fatalf("faults: %v", faults)
			}
			if c.blamed != nil {
				wantError(t, faults[0], c.blamed...)
			}
		})
	}
}
