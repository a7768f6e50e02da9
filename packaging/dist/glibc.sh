#!/bin/sh
# glibc.sh VERSION FILE...: fails if a file needs a newer glibc. With '' for VERSION (musl), no file may need
# glibc.
set -eu
most=${1:-0}
shift
for file; do
    newest=$(readelf -V "$file" 2> /dev/null | grep -o 'GLIBC_[0-9.]*' | sort -Vu | tail -n 1)
    newest=${newest#GLIBC_}
    [ "$(printf '%s\n' "$most" "${newest:-0}" | sort -V | tail -n 1)" = "$most" ] || {
        echo "$file needs glibc $newest, newer than $most"
        exit 1
    }
    echo "$(basename "$file"): glibc ${newest:-not needed}"
done
