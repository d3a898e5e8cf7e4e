#!/usr/bin/env bash
# ensure.sh COMMAND PACKAGE...: makes sure that COMMAND is on the PATH. Where root can use apt-get, it installs the
# packages; elsewhere it says in one line what to install, and fails.
set -euo pipefail
need=$1
shift

if command -v "$need" >/dev/null; then
	exit 0
fi
if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
	echo "$need is not on the PATH: install it (Debian: apt-get install $*, macOS: brew install ${need%-server})" >&2
	exit 1
fi

# Tests start servers of their own: a service that comes with a package must not run. Debian asks policy-rc.d before
# it starts one. A policy that is already there stays, and may allow it: what has been started is stopped at the end.
policy=/usr/sbin/policy-rc.d
if [ ! -e "$policy" ]; then
	trap 'rm -f "$policy"' EXIT
	printf '#!/bin/sh\nexit 101\n' >"$policy"
	chmod 755 "$policy"
fi
running() { service "$1" status >/dev/null 2>&1; }
before=stopped
if running "$1"; then before=running; fi

export DEBIAN_FRONTEND=noninteractive
apt() { apt-get -qq -o DPkg::Lock::Timeout=300 -o Acquire::Retries=3 -o Acquire::http::Timeout=30 "$@" </dev/null >/dev/null; }
install() { apt install -y --no-install-recommends "$@"; }
echo "installing $*"
install "$@" 2>/dev/null || { # perhaps the lists of packages are missing, or old
	apt update
	install "$@"
}

if [ "$before" = stopped ] && [ -e "/etc/init.d/$1" ]; then
	if running "$1"; then service "$1" stop >/dev/null; fi
	update-rc.d "$1" disable # nor at the next boot
fi
command -v "$need" >/dev/null || { echo "$need is still not on the PATH after installing $*" >&2; exit 1; }
