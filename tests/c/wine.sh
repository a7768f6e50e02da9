#!/bin/sh
# Runs a program under Wine ($WINE): wine.sh PROGRAM [ARGUMENT...]. A client sometimes loses Wine's server before the
# program has begun ("wine client error:0: recvmsg: Connection reset by peer"); then it is started once more.
set -u
errors=$(mktemp)
trap 'rm -f "$errors"' EXIT
"${WINE:-wine}" "$@" 2> "$errors"
code=$?
cat "$errors" >&2
if [ $code = 0 ] || ! grep -q '^wine client error:0:' "$errors"; then
    exit $code
fi
echo "Wine did not start $1: once more" >&2
"${WINE:-wine}" "$@"
