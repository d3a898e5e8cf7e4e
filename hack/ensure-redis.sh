#!/usr/bin/env bash
# Makes sure that a redis-server is on the PATH.
set -euo pipefail

if command -v redis-server >/dev/null; then
	exit 0
fi
if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
	echo "redis-server is not on the PATH: install it (Debian: apt-get install redis-server, macOS: brew install redis)" >&2
	exit 1
fi
echo "installing redis-server"
# The tests start servers of their own: the packaged service must not start.
policy=/usr/sbin/policy-rc.d
if [ ! -e "$policy" ]; then
	printf '#!/bin/sh\nexit 101\n' >"$policy"
	chmod +x "$policy"
	trap 'rm -f "$policy"' EXIT
fi
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
apt-get install -y -qq --no-install-recommends redis-server >/dev/null
command -v redis-server >/dev/null
