#!/bin/sh
# If headers of other projects are missing, `make hosts` names the packages to install in one line, before it builds anything.
set -eu
cd "$(dirname "$0")/.."
for target in hosts test-hosts; do
    # A compiler that finds no header at all.
    if out=$(make --no-print-directory "$target" CC="${CC:-cc} -nostdinc" CARGO=false 2>&1); then
        echo "make $target was content without headers"
        exit 1
    fi
    said=$(printf '%s\n' "$out" | grep -v '^make') || said=
    case $said in
    *"
"*) wrong=1 ;;
    "bn-server lacks headers: apt install "*libcjson-dev*) wrong= ;;
    *) wrong=1 ;;
    esac
    if [ -n "$wrong" ]; then
        printf '%s\n' "make $target does not say in one line what it needs:" "$out"
        exit 1
    fi
done
