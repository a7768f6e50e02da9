#!/bin/sh
# windows.sh BN-SERVER.EXE: under Wine it starts with the embedded model, answers, and ends when it is asked to. $WINE is
# Wine. Needs curl.
set -eu
server=$1
dir=$(mktemp -d)
pid=
trap '[ -z "$pid" ] || kill -9 "$pid" 2> /dev/null || true; rm -rf "$dir"' EXIT

fail() {
    echo "bn-server.exe: $1"
    head -n 20 "$dir"/err "$dir"/body
    exit 1
}
: > "$dir/body"
# asks PATH WORDS [ARGUMENT OF CURL...]: the answer has the words.
asks() {
    path=$1 words=$2
    shift 2
    curl -sS --max-time 60 -o "$dir/body" "http://127.0.0.1:$port$path" "$@" 2>> "$dir/err" || fail "$path is not answered"
    grep -q -e "$words" "$dir/body" || fail "$path was not answered by $words"
}

"$(dirname "$0")/../../../tests/c/wine.sh" "$server" --version > "$dir/body" 2> "$dir/err" || fail "--version ended with $?"
# Not through wine.sh, which would get the signal instead.
"${WINE:-wine}" "$server" --port 0 2> "$dir/err" &
pid=$!
for _ in $(seq 300); do
    port=$(sed -n 's/.*listening on .* port \([0-9]*\).*/\1/p' "$dir/err")
    [ -z "$port" ] || break
    kill -0 "$pid" 2> /dev/null || fail "it did not start"
    sleep 0.2
done
[ -n "$port" ] || fail "it does not listen"
asks /health '"status":"ok"' --retry 30 --retry-delay 1 --retry-all-errors --fail
asks /v1/completions '"text":"42"' -d '{"prompt": "17+25=", "max_tokens": 8}'
asks /v1/completions '^data: \[DONE\]' -d '{"prompt": "17+25=", "max_tokens": 8, "stream": true}'
# Wine makes it Ctrl-C.
kill -INT "$pid"
code=0
wait "$pid" || code=$?
pid=
[ "$code" = 0 ] || fail "it ended with $code"
grep -q 'finishing what runs' "$dir/err" || fail "it does not say that it ends"
echo "bn-server.exe starts, answers and ends"
