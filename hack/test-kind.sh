#!/usr/bin/env bash
# The example controller end to end in a kind cluster: one of its own, or, if KIND_CLUSTER is set, the kind cluster of that
# name, which KUBECONFIG must lead to. Arguments go to `go test`.
set -euo pipefail
cd "$(dirname "$0")/.."
GO=${GO:-go}

missing() { echo "make test-kind needs $1" >&2; exit 1; }
command -v docker >/dev/null && docker info >/dev/null 2>&1 || missing "Docker, and leave to use it: 'docker info' fails"
command -v kind >/dev/null || missing "kind: go install sigs.k8s.io/kind@v0.33.0"

dir=$(mktemp -d)
cluster=${KIND_CLUSTER:-}
cleanup() {
	[ -n "${KIND_CLUSTER:-}" ] || [ -z "$cluster" ] || kind delete cluster --name "$cluster"
	rm -rf "$dir"
}
trap cleanup EXIT

# The controller's image has nothing but its binary.
mkdir "$dir/controller" "$dir/manifests"
CGO_ENABLED=0 "$GO" build -o "$dir/controller/controller" ./examples/controller
DOCKER_BUILDKIT=0 docker build -q --target prebuilt -t example-controller:e2e -f examples/controller/Dockerfile "$dir/controller"

# Redis as published, or, out of reach of any registry, the one of this machine with the libraries that it loads.
if docker pull -q redis:8 2>/dev/null; then
	docker tag redis:8 example-redis:e2e
else
	hack/ensure-redis.sh
	server=$(readlink -f "$(command -v redis-server)")
	mkdir -p "$dir/redis/bin" "$dir/redis/data"
	cp "$server" "$dir/redis/bin/redis-server"
	ldd "$server" | grep -oE '/[^ )]+' | xargs -I{} cp --parents -L {} "$dir/redis"
	tar -C "$dir/redis" -c . | docker import -c 'ENV PATH=/bin' - example-redis:e2e
fi

if [ -z "$cluster" ]; then
	cluster=go-redlock-e2e
	export KUBECONFIG=$dir/kubeconfig
	kind create cluster --name "$cluster" --config test/kind/cluster.yaml --wait 2m
fi
for image in example-controller:e2e example-redis:e2e; do
	docker save "$image" -o "$dir/image.tar" # load docker-image would ask the nodes for other platforms as well
	kind load image-archive --name "$cluster" "$dir/image.tar"
done
for deployment in single redlock; do
	"$GO" tool -modfile=hack/tools/go.mod kustomize build "test/kind/overlays/$deployment" >"$dir/manifests/$deployment.yaml"
done
"$GO" test -tags kind -count=1 -timeout 30m -v ./test/kind -manifests "$dir/manifests" "$@"
