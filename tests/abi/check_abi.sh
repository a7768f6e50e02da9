#!/bin/sh
# check_abi.sh HEADER ACCEPTED WORK: the header against the interface that was accepted last (ACCEPTED/abi.txt and
# bn_engine.abi, from dump.sh). Changes that break programs fail; additions are listed. `make abi-accept` accepts it.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
header=$1
accepted=$2
work=$3

refuse() {
    echo "the interface breaks programs that were compiled before: $1"
    exit 1
}

"$here/dump.sh" "$header" "$work"
awk -f "$here/compare.awk" "$accepted/abi.txt" "$work/abi.txt" > "$work/changes" || { cat "$work/changes"; refuse "see above"; }
cat "$work/changes"
if command -v abidiff > /dev/null; then
    # Structs that grew are judged by the table, since abidiff does not know of struct_size.
    sed -n 's/^added: struct \([a-z_]*\) .*/[suppress_type]\n  name = \1/p' "$work/changes" > "$work/grown.abignore"
    abidiff --no-added-syms --suppressions "$work/grown.abignore" "$accepted/bn_engine.abi" "$work/bn_engine.abi" \
        > "$work/abidiff" || { cat "$work/abidiff"; refuse "abidiff"; }
    with="and by abidiff"
elif [ -n "${CI:-}" ]; then
    echo "CI needs abidiff (Debian: abigail-tools)"
    exit 1
else
    with="(no abidiff here; Debian: abigail-tools)"
fi
echo "the interface: $(wc -l < "$work/abi.txt") constants, fields and declarations compared $with," \
    "$(grep -c ^added "$work/changes" || true) added since it was accepted"
