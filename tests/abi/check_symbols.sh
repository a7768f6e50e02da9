#!/bin/sh
# check_symbols.sh shared|static|dll|dylib LIBRARY LIST [VERSION]: the library's global names are exactly those of LIST, each with
# VERSION (@@BN_1) after it.
set -eu
case $1 in
shared) found=$(nm -D --defined-only "$2" | awk '$2 != "A" { print $NF }') ;;
dll) found=$(${OBJDUMP:-x86_64-w64-mingw32-objdump} -p "$2" | awk '/Ordinal\/Name Pointer/ { on = 1; next } on && NF == 0 { exit } on { print $NF }') ;;
dylib) found=$(${LLVM_NM:-llvm-nm} -g --defined-only "$2" | awk 'NF == 3 { print substr($3, 2) }') ;;
static) found=$(nm -g --defined-only "$2" | awk 'NF == 3 { print $3 }') ;;
esac
wanted=$(sed "s/\$/${4:-}/" "$3")
if [ "$(echo "$found" | LC_ALL=C sort)" != "$(echo "$wanted" | LC_ALL=C sort)" ]; then
    echo "$2 does not export what the header declares. It has:"
    echo "$found"
    exit 1
fi
echo "$(wc -l < "$3") symbols in the $1 library${4:+, each $4}, as in the header"
