# To be sourced: which Kubernetes and etcd go.mod here pins, and how Kubernetes is linked.
GO=${GO:-go}
export GOWORK=off CGO_ENABLED=0
versionOf() { (cd "$(dirname "${BASH_SOURCE[0]}")" && "$GO" list -m -f '{{.Version}}' "$1"); }
kubernetes=$(versionOf k8s.io/kubernetes)
etcd=$(versionOf go.etcd.io/etcd/server/v3)

# Without these it thinks that it is v0.0.0: the API server serves no API that was added since.
major=${kubernetes#v} major=${major%%.*}
minor=${kubernetes#v*.} minor=${minor%%.*}
kubernetes_flags="-s -w"
for flag in "gitVersion=$kubernetes" "gitMajor=$major" "gitMinor=$minor"; do
	kubernetes_flags+=" -X k8s.io/component-base/version.$flag"
done
