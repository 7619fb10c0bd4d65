"""verifiers (v1) and prime-rl: tasks that carry the schedule, tools under faults, weighed traces.

A suite as a taskset: `SuiteTaskset`, run by `Seated`. A taskset of one's own: `DealtData`, `Dealt`,
`DealtTask`, `DealtTools`. For the consumer of the traces: `score_group`, `weigh`, `rollout`.
"""

from evenhand.integrations.verifiers.contract import TRIED, check

check()

from evenhand.integrations.functions import declare  # noqa: E402
from evenhand.integrations.verifiers.dealing import Dealing, Dealt, DealtData  # noqa: E402
from evenhand.integrations.verifiers.taskset import (  # noqa: E402
    DealtTask,
    Seated,
    SuiteTask,
    SuiteTaskset,
    SuiteTasksetConfig,
)
from evenhand.integrations.verifiers.toolset import (  # noqa: E402
    Dealer,
    DealtConfig,
    DealtTools,
    SuiteConfig,
    SuiteTools,
)
from evenhand.integrations.verifiers.traces import (  # noqa: E402
    algorithm,
    assign,
    rollout,
    score_group,
    weigh,
)

__all__ = [
    "TRIED",
    "Dealer",
    "Dealing",
    "Dealt",
    "DealtConfig",
    "DealtData",
    "DealtTask",
    "DealtTools",
    "Seated",
    "SuiteConfig",
    "SuiteTask",
    "SuiteTaskset",
    "SuiteTasksetConfig",
    "SuiteTools",
    "algorithm",
    "assign",
    "check",
    "declare",
    "rollout",
    "score_group",
    "weigh",
]
