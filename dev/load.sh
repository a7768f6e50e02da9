#!/bin/sh
# Load time and memory of models of 2B-4T's shape, compared with the time to read the file:
#   dev/load.sh [FOLDER for the files, 5 GiB]
# Cold: the file is not in the system's page cache (needs root; otherwise only warm). Medians of 5.
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
folder=${1:-${TMPDIR:-/tmp}/bn-load}
mkdir -p "$folder"
make -C "$root" --no-print-directory target/c/bench > /dev/null
(cd "$root" && cargo build --quiet --release --package bn-dev --bin synth)

cold() {
    sync
    echo 1 2> /dev/null > /proc/sys/vm/drop_caches
}
median() { sort -n | sed -n 3p; }
seconds() { "$root/target/c/bench" --json --load "$1" | sed -n 's/.*"seconds": \([0-9.]*\).*/\1/p'; }
field() { "$root/target/c/bench" --json --load "$1" | sed -n "s/.*\"$2\": \([0-9.]*\).*/\1/p"; }
reading() {
    start=$(date +%s.%N)
    cat "$1" > /dev/null
    echo "$(date +%s.%N) $start" | awk '{ printf "%.3f\n", $1 - $2 }'
}
five() { for _ in 1 2 3 4 5; do "$@"; done | median; }
cold_seconds() { cold && seconds "$1"; }
cold_reading() { cold && reading "$1"; }

echo "| weights | head | file MiB | load warm s | cat warm s | load cold s | cat cold s | peak MiB | over file |"
echo "|---|---|---|---|---|---|---|---|---|"
for kind in "i2_s f16" "tq2_0 q6_k" "iq2_bn f16" "tq1_0 f16" ; do
    set -- $kind
    file=$folder/bitnet-2b-$1-$2.gguf
    [ -f "$file" ] || "$root/target/release/synth" bitnet-2b "$1" "$2" "$file"
    mib=$(stat -c %s "$file" | awk '{ printf "%.0f", $1 / 1048576 }')
    reading "$file" > /dev/null
    warm=$(five seconds "$file")
    read_warm=$(five reading "$file")
    if cold 2> /dev/null; then
        cold=$(five cold_seconds "$file")
        read_cold=$(five cold_reading "$file")
    else
        cold=-
        read_cold=-
    fi
    peak=$(field "$file" peak_after_request_mib)
    echo "| $1 | $2 | $mib | $warm | $read_warm | $cold | $read_cold | $peak | $(echo "$peak $mib" | awk '{ printf "%+.1f%%", 100 * ($1 / $2 - 1) }') |"
done
