// Package kind tests the example controller end to end, as three replicas whose leader is deleted, killed, cut off from
// Redis, replaced by a rolling update, and drained with its node: in a kind cluster as Pods, or, where there is no
// container runtime, as processes beside a real API server. The scenarios are the same; see README.md.
//
// The tests have the build tag kind: make test-kind, and make test-kind-processes.
package kind
