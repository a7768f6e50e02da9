#!/bin/sh
# Instructions per token at batch 1 through the engine, compared with the bare forward pass, counted by callgrind:
#   dev/overhead.sh [model.gguf]
# Without a file: two layers of bitnet_b1_58-large's shape, written by synth, which callgrind runs quickly. With fewer
# layers than the model's 24, the engine's share looks larger than it is. The result is the difference between a run of
# LONG tokens and one of SHORT, so loading does not count.
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
cd "$root"
short=${SHORT:-2}
long=${LONG:-6}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cargo build --quiet --release --package bn-dev --bin overhead --bin synth
program=target/release/overhead
if [ $# -gt 0 ]; then
    model=$1
else
    model=$folder/model.gguf
    target/release/synth bitnet-large i2_s q8_0 "$model" 2
fi

instructions() {
    valgrind --tool=callgrind --callgrind-out-file=/dev/null "$program" "$1" "$2" "$model" 2> "$folder/log" || {
        cat "$folder/log" >&2
        exit 1
    }
    sed -n 's/.*Collected : \([0-9]*\).*/\1/p' "$folder/log"
}
per_token() {
    few=$(instructions "$1" "$short")
    many=$(instructions "$1" "$long")
    echo "$few $many" | awk -v n="$((long - short))" '{ printf "%.0f", ($2 - $1) / n }'
}
bare=$(per_token bare)
engine=$(per_token engine)
echo "$bare $engine" | awk '{
    printf "bare forward pass %d instructions a token, through the engine %d: %+.3f%%\n", $1, $2, 100 * ($2 / $1 - 1) }'
