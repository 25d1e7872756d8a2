"""Arrays of CuPy: some operations, then a few numbers fetched to the processor, each time."""

import cupy  # type: ignore[import-not-found,unused-ignore]

from benchmarks.shim.programs.loop import Work, parser, serve

SIZE, OPERATIONS, FETCHED = 2048, 4, 16


def main() -> None:
    serve(parser(__doc__).parse_args(), prepare)


def prepare() -> Work:
    x = cupy.linspace(-1.0, 1.0, SIZE * SIZE, dtype=cupy.float32).reshape(SIZE, SIZE)

    def step() -> None:
        y = x
        for _ in range(OPERATIONS):
            y = cupy.tanh(y * 0.5 + x)
        (y @ x)[0, :FETCHED].get()

    return Work(step, waits=True)


if __name__ == "__main__":
    main()
