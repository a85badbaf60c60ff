"""How the state machines of the models are run.

`CLOUDSIMFS_MODEL_EXAMPLES` and `CLOUDSIMFS_MODEL_STEPS` make them search for longer than the suite has time for, each
time elsewhere, and `CLOUDSIMFS_MODEL_SHRINK=1` makes them look for the shortest steps that fail, which takes minutes.
"""

from __future__ import annotations

import os
from typing import Any

from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import RuleBasedStateMachine

EXAMPLES = "CLOUDSIMFS_MODEL_EXAMPLES"
STEPS = "CLOUDSIMFS_MODEL_STEPS"
SHRINK = "CLOUDSIMFS_MODEL_SHRINK"


def search(machine: type[RuleBasedStateMachine], *, examples: int, steps: int, **members: Any) -> None:
    """Run a machine with these class members, as often and as long unless the environment says otherwise."""
    case = type(machine.__name__, (machine,), members).TestCase  # type: ignore[attr-defined]  # made by hypothesis
    case.settings = settings(
        max_examples=int(os.environ.get(EXAMPLES, examples)),
        stateful_step_count=int(os.environ.get(STEPS, steps)),
        deadline=None,
        derandomize=EXAMPLES not in os.environ,
        database=None,
        phases=[Phase.generate, *([Phase.shrink] if os.environ.get(SHRINK) else [])],
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
    )
    case("runTest").runTest()
