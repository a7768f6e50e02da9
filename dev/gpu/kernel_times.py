"""The time of each kernel in a decode step and in a prompt: bench inside this process, under torch's profiler (CUPTI). A decode
step is the difference of two runs of different lengths, both with one warm-up; a prompt is half of a run and its warm-up,
and one decode step is in it."""

import ctypes
import io
import os
import sys
from collections import Counter

from common import MISSING, SEQUENCES, TRY, arguments, models, packed, save, torch_with_cuda

SHORT, MORE, PROMPT = 4, 4 if TRY else 32, 24 if TRY else 2048


def run(bench, words):
    """Runs bench's main without its output."""
    words = [b"bench", *(os.fsencode(word) for word in words)]
    argv = (ctypes.c_char_p * (len(words) + 1))(*words, None)
    sys.stdout.flush()
    kept, nowhere = os.dup(1), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    code = bench.main(len(words), argv)
    bench.fflush(None)
    os.dup2(kept, 1)
    os.close(kept)
    os.close(nowhere)
    if code != 0:
        sys.exit(f"bench ended with {code}")


def library():
    """Measures with bench, which keeps options from run to run, so each run sets all of them."""
    bench = ctypes.CDLL(packed("bench.so"))
    bench.fflush = ctypes.CDLL(None).fflush
    return bench


def kernels(torch, bench, path, sequences, **options):
    """Launches and microseconds on the device by name."""
    profiler = torch.profiler
    with profiler.profile(activities=[profiler.ProfilerActivity.CUDA]) as seen:
        run(bench, arguments(path, [sequences], repeat=1, **options))
    count, time = Counter(), Counter()
    for event in seen.events():
        if event.device_type == torch.autograd.DeviceType.CUDA:
            count[event.name] += 1
            time[event.name] += event.time_range.elapsed_us()
    return count, time


def report(torch, bench, name, path, sequences):
    steps = 2 * MORE
    (few, short), (many, long) = (kernels(torch, bench, path, sequences, new=new) for new in (SHORT, SHORT + MORE))
    rows = [
        {
            "model": name,
            "sequences": sequences,
            "kernel": kernel,
            "launches": (many[kernel] - few[kernel]) / steps,
            "us": (long[kernel] - short[kernel]) / steps,
        }
        for kernel in long
    ]
    return shown(name, f"{sequences} sequences", rows)


def prompt(torch, bench, name, path):
    count, time = kernels(torch, bench, path, 1, prompt=PROMPT, new=2, more=["--step-tokens", str(PROMPT)])
    rows = [
        {"model": name, "prompt": PROMPT, "kernel": kernel, "launches": count[kernel] / 2, "us": time[kernel] / 2}
        for kernel in time
    ]
    return shown(name, f"a prompt of {PROMPT}", rows)


def shown(name, of, rows):
    """Prints the rows, the longest first, and returns them."""
    rows = sorted((row for row in rows if row["launches"] > 0), key=lambda row: -row["us"])
    whole, launches = (sum(row[key] for row in rows) for key in ("us", "launches"))
    if not rows:
        print(f"{name}: the profiler saw no kernels of the device")
        return rows
    out = io.StringIO()
    print(f"\n{name}, {of}: {launches:.0f} on the device, {whole:.1f} us busy", file=out)
    for row in rows[:16]:
        print(
            f"{row['launches']:8.2f} x {row['us'] / row['launches']:8.2f} us = {row['us']:9.2f} us, "
            f"{100 * row['us'] / whole:5.1f}%  {row['kernel'][:90]}",
            file=out,
        )
    print(out.getvalue(), end="", flush=True)
    return rows


def main():
    torch = torch_with_cuda()
    if torch is None:
        print("there is no torch with CUDA here: its profiler is what sees kernels")
        return MISSING
    import torch.profiler

    torch.zeros(1, device="cuda")
    bench, rows = library(), []
    for name, path in models():
        for sequences in (SEQUENCES[0], SEQUENCES[-2]):
            rows += report(torch, bench, name, path, sequences)
            save("profile", rows)
        rows += prompt(torch, bench, name, path)
        save("profile", rows)
    return 0 if rows else 1


if __name__ == "__main__":
    sys.exit(main())
