#!/bin/sh
# check_symbols.sh shared|static LIBRARY LIST: the library's global names are exactly those of LIST.
set -eu
case $1 in
shared) found=$(nm -D --defined-only "$2" | awk '{ print $NF }') ;;
static) found=$(nm -g --defined-only "$2" | awk 'NF == 3 { print $3 }') ;;
esac
found=$(printf '%s\n' "$found" | LC_ALL=C sort)
if ! difference=$(printf '%s\n' "$found" | diff "$3" -); then
    echo "$2 exports other symbols than $3 lists (< listed, > exported):"
    echo "$difference"
    exit 1
fi
echo "$(wc -l < "$3") symbols in the $1 library, as listed"
