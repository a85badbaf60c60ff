"""The solver every script of the sandbox runs: heat conduction in a plate, explicit in time.

    python -m cloudsimfs.sandbox.solver        (in the case folder, which holds `heat.ini`)

It prints one log line per step, and writes fields, residuals and images to `results/`. SIGQUIT: write results and go
on. SIGTSTP: finish the step, write results, exit with 0. Bad input: print one line and exit with 1.

Threading: none. Standard library only: it starts once per run, so it must import quickly. Must never write outside
`results/`, nor leave a half-written file there.
"""

from __future__ import annotations

import array
import configparser
import math
import resource
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import FrameType

from cloudsimfs.sandbox import plot

CASE_FILE = "heat.ini"
MOST_POINTS = 1_000_000  # of a grid: about 100 bytes each
MOST_MEMORY = 1 << 30  # bytes of address space
_MOST = 1e15  # of any number in a case
SYNCED = "sync: results written"  # start of the log line after a SIGQUIT
SIGNALS = (signal.SIGTSTP, signal.SIGQUIT)
_SIGNAL_INTERVAL = 0.02  # seconds until a signal is noticed during `delay`
_STABILITY_FACTOR = 0.9  # of the largest stable time step


class BadCase(Exception):
    """The input cannot be computed. The text is for the log."""


@dataclass(frozen=True, slots=True)
class Case:
    """`heat.ini`: lengths in m, temperatures in K, material in SI units, `delay` in seconds per step."""

    nx: int
    ny: int
    width: float
    height: float
    steps: int
    write_every: int
    delay: float
    step_size: float  # seconds
    diffusivity: float  # m2/s
    material: str
    left: float
    right: float
    top: float
    bottom: float
    initial: float


class Solver:
    """One computation, from the first step to the last or to a signal."""

    def __init__(self, case: Case, results: Path) -> None:
        self._case = case
        self._results = results
        self._stop = self._sync = False
        self._residuals: list[float] = []
        self._maxima: list[float] = []
        self.field = _start_field(case)

    def on_signal(self, number: int, _frame: FrameType | None) -> None:
        if number == signal.SIGTSTP:
            self._stop = True
        else:
            self._sync = True

    def run(self) -> None:
        case = self._case
        self._results.mkdir(exist_ok=True)
        for step in range(1, case.steps + 1):
            residual = self._advance()
            hottest = max(map(max, self.field))
            self._residuals.append(residual)
            self._maxima.append(hottest)
            say(f"step {step}/{case.steps}  residual {residual:.2e}  Tmax {hottest:.1f}")
            if not math.isfinite(hottest) or abs(hottest) > 1e12:
                say(f"error: the solution diverged at step {step}: the time step is too large")
                self._write_tables()
                return
            if self._stop:
                self._write(step)
                say(f"stopped at step {step}: results written")
                return
            if self._sync:
                self._sync = False
                self._write(step)
                say(f"{SYNCED} at step {step}")
            elif step % case.write_every == 0 or step == case.steps:
                self._write(step)
            self._wait()
        say("finished: results written")

    def _advance(self) -> float:
        """Compute one time step. The residual is the root mean square change, divided by the temperature span."""
        case, old = self._case, self.field
        dx, dy = case.width / (case.nx - 1), case.height / (case.ny - 1)
        along, across = (case.step_size * case.diffusivity / d**2 for d in (dx, dy))
        middle = 1.0 - 2.0 * (along + across)
        new, change = [old[0]], 0.0
        for j in range(1, case.ny - 1):
            row = old[j]
            inner = [
                middle * here + along * (west + east) + across * (south + north)
                for here, west, east, south, north in zip(
                    row[1:], row, row[2:], old[j - 1][1:], old[j + 1][1:-1], strict=False
                )
            ]
            change += math.fsum([(a - b) ** 2 for a, b in zip(inner, row[1:-1], strict=True)])
            new.append([row[0], *inner, row[-1]])
        new.append(old[-1])
        self.field = new
        span = max(1.0, max(map(max, old)) - min(map(min, old)))
        return math.sqrt(change / ((case.nx - 2) * (case.ny - 2))) / span

    def _wait(self) -> None:
        end = time.monotonic() + self._case.delay
        while (rest := end - time.monotonic()) > 0 and not (self._stop or self._sync):
            time.sleep(min(rest, _SIGNAL_INTERVAL))

    def _write(self, step: int) -> None:
        case = self._case
        field = vtk(case, self.field, step)
        plot.write_atomically(self._results / f"field_{step:06d}.vtk", field)
        low, high = min(map(min, self.field)), max(map(max, self.field))
        plot.write_atomically(self._results / "temperature.png", plot.colour_map(self.field, low, high))
        self._write_tables()

    def _write_tables(self) -> None:
        rows = zip(self._residuals, self._maxima, strict=True)
        text = "".join(f"{i},{r:.6e},{t:.3f}\n" for i, (r, t) in enumerate(rows, 1))
        plot.write_atomically(self._results / "residuals.csv", f"step,residual,Tmax\n{text}".encode())
        plot.write_atomically(self._results / "residuals.png", plot.residual_plot(self._residuals))


def vtk(case: Case, field: Sequence[Sequence[float]], step: int) -> bytes:
    """The field as legacy VTK, BINARY (big-endian), STRUCTURED_POINTS."""
    dx, dy = case.width / (case.nx - 1), case.height / (case.ny - 1)
    head = (
        f"# vtk DataFile Version 3.0\ntemperature of {case.material} at step {step}\nBINARY\n"
        f"DATASET STRUCTURED_POINTS\nDIMENSIONS {case.nx} {case.ny} 1\nORIGIN 0 0 0\n"
        f"SPACING {dx:.9g} {dy:.9g} 1\nPOINT_DATA {case.nx * case.ny}\n"
        "SCALARS temperature float 1\nLOOKUP_TABLE default\n"
    )
    values = array.array("f", [value for row in field for value in row])
    if sys.byteorder == "little":
        values.byteswap()
    return head.encode() + values.tobytes() + b"\n"


def read_case(path: Path) -> Case:
    """Read and check `heat.ini`. Raises BadCase."""
    parser = configparser.ConfigParser(interpolation=None, inline_comment_prefixes=("#", ";"))
    try:
        parser.read_string(path.read_text(encoding="utf-8"), source=path.name)
    except FileNotFoundError:
        raise BadCase(f"no {path.name} in the case folder: the solver reads its input from {path.name}") from None
    except (configparser.Error, UnicodeDecodeError) as error:
        raise BadCase(f"{path.name}: {' '.join(str(error).split())}") from None

    number, tiny = partial(_number, parser), 1e-12
    sides = {name: number("boundary", name, 0.0) for name in ("left", "right", "top", "bottom")}
    nx, ny = int(number("grid", "nx", 3)), int(number("grid", "ny", 3))
    if nx * ny > MOST_POINTS:
        raise BadCase(
            f"{path.name}: [grid]: {nx} x {ny} points are too many: at most {MOST_POINTS} are computed here"
        )
    width, height = number("grid", "width", tiny, 1.0), number("grid", "height", tiny, 1.0)
    heat = number("material", "density", tiny) * number("material", "heat_capacity", tiny)
    diffusivity = number("material", "conductivity", tiny) / heat
    dx, dy = width / (nx - 1), height / (ny - 1)
    stable = _STABILITY_FACTOR / (2.0 * diffusivity * (1.0 / dx**2 + 1.0 / dy**2))
    steps = int(number("time", "steps", 1))
    return Case(
        nx=nx,
        ny=ny,
        width=width,
        height=height,
        steps=steps,
        write_every=int(number("time", "write_every", 1, float(steps))),
        delay=number("time", "delay", 0.0, 0.0),
        step_size=number("time", "step_size", tiny, stable),
        diffusivity=diffusivity,
        material=parser.get("material", "name", fallback="plate"),
        initial=number("boundary", "initial", 0.0, sum(sides.values()) / 4.0),
        **sides,
    )


def _number(
    parser: configparser.ConfigParser, section: str, name: str, low: float, default: float | None = None
) -> float:
    """One number of at least `low`. Raises BadCase, also if it is missing and has no default."""
    text = parser.get(section, name, fallback=None)
    if text is None and default is not None:
        return default
    if text is None:
        raise BadCase(f"{CASE_FILE}: [{section}] {name} is missing")
    try:
        value = float(text)
    except ValueError:
        raise BadCase(f"{CASE_FILE}: [{section}] {name}: {text[:40]!r} is not a number") from None
    if not low <= value <= _MOST:
        raise BadCase(f"{CASE_FILE}: [{section}] {name}: {text[:40]} must be at least {low:g}, and at most {_MOST:g}")
    return value


def say(line: str) -> None:
    print(line, flush=True)


def main() -> int:
    resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY, MOST_MEMORY))
    try:
        case = read_case(Path(CASE_FILE))
    except BadCase as error:
        say(f"error: {error}")
        return 1
    solver = Solver(case, Path("results"))
    for number in SIGNALS:
        signal.signal(number, solver.on_signal)
    # The sandbox starts this process with them blocked: one sent during start-up arrives now.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    say(f"heat2d: {case.material}, {case.nx} x {case.ny} points, {case.steps} steps of {case.step_size:.4g} s")
    try:
        solver.run()
    except MemoryError:
        say(f"error: the case needs more memory than a run has here, {MOST_MEMORY >> 20} MiB")
        return 1
    return 0


def _start_field(case: Case) -> list[list[float]]:
    inner = [case.left, *[case.initial] * (case.nx - 2), case.right]
    rows = [list(inner) for _ in range(case.ny - 2)]
    return [[case.bottom] * case.nx, *rows, [case.top] * case.nx]


if __name__ == "__main__":
    sys.exit(main())
