#!/usr/bin/env bash
# go, with the verbose output of `go test` kept in a log ($1) so that passed and skipped tests can be counted; what is
# printed is what `go test` prints without -v.
set -euo pipefail
log=$1
shift
if [ "$1" != test ]; then
	exec go "$@"
fi
shift
status=0
go test -v "$@" >>"$log" 2>&1 || status=$?
grep -E '^(ok|FAIL|panic|---? FAIL)|no test files' "$log" || true
if [ "$status" != 0 ]; then
	tail -n 300 "$log"
fi
exit "$status"
