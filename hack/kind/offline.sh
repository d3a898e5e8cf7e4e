#!/usr/bin/env bash
# offline.sh COMMAND...: runs COMMAND, such as hack/test-kind.sh, beside a kind cluster of three nodes where no container
# registry can be reached. What a node consists of is built from Go modules and Debian packages, and kept in a cache folder.
# For Debian 12 on amd64, as root; the first run takes the better part of an hour on two cores, later ones two minutes.
#
# Docker runs in a network namespace of its own, and so does COMMAND: neither sees the networks of this machine.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
cache=${XDG_CACHE_HOME:-$HOME/.cache}/go-redlock/kind
run=$cache/run
name=go-redlock
export KIND_CLUSTER=$name KUBECONFIG=$run/kubeconfig DOCKER_HOST=unix://$run/docker.sock PATH=$cache/bin:$PATH

inside() { nsenter --net="/var/run/netns/$name" "$@"; } # 'ip netns exec' would hide the control groups

start_docker() {
	# A machine whose root lacks CAP_SYS_RESOURCE cannot give it to a container either.
	printf '{"runtimes": {"modest": {"path": "%s"}}, "default-runtime": "modest"}' "$here/modest-runc" >"$run/daemon.json"
	ip netns add "$name"
	inside ip link set lo up
	inside dockerd --config-file "$run/daemon.json" --data-root "$cache/docker" --exec-root "$run/exec" \
		--pidfile "$run/docker.pid" --host "$DOCKER_HOST" >"$run/dockerd.log" 2>&1 &
	for _ in $(seq 60); do
		if docker info >/dev/null 2>&1; then return; fi
		sleep 0.5
	done
	tail "$run/dockerd.log" >&2
	return 1
}

# network gives the Pods of every node a link to it, and the nodes a route to each other's Pods.
network() {
	local host pods address other nodes
	nodes=$(inside kubectl get nodes -o jsonpath='{range .items[*]}{.metadata.name} {.spec.podCIDR} {.status.addresses[?(@.type=="InternalIP")].address}{"\n"}{end}')
	while read -r host pods _; do
		sed "s|PODS|$pods|" "$here/ptp.conflist" | docker exec -i "$host" tee /etc/cni/net.d/10-ptp.conflist >/dev/null
		while read -r other pods address; do
			[ "$other" = "$host" ] || docker exec "$host" ip route replace "$pods" via "$address"
		done <<<"$nodes"
	done <<<"$nodes"
}

cleanup() {
	inside kind delete cluster --name "$name" || true
	if [ -s "$run/docker.pid" ]; then kill "$(cat "$run/docker.pid")"; fi
	wait
	ip netns delete "$name"
}

"$here/node.sh" "$cache"
for mod in go.mod hack/tools/go.mod; do (cd "$here/../.." && "${GO:-go}" mod download -modfile="$mod"); done # COMMAND could not
rm -rf "$run"
mkdir "$run"
trap cleanup EXIT
start_docker
image=kindest/node:$(cat "$cache/version")
docker image inspect "$image" >/dev/null 2>&1 ||
	docker import -c 'ENV container=docker' -c 'ENTRYPOINT ["/usr/local/bin/entrypoint", "/sbin/init"]' "$cache/node.tar" "$image"
inside kind create cluster --name "$name" --image "$image" --config "$here/cluster.yaml" --kubeconfig "$KUBECONFIG"
network
inside kubectl wait nodes --all --for condition=Ready --timeout 2m
inside "$@"
