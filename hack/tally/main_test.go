package main

import (
	"strings"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestTally(t *testing.T) {
	for _, tt := range []struct {
		name string
		in   []string
		want string
		err  string // "": no error
	}{
		{
			name: "all passed",
			in: []string{
				`go vet ./...`,
				`{"Action":"start","Package":"p"}`,
				`{"Action":"output","Package":"p","Output":"-test.shuffle 17\n"}`,
				`{"Action":"run","Package":"p","Test":"TestA"}`,
				`{"Action":"output","Package":"p","Test":"TestA","Output":"--- SKIP: not really\n"}`,
				`{"Action":"output","Package":"p","Test":"TestA","Output":"{\"Action\":\"fail\",\"Test\":\"TestA\"}\n"}`,
				`{"Action":"pass","Package":"p","Test":"TestA/sub","Elapsed":0}`,
				`{"Action":"pass","Package":"p","Test":"TestA","Elapsed":0}`,
				`{"Action":"output","Package":"p","Output":"PASS\n"}`,
				`{"Action":"output","Package":"p","Output":"| what | ms |\n"}`,
				`{"Action":"output","Package":"p","Output":"ok  \tp\t1.2s\n"}`,
				`{"Action":"pass","Package":"p","Elapsed":1.2}`,
				`{"Action":"output","Package":"q","Output":"?   \tq\t[no test files]\n"}`,
				`{"Action":"skip","Package":"q","Elapsed":0}`,
			},
			want: "go vet ./...\n| what | ms |\nok  \tp\t1.2s\n?   \tq\t[no test files]\n2 passed, 0 failed, 0 skipped\n",
		},
		{
			name: "one failed",
			in: []string{
				`{"Action":"output","Package":"p","Test":"TestA","Output":"    a_test.go:1: no\n"}`,
				`{"Action":"fail","Package":"p","Test":"TestA"}`,
				`{"Action":"pass","Package":"p","Test":"TestB"}`,
				`{"Action":"output","Package":"p","Output":"-test.shuffle 17\n"}`,
				`{"Action":"output","Package":"p","Output":"FAIL\tp\t1.2s\n"}`,
				`{"Action":"fail","Package":"p"}`,
			},
			want: "p failed:\n    a_test.go:1: no\nFAIL\tp\t1.2s\n-test.shuffle 17\n1 passed, 1 failed, 0 skipped\n",
			err:  "tests failed",
		},
		{
			name: "one skipped",
			in: []string{
				`{"Action":"output","Package":"p","Test":"TestA","Output":"    a_test.go:1: there is no redis-server\n"}`,
				`{"Action":"skip","Package":"p","Test":"TestA"}`,
				`{"Action":"pass","Package":"p","Test":"TestB"}`,
				`{"Action":"pass","Package":"p"}`,
			},
			want: "p skipped:\n    a_test.go:1: there is no redis-server\n1 passed, 0 failed, 1 skipped\n",
			err:  "tests skipped: that counts as a failure here",
		},
		{
			name: "a package does not build",
			in: []string{
				`{"ImportPath":"p","Action":"build-output","Output":"p.go:1: undefined: x\n"}`,
				`{"ImportPath":"p","Action":"build-fail"}`,
				`{"Action":"output","Package":"p","Output":"FAIL\tp [build failed]\n"}`,
				`{"Action":"fail","Package":"p","FailedBuild":"p"}`,
			},
			want: "p.go:1: undefined: x\nFAIL\tp [build failed]\n0 passed, 1 failed, 0 skipped\n",
			err:  "tests failed",
		},
		{
			name: "goroutines leaked after the last test",
			in: []string{
				`{"Action":"pass","Package":"p","Test":"TestA"}`,
				`{"Action":"output","Package":"p","Output":"goleak: Errors on successful test run\n"}`,
				`{"Action":"fail","Package":"p"}`,
			},
			want: "goleak: Errors on successful test run\n1 passed, 1 failed, 0 skipped\n",
			err:  "tests failed",
		},
		{
			name: "a test did not end",
			in: []string{
				`{"Action":"run","Package":"p","Test":"TestA"}`,
				`{"Action":"output","Package":"p","Test":"TestA","Output":"panic: test timed out\n"}`,
				`{"Action":"fail","Package":"p"}`,
			},
			want: "panic: test timed out\n0 passed, 1 failed, 0 skipped\n",
			err:  "tests failed",
		},
		{
			name: "nothing ran",
			in:   []string{`make: *** [Makefile:23: test] Error 1`},
			want: "make: *** [Makefile:23: test] Error 1\n0 passed, 0 failed, 0 skipped\n",
			err:  "no test ran",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var out strings.Builder
			err := tally(strings.NewReader(strings.Join(tt.in, "\n")+"\n"), &out)
			if got := out.String(); got != tt.want {
				t.Errorf("printed:\n%s\nwant:\n%s", got, tt.want)
			}
			if (err == nil) != (tt.err == "") || (err != nil && err.Error() != tt.err) {
				t.Errorf("error: %v, want %q", err, tt.err)
			}
		})
	}
}
