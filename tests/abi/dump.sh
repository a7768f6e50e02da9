#!/bin/sh
# dump.sh HEADER OUT: describes the interface in the folder OUT: abi.txt (every constant, field and declaration, as a C
# compiler sees them) and, where abidw is installed, bn_engine.abi. Rust's debug information does not describe C's
# types, so abidw reads a library of stubs that is made from the header.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
header=$(cd "$(dirname "$1")" && pwd)/$(basename "$1")
tools=$here/../../tools/header
mkdir -p "$2"
# Run there, so that no path gets into the dump.
cd "$2"
generate() { awk -f "$tools/parse.awk" -f "$tools/$1.awk" "$header"; }
compile() { ${CC:-cc} -w -std=c11 -I"$(dirname "$header")" "$@"; }

generate table > table.c
compile table.c -o table
./table > abi.txt
command -v abidw > /dev/null || exit 0
generate stubs > stubs.c
compile -g -O0 -shared -fPIC stubs.c -Wl,-soname,libbn_engine.so -o libstubs.so
abidw --no-corpus-path --no-comp-dir-path --no-show-locs --no-architecture --out-file bn_engine.abi libstubs.so
