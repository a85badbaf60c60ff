"""What tests of runs share: cases that run for a moment or until they are stopped, and a user's hands."""

from __future__ import annotations

from cloudsimfs.sandbox import CASES
from harness import Mounted, errno_of, read_tree, wait_until

WORDS = "cpu=2 ram=standard script=heat2d-1.0 folder=case"
Case = dict[str, bytes]


def case(steps: int = 20, delay: float = 0.0) -> Case:
    """The shipped case, small, with `delay` seconds per step."""
    files = {f"case/{name}": data for name, data in read_tree(CASES / "heated-plate").items()}
    text = files["case/heat.ini"].decode()
    for old, new in {
        "nx = 64": "nx = 16",
        "ny = 64": "ny = 16",
        "steps = 400": f"steps = {steps}",
        "write_every = 50": "write_every = 10",
        "delay = 0.05 ": f"delay = {delay} ",
    }.items():
        assert old in text
        text = text.replace(old, new)
    return files | {"case/heat.ini": text.encode()}


SHORT, LONG = case(), case(steps=100_000, delay=0.01)


class Simulations:
    """What a user does in `.simulations/`."""

    def __init__(self, m: Mounted) -> None:
        self.path = m.path / ".simulations"

    def write(self, name: str, text: str) -> int:
        """The errno of writing one command, as `echo` does."""
        return errno_of(lambda: (self.path / name).write_text(text + "\n"))

    def read(self, name: str) -> str:
        return (self.path / name).read_text()

    def launch(self, words: str = WORDS) -> int:
        assert self.write("launch", words) == 0, self.read("error")
        first = self.read("launch").split()[0]
        assert first.startswith("id=")
        return int(first.removeprefix("id="))

    def wait_for(self, run_id: int, status: str) -> None:
        wait_until(lambda: self.read(f"{run_id}/status") == f"{status}\n", f"run {run_id} is {status}")
