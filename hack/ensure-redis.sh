#!/usr/bin/env bash
# Makes sure that a redis-server is on the PATH.
exec "$(dirname "$0")/ensure.sh" redis-server redis-server
