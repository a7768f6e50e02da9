#!/bin/sh
# lint.sh HEADER: lines of 100 columns at most without tabs; it compiles alone, as C99, C11 and C++17, without warnings, and
# in its structs no byte lies between two fields unnamed.
set -eu
header=$1
if awk 'length($0) > 100 || /\t/ { print FILENAME ":" FNR ": " (/\t/ ? "a tab" : length($0) " columns") }' "$header" | grep .; then
    echo "the limit is 100 columns, and no tabs"
    exit 1
fi
warn="-Wall -Wextra -Wpadded -pedantic -Werror -fsyntax-only"
for standard in c99 c11; do
    echo "#include \"$header\"" | ${CC:-cc} -std=$standard $warn -I. -x c -
done
echo "#include \"$header\"" | ${CXX:-c++} -std=c++17 $warn -I. -x c++ -
