#!/bin/sh
# lint.sh HEADER: lines of 100 columns at most without tabs; structs stand before what takes or holds them; it compiles
# alone, as C99, C11 and C++17, without warnings, and no struct ends in padding: a new field would begin there, where
# older callers leave garbage.
set -eu
here=$(dirname "$0")
header=$1
if awk -f "$here/parse.awk" -f "$here/order.awk" "$header" | grep .; then
    exit 1
fi
if awk 'length($0) > 100 || /\t/ { print FILENAME ":" FNR ": " (/\t/ ? "a tab" : length($0) " columns") }' "$header" | grep .; then
    echo "the limit is 100 columns, and no tabs"
    exit 1
fi
warn="-Wall -Wextra -pedantic -Werror -fsyntax-only"
for standard in c99 c11; do
    echo "#include \"$header\"" | ${CC:-cc} -std=$standard $warn -I. -x c -
done
echo "#include \"$header\"" | ${CXX:-c++} -std=c++17 $warn -I. -x c++ -
if echo "#include \"$header\"" | ${CC:-cc} -Wpadded -fsyntax-only -I. -x c - 2>&1 | grep -E 'padding (struct )?size'; then
    exit 1
fi
