"""Line plots as SVG, without a plotting library."""

import math
from collections.abc import Mapping, Sequence

Point = tuple[float, float]
WIDTH, HEIGHT = 760, 340
LEFT, RIGHT, TOP, BOTTOM = 60, 150, 50, 45
COLOURS = ("#1f5fa8", "#d1702a", "#3a8f4d", "#a33b5b", "#6b52a3", "#8a7a2b", "#2a9aa0", "#777777")


def lines(title: str, x_label: str, y_label: str, series: Mapping[str, Sequence[Point]], top: float = 0.0) -> str:
    """Draw one line a series. The axes begin at zero; the y axis reaches ``top`` (if 0, the greatest value)."""
    points = [point for values in series.values() for point in values]
    x_most = max((x for x, _ in points), default=1.0) or 1.0
    y_most = top or max((y for _, y in points), default=1.0) or 1.0

    def at(x: float, y: float) -> Point:
        return LEFT + x / x_most * (WIDTH - LEFT - RIGHT), HEIGHT - BOTTOM - min(y / y_most, 1.05) * (
            HEIGHT - TOP - BOTTOM
        )

    drawn = [_text(WIDTH / 2 - RIGHT / 2, 18, title, "middle", 15)]
    for value in _ticks(x_most):
        x, y = at(value, 0)
        drawn += [_text(x, y + 18, f"{value:g}", "middle")]
    for value in _ticks(y_most):
        x, y = at(0, value)
        drawn += [_text(x - 8, y + 4, f"{value:g}", "end")]
        drawn += [f'<line x1="{x}" y1="{y:.1f}" x2="{WIDTH - RIGHT}" y2="{y:.1f}" stroke="#dddddd"/>']
    drawn += [_text(WIDTH / 2 - RIGHT / 2, HEIGHT - 8, x_label, "middle"), _text(8, TOP - 12, y_label, "start")]
    for number, (name, values) in enumerate(series.items()):
        colour = COLOURS[number % len(COLOURS)]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in (at(*point) for point in values))
        drawn += [f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.5"/>']
        y = TOP + 10 + 18 * number
        drawn += [f'<rect x="{WIDTH - RIGHT + 14}" y="{y - 6}" width="14" height="4" fill="{colour}"/>']
        drawn += [_text(WIDTH - RIGHT + 34, y, name, "start")]
    size = f'width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif">'
    return "\n".join([head, f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>', *drawn, "</svg>\n"])


def _ticks(most: float) -> list[float]:
    """Return about five round values from zero on."""
    power = 10.0 ** math.floor(math.log10(most / 5))
    step = next(power * factor for factor in (1, 2, 5, 10) if most / (power * factor) <= 6)
    return [number * step for number in range(int(most / step * 1.0001) + 1)]


def _text(x: float, y: float, text: str, anchor: str, size: int = 12) -> str:
    safe = text.replace("&", "&amp;").replace("<", "&lt;")
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}">{safe}</text>'
