"""Line plots as SVG, written by hand so that nothing need be installed."""

from collections.abc import Mapping, Sequence

Point = tuple[float, float]
WIDTH, HEIGHT = 760, 340
LEFT, RIGHT, TOP, BOTTOM = 60, 150, 40, 45
COLOURS = ("#1f5fa8", "#d1702a", "#3a8f4d", "#a33b5b", "#6b52a3", "#8a7a2b", "#2a9aa0", "#777777")


def lines(title: str, x_label: str, y_label: str, series: Mapping[str, Sequence[Point]], top: float = 0.0) -> str:
    """One line a series. The axes begin at zero; the y axis reaches ``top`` or the greatest value."""
    points = [point for values in series.values() for point in values]
    x_most = max((x for x, _ in points), default=1.0) or 1.0
    y_most = max([top, *(y for _, y in points)]) or 1.0

    def at(x: float, y: float) -> Point:
        return LEFT + x / x_most * (WIDTH - LEFT - RIGHT), HEIGHT - BOTTOM - y / y_most * (HEIGHT - TOP - BOTTOM)

    drawn = [_text(WIDTH / 2 - RIGHT / 2, 22, title, "middle", 15)]
    for tick in range(6):
        x, y = at(tick * x_most / 5, 0)
        drawn += [_text(x, y + 18, f"{tick * x_most / 5:g}", "middle")]
        x, y = at(0, tick * y_most / 5)
        drawn += [_text(x - 8, y + 4, f"{tick * y_most / 5:g}", "end")]
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


def _text(x: float, y: float, text: str, anchor: str, size: int = 12) -> str:
    safe = text.replace("&", "&amp;").replace("<", "&lt;")
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}">{safe}</text>'
