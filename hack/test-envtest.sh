#!/usr/bin/env bash
# Runs the tests against a real kube-apiserver and etcd, which are built first if they have not been before. Arguments
# go to `go test`, such as -run Migration.
set -euo pipefail
cd "$(dirname "$0")/.."
export GO=${GO:-go}

hack/ensure-redis.sh
KUBEBUILDER_ASSETS=$(hack/envtest/build.sh | tail -n 1)
export KUBEBUILDER_ASSETS REDISTEST_REQUIRED=1
"$GO" vet -tags envtest ./test/envtest
# What is timed runs by itself; of the rest most of the time is waiting, so that many can run at a time.
exec "$GO" test -tags envtest -race -count=1 -timeout 15m -parallel 6 -v "$@" ./test/envtest
