package redistest

import (
	"fmt"
	"runtime"
	"slices"
	"testing"
)

// verdict is a test that notes how it ends.
type verdict struct {
	testing.TB
	how string
}

func (v *verdict) Helper()                      {}
func (v *verdict) Skip(args ...any)             { v.end("skip: " + fmt.Sprint(args...)) }
func (v *verdict) Fatal(args ...any)            { v.end("fatal: " + fmt.Sprint(args...)) }
func (v *verdict) Fatalf(f string, args ...any) { v.end("fatal: " + fmt.Sprintf(f, args...)) }
func (v *verdict) end(how string)               { v.how = how; runtime.Goexit() }

// verdictOn returns how a test that does this ends, "" if it goes on.
func verdictOn(t *testing.T, do func(testing.TB)) string {
	v := &verdict{TB: t}
	done := make(chan struct{})
	go func() {
		defer close(done)
		do(v)
	}()
	<-done
	return v.how
}

func TestWithoutRedis(t *testing.T) {
	for _, tt := range []struct{ ci, required, want string }{
		{"", "", "skip: " + missing},
		{"", "0", "skip: " + missing},
		{"true", "", "fatal: " + missing},
		{"", "1", "fatal: " + missing},
	} {
		t.Setenv("PATH", "")
		t.Setenv(envCI, tt.ci)
		t.Setenv(envRequired, tt.required)
		if got := verdictOn(t, func(tb testing.TB) { Start(tb) }); got != tt.want {
			t.Errorf("CI=%q REDISTEST_REQUIRED=%q: %q, want %q", tt.ci, tt.required, got, tt.want)
		}
	}
}

func TestGivenServers(t *testing.T) {
	t.Setenv(envSingle, "redis:6379")
	if got := Single(t); got != "redis:6379" {
		t.Errorf("Single = %q", got)
	}
	for _, tt := range []struct {
		given string
		want  []string // nil: refused
	}{
		{"a:1,b:1,c:1", []string{"a:1", "b:1", "c:1"}},
		{"a:1, b:1 ,c:1", []string{"a:1", "b:1", "c:1"}},
		{"a:1", nil},
		{"a:1,b:1", nil},
		{"a:1,b:1,", nil},
		{"a:1,b:1,a:1", nil},
		{"a:1,b:1,c:1,d:1", nil},
	} {
		t.Setenv(envRedlock, tt.given)
		var got []string
		how := verdictOn(t, func(tb testing.TB) { got = Redlock(tb) })
		if !slices.Equal(got, tt.want) || (how == "") != (tt.want != nil) {
			t.Errorf("%q: %q, %q", tt.given, got, how)
		}
	}
}

func TestStartedServers(t *testing.T) {
	t.Setenv(envSingle, "")
	t.Setenv(envRedlock, "")
	set(t, client(t, Single(t), clientTimeout), Key(t))
	if got := Redlock(t); !independent(got) {
		t.Errorf("Redlock = %q", got)
	}
	if first, second := Key(t), Key(t); first == second {
		t.Errorf("Key returned %q twice", first)
	}
}
