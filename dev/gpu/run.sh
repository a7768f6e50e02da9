#!/bin/sh
# Measures on a machine with an NVIDIA GPU what dev/gpu/pack.sh has packed:
#   dev/gpu/run.sh [PART...]      all of them, in this order, where none is named
#   check     tests of tests/all/cuda.rs on the device; compute-sanitizer's memcheck and racecheck over small models
#   same      one answer alone and among 63 others: tokens and the bits of their log probabilities
#   launches  kernels, copies and waits of a decode step
#   profile   the time of each kernel in a step and in a prompt, by torch's profiler
#   decode    tokens/s at 1, 16, 64 and 256 sequences, and the share of the memory's bandwidth
#   prefill   a prompt of 2,048 tokens, and the share of the int8 peak
#   first     the first token after a prompt of 64
#   peers     transformers' continuous batching and plain torch, in turns with ours
#   plot      the table and the plot for docs/gpu.md, from the results of the parts above in $BN_GPU_OUT
# A part exits with 3 if it lacks something, after naming it. This script exits with the worst status.
# BN_GPU_OUT: a folder for results (target/gpu-results). BN_GPU_MODELS: for models (target/gpu-models, 14 GB); BN_GPU_ONLY:
# those with this word in their name. BN_GPU_DEVICE: cuda:0. BN_GPU_REPEAT: 5. PYTHON: one with torch. BN_GPU_SANITIZER_S:
# seconds for each of the four runs under compute-sanitizer, 100.
# BN_GPU_TRY=1: the demo model and a handful of tokens, to try this script on any machine, an emulated device included:
#   cuda/build.sh driver && LD_LIBRARY_PATH=$PWD/target/cuda BN_GPU_TRY=1 dev/gpu/run.sh
set -u
cd "$(dirname "$0")/../.." || exit 1
export BN_GPU_DEVICE="${BN_GPU_DEVICE:-cuda:0}" BN_GPU_OUT="${BN_GPU_OUT:-$PWD/target/gpu-results}"
export BN_GPU_MODELS="${BN_GPU_MODELS:-$PWD/target/gpu-models}" PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
python=${PYTHON:-python3}
packed=target/gpu
[ -x $packed/bench ] || { echo "nothing is packed in target/gpu: dev/gpu/pack.sh"; exit 3; }
mkdir -p "$BN_GPU_OUT" "$BN_GPU_MODELS"

machine() {
    cpu=$(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1)
    echo "commit $(cat $packed/commit); $(uname -sr); $cpu, $(nproc) CPUs"
    if command -v nvidia-smi > /dev/null; then
        nvidia-smi --query-gpu=name,driver_version,memory.total,clocks.sm,clocks.mem,temperature.gpu --format=csv,noheader
    else
        echo "no nvidia-smi: not an NVIDIA machine, or an emulated device"
    fi
}

# Makes missing models of real shapes with random weights, all at once.
models() {
    [ -z "${BN_GPU_TRY:-}" ] || return 0
    $python dev/gpu/common.py models | while read -r name shape weights head; do
        file=$BN_GPU_MODELS/$name.gguf
        [ -f "$file" ] || echo "$shape $weights $head $file.part && mv $file.part $file"
    done > "$BN_GPU_MODELS/missing"
    while read -r line; do
        sh -c "$packed/synth $line" &
    done < "$BN_GPU_MODELS/missing"
    wait
}

# Runs a program under compute-sanitizer: sanitized TOOL PROGRAM...
sanitized() {
    tool=$1
    shift
    echo "compute-sanitizer, $tool: $*"
    timeout "${BN_GPU_SANITIZER_S:-100}" compute-sanitizer --tool "$tool" --target-processes all --error-exitcode 9 \
        --print-limit 20 "$@" || {
        code=$?
        if [ $code -eq 124 ]; then
            echo "$tool: out of time, nothing found so far (BN_GPU_SANITIZER_S seconds, more of them in a run of its own)"
            return 3
        fi
        echo "$tool: ended with $code"
        return 1
    }
}

# Runs a command. `failed` is 1 if any failed, 3 if some only ran out of time.
worse() {
    code=0
    "$@" || code=$?
    [ $code -eq 0 ] || [ $failed -eq 1 ] || failed=$code
}

check() {
    # The tests were built in another folder, so set this variable.
    export CARGO_MANIFEST_DIR="$PWD"
    run_tests="$packed/tests --include-ignored --nocapture --test-threads 1"
    # The others need the emulated driver.
    $run_tests cuda:: --skip cuda::emulation:: --skip cuda::several:: || return 1
    if ! command -v compute-sanitizer > /dev/null; then
        echo "compute-sanitizer is not here: memcheck, racecheck and synccheck did not run"
        return 3
    fi
    small="$packed/bench --device $BN_GPU_DEVICE --threads 4 --prompt 40 --new 6 --batches 1,3,9,17 --together"
    failed=0
    # shellcheck disable=SC2086 # several words
    {
        worse sanitized memcheck $small
        worse sanitized racecheck $small
        worse sanitized synccheck $small
        # Every kernel that a golden model needs.
        worse sanitized memcheck $run_tests cuda::models_have
        worse sanitized racecheck $run_tests cuda::models_have
        worse sanitized racecheck $run_tests cuda::adapters_have
    }
    return $failed
}

part() {
    case $1 in
        check) check ;;
        same | launches | decode | prefill | first) models && $python dev/gpu/ours.py "$1" ;;
        profile) models && $python dev/gpu/kernel_times.py ;;
        peers) models && $python dev/gpu/peers.py ;;
        plot) $python dev/gpu/table.py ;;
        *) echo "no such part: $1"; return 2 ;;
    esac
}

[ $# -gt 0 ] || set -- check same launches profile decode prefill first peers plot
worst=0 summary=
for name; do
    printf '\n== %s\n' "$name"
    machine
    begin=$(date +%s)
    # A subshell, so that a failure ends only this part.
    (part "$name")
    code=$?
    case $code in
        0) word=done ;;
        3) word="something is missing" ;;
        *) word=FAILED ;;
    esac
    summary="$summary$name: $word, $(($(date +%s) - begin)) s
"
    [ $code -eq 0 ] || [ $worst -eq 1 ] || worst=$code
    [ $code -ne 1 ] || worst=1
done
printf '\n%s' "$summary"
exit $worst
