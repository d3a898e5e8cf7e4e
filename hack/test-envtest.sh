#!/usr/bin/env bash
# Runs the tests against a real kube-apiserver and etcd, which are built first if they have not been before: those in
# test/envtest, or with SUITE=kind those in test/kind. Arguments go to `go test`, such as -run Migration.
set -euo pipefail
cd "$(dirname "$0")/.."
export GO=${GO:-go}
suite=${SUITE:-envtest}

hack/ensure-redis.sh
KUBEBUILDER_ASSETS=$(hack/envtest/build.sh | tail -n 1)
export KUBEBUILDER_ASSETS REDISTEST_REQUIRED=1
"$GO" vet -tags "$suite" "./test/$suite"
# What is timed runs by itself; of the rest most of the time is waiting, so that many can run at a time.
exec "$GO" test -tags "$suite" -race -count=1 -timeout 15m -parallel 6 -v "$@" "./test/$suite"
