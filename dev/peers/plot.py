"""Throughput against batch size as an SVG: ours, theirs, the limit; a panel for each model and phase."""

from html import escape

WIDTH, HEIGHT, LEFT, TOP, RIGHT, BOTTOM = 420, 300, 60, 40, 20, 45
LINES = (("limit", "limit of the machine", "#999999", "5 4"), ("theirs", "llama.cpp", "#d1495b", ""),
         ("ours", "ours", "#1d6fb8", ""))


def step(most):
    """A round tick distance of about a fifth."""
    power = 1.0
    while power * 10 <= most / 5:
        power *= 10
    while power > most / 5:
        power /= 10
    return next(power * m for m in (10, 5, 2, 1) if power * m <= most / 4)


def panel(result, phase, lines):
    batches = [b["batch"] for b in result["batches"]]
    most = 1.05 * max(b[phase][who] for b in result["batches"] for who, *_ in lines)
    across = (WIDTH - LEFT - RIGHT) / max(len(batches) - 1, 1)
    x = lambda i: LEFT + i * across
    y = lambda v: HEIGHT - BOTTOM - v / most * (HEIGHT - TOP - BOTTOM)
    text = lambda at, to, words, more="": f'<text x="{at:.1f}" y="{to:.1f}" {more}>{escape(words)}</text>'
    out = [text(LEFT, 20, f"{result['model']}: {phase}, tokens/s", 'font-weight="bold"')]
    distance = step(most)
    for n in range(int(most / distance) + 1):
        at = y(n * distance)
        out.append(f'<line x1="{LEFT}" y1="{at:.1f}" x2="{WIDTH - RIGHT}" y2="{at:.1f}" stroke="#e5e5e5"/>')
        out.append(text(LEFT - 6, at + 4, f"{n * distance:g}", 'text-anchor="end"'))
    for i, batch in enumerate(batches):
        out.append(text(x(i), HEIGHT - BOTTOM + 16, str(batch), 'text-anchor="middle"'))
    for row, (who, label, color, dash) in enumerate(lines):
        points = [(x(i), y(b[phase][who])) for i, b in enumerate(result["batches"])]
        path = " ".join(f"{a:.1f},{b:.1f}" for a, b in points)
        out.append(f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="2" stroke-dasharray="{dash}"/>')
        out += [f'<circle cx="{a:.1f}" cy="{b:.1f}" r="3" fill="{color}"/>' for a, b in points]
        at = LEFT + 130 * row
        out.append(f'<line x1="{at}" y1="{HEIGHT - 8}" x2="{at + 18}" y2="{HEIGHT - 8}" stroke="{color}" '
                   f'stroke-width="2" stroke-dasharray="{dash}"/>')
        out.append(text(at + 22, HEIGHT - 4, label))
    return "\n".join(out)


def plot(results, phases=("prefill", "decode"), lines=LINES):
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH * len(phases)}" height="{HEIGHT * len(results)}" '
           'font-family="sans-serif" font-size="11">', '<rect width="100%" height="100%" fill="white"/>']
    for row, result in enumerate(results):
        for column, phase in enumerate(phases):
            out.append(f'<g transform="translate({column * WIDTH},{row * HEIGHT})">\n{panel(result, phase, lines)}\n</g>')
    return "\n".join([*out, "</svg>"]) + "\n"
