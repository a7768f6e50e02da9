#!/bin/sh
# dump.sh HEADER OUT: writes what the interface is to the folder OUT: abi.txt (every constant, field and declaration, as a C
# compiler sees them) and, where abidw is installed, bn_engine.abi. Rust's debug information does not describe C's
# types, so abidw reads a library of stubs that is made from the header.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
header=$1
out=$2
tools=$here/../../tools/header
mkdir -p "$out"
generate() { awk -f "$tools/parse.awk" -f "$tools/$1.awk" "$header"; }
compile() { ${CC:-cc} -w -std=c11 -I"$(dirname "$header")" "$@"; }

generate table > "$out/table.c"
compile "$out/table.c" -o "$out/table"
"$out/table" > "$out/abi.txt"
command -v abidw > /dev/null || exit 0
generate stubs > "$out/stubs.c"
compile -g -O0 -shared -fPIC "$out/stubs.c" -Wl,-soname,libbn_engine.so -o "$out/libstubs.so"
abidw --no-corpus-path --no-comp-dir-path --no-show-locs --no-architecture --out-file "$out/bn_engine.abi" "$out/libstubs.so"
