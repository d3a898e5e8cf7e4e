#!/usr/bin/env bash
# The demo on real servers: one, and three. They listen on loopback, on free ports, and end with this script.
set -euo pipefail
cd "$(dirname "$0")/.."

dir=$(mktemp -d)
cleanup() {
	# shellcheck disable=SC2046 # one word for each server that still runs
	kill $(jobs -pr) 2>/dev/null || true
	wait
	rm -rf "$dir"
}
trap cleanup EXIT

# answers PORT PID: whether the server on the port is that process, and not somebody else's.
answers() { timeout 1 redis-cli -h 127.0.0.1 -p "$1" info server 2>/dev/null | grep -q "^process_id:$2[^0-9]*$"; }

# start PORT: a server on the port, unless it is taken.
start() {
	mkdir "$dir/$1"
	redis-server --bind 127.0.0.1 --port "$1" --dir "$dir/$1" --save "" >"$dir/$1/log" 2>&1 &
	local pid=$! deadline=$((SECONDS + 10))
	until answers "$1" "$pid"; do
		kill -0 "$pid" 2>/dev/null || return 1 # it could not listen
		if [ "$SECONDS" -ge "$deadline" ]; then
			echo "redis-server on port $1 does not answer:" >&2
			cat "$dir/$1/log" >&2
			exit 1
		fi
		sleep 0.1
	done
}

addrs=()
for port in {17380..17479}; do
	[ "${#addrs[@]}" -lt 3 ] || break
	if start "$port"; then addrs+=("127.0.0.1:$port"); fi
done
if [ "${#addrs[@]}" -lt 3 ]; then
	echo "three redis-servers could not be started; the last one said:" >&2
	cat "$dir/$port/log" >&2
	exit 1
fi

go run ./examples/controller --redis "${addrs[0]}"
go run ./examples/controller --redis "$(IFS=,; echo "${addrs[*]}")"
