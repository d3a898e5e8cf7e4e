// Package envtest tests the library against a real kube-apiserver and etcd: controller-runtime managers in processes of
// their own, elected by Redis, by a Kubernetes Lease, or by both while a controller moves from one to the other.
//
// The tests have the build tag envtest, because they need binaries that take many minutes to build: hack/envtest
// builds and keeps them, and `make test-envtest` does all of it. A tag, not a skip: where the tests are asked for, a
// missing API server fails them, and elsewhere they are not part of the run at all. And not a module of
// its own, because what they import the main module has anyway; only the API server's own dependencies, ten times
// as many, are kept apart.
package envtest
