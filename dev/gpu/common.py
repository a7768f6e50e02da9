"""Shared by the parts of run.sh: the models, bench, the device's ceilings, where results go."""

import json
import os
import shutil
import statistics
import subprocess
import sys

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", ".."))
PACKED = os.path.join(ROOT, "target", "gpu")
sys.path.append(os.path.join(ROOT, "dev", "peers"))

TRY = bool(os.environ.get("BN_GPU_TRY"))
DEVICE = os.environ.get("BN_GPU_DEVICE", "cuda:0")
OUT = os.environ.get("BN_GPU_OUT", f"{PACKED}-results")
FOLDER = os.environ.get("BN_GPU_MODELS", f"{PACKED}-models")
REPEAT = int(os.environ.get("BN_GPU_REPEAT", "1" if TRY else "5"))
SEQUENCES = [1, 2, 4] if TRY else [1, 16, 64, 256]
PROMPT, NEW = (8, 5) if TRY else (64, 128)
MISSING = 3

# Name of the file; shape, weights, and embedding, which is the head too, as synth takes them.
SYNTH = {
    "bitnet-2b-i2_s": ("bitnet-2b", "i2_s", "f16"),
    "llama-1b-bf16": ("llama-1b", "bf16", "bf16"),
    "llama-1b-q8_0": ("llama-1b", "q8_0", "q8_0"),
    "llama-8b-q4_k": ("llama-8b", "q4_k", "q6_k"),
    "qwen35-4b-q4_k": ("qwen35-4b", "q4_k", "q6_k"),
    "bonsai2-4b-ptq1_0": ("bonsai2-4b", "ptq1_0", "ptq1_0"),
}

# Data sheets (SXM, without sparsity): bytes/s, int8 and bf16 operations/s.
SHEETS = {"H200": (4.8e12, 1979e12, 989e12), "H100": (3.35e12, 1979e12, 989e12), "A100": (2.04e12, 624e12, 312e12)}


def names():
    return [name for name in SYNTH if os.environ.get("BN_GPU_ONLY", "") in name]


def models():
    """Name and file of each model."""
    if TRY:
        return [("demo", os.path.join(ROOT, "models", "bn-demo.gguf"))]
    return [(name, os.path.join(FOLDER, f"{name}.gguf")) for name in names()]


def packed(name):
    return os.path.join(PACKED, name)


def arguments(path, batches, prompt=PROMPT, new=NEW, repeat=REPEAT, more=()):
    """bench's options."""
    return [
        "--json",
        "--ids",
        "--together",
        "--device",
        DEVICE,
        "--prompt",
        str(prompt),
        "--new",
        str(new),
        "--repeat",
        str(repeat),
        "--batches",
        ",".join(map(str, batches)),
        *more,
        path,
    ]


def bench(path, batches, environment=None, **options):
    """bench's results for each batch size."""
    command = [packed("bench"), *arguments(path, batches, **options)]
    ran = subprocess.run(command, capture_output=True, text=True, env=os.environ | (environment or {}))
    if ran.returncode != 0:
        sys.exit(f"{' '.join(command)}\n{ran.stderr.strip()}")
    return json.loads(ran.stdout)["batches"]


def gpu():
    """The device's name, or None."""
    if shutil.which("nvidia-smi") is None:
        return None
    query = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader", "-i", DEVICE.removeprefix("cuda:")]
    ran = subprocess.run(query, capture_output=True, text=True)
    return ran.stdout.strip() or None


def torch_with_cuda():
    try:
        import torch
    except ImportError:
        return None
    return torch if torch.cuda.is_available() else None


def timed(torch, run, repeat=20):
    """The median of the runs' seconds, timed by events."""
    for _ in range(3):
        run()
    times = []
    for _ in range(repeat):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        run()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) / 1e3)
    return statistics.median(times)


def copy_speed(torch, place):
    source = torch.randint(-9, 9, (1 << 32,), dtype=torch.int8, device=place)
    target = torch.empty_like(source)
    return 2 * source.numel() / timed(torch, lambda: target.copy_(source))


def ceilings():
    """Bytes/s of a plain copy (read and written), int8 and bf16 operations/s of a large product; None each where unknown.
    Measured once for all parts on one type of device that share a folder of results."""
    path = os.path.join(OUT, "ceilings.json")
    if os.path.exists(path):
        with open(path) as file:
            kept = json.load(file)
        if kept["gpu"] == gpu():
            return kept
    found = measured_ceilings() | {"gpu": gpu()}
    os.makedirs(OUT, exist_ok=True)
    with open(path, "w") as file:
        json.dump(found, file)
    return found


def measured_ceilings():
    name, torch = gpu() or "", torch_with_cuda()
    if torch is None:
        sheet = next((SHEETS[key] for key in SHEETS if key in name), (None, None, None))
        how = f"data sheet of {name}" if sheet[0] else "neither torch with CUDA nor a data sheet for this device"
        return dict(zip(("bandwidth", "int8", "bf16"), sheet), how=how)
    place, n = torch.device(DEVICE), 8192
    bandwidth = copy_speed(torch, place)
    a, b = (torch.randint(-127, 127, (n, n), dtype=torch.int8, device=place) for _ in range(2))
    int8 = 2 * n**3 / timed(torch, lambda: torch._int_mm(a, b.t()))
    x, y = (torch.randn(n, n, dtype=torch.bfloat16, device=place) for _ in range(2))
    bf16 = 2 * n**3 / timed(torch, lambda: x @ y)
    torch.cuda.empty_cache()
    return {
        "bandwidth": bandwidth,
        "int8": int8,
        "bf16": bf16,
        "how": "measured: copy of 4 GiB, torch._int_mm and matmul of 8192",
    }


def say_ceilings(found):
    shown = [
        f"{found[key] / 1e12:.2f} {unit}"
        for key, unit in (("bandwidth", "TB/s"), ("int8", "TOP/s int8"), ("bf16", "TFLOP/s bf16"))
        if found[key]
    ]
    print(f"ceilings: {', '.join(shown) or 'unknown'} ({found['how']})")


def share(value, of):
    return f"{100 * value / of:.1f}%" if of else "?"


def save(part, rows, **more):
    with open(os.path.join(PACKED, "commit")) as file:
        commit = file.read().strip()
    os.makedirs(OUT, exist_ok=True)
    with open(os.path.join(OUT, f"{part}.json"), "w") as file:
        json.dump({"part": part, "commit": commit, "gpu": gpu(), "repeat": REPEAT, "rows": rows} | more, file, indent=1)


if __name__ == "__main__" and sys.argv[1:] == ["models"]:
    for synthetic in names():
        print(synthetic, *SYNTH[synthetic])
