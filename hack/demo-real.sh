#!/usr/bin/env bash
# The demo on real servers: one, and three. They listen on loopback, and end with this script.
set -euo pipefail

dir=$(mktemp -d)
pids=()
cleanup() {
	for pid in "${pids[@]}"; do kill "$pid" 2>/dev/null || true; done
	wait
	rm -rf "$dir"
}
trap cleanup EXIT

addrs=()
port=17380
while [ "${#addrs[@]}" -lt 3 ]; do
	port=$((port + 1))
	[ "$port" -lt 17480 ] || { echo "no free port for redis-server" >&2; exit 1; }
	mkdir -p "$dir/$port"
	redis-server --bind 127.0.0.1 --port "$port" --dir "$dir/$port" --save "" >"$dir/$port/log" 2>&1 &
	pid=$!
	for _ in $(seq 100); do
		if ! kill -0 "$pid" 2>/dev/null; then break; fi # the port is taken
		if redis-cli -p "$port" info server 2>/dev/null | grep -q "process_id:$pid"; then
			pids+=("$pid")
			addrs+=("127.0.0.1:$port")
			break
		fi
		sleep 0.1
	done
done

go run ./examples/controller --redis "${addrs[0]}"
go run ./examples/controller --redis "$(IFS=,; echo "${addrs[*]}")"
