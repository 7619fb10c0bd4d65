"""Dealing a number of rollouts to tasks, the next one to where it is worth most."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence


def deal(
    total: int,
    lowest: Sequence[int],
    highest: Sequence[int],
    worth: Callable[[int, int], float],
) -> list[int]:
    """Counts n_q between the bounds that sum to `total` if they can, each rollout in turn going to
    the task q with the largest worth(q, n_q) of one more. Exact where worth falls in n.

    When even the lowest counts exceed the total, tasks are served in their order.
    """
    counts, left = [0] * len(lowest), total
    for q, low in enumerate(lowest):
        counts[q] = min(low, left)
        left -= counts[q]
    heap = [(-worth(q, counts[q]), q) for q in range(len(counts)) if counts[q] < highest[q]]
    heapq.heapify(heap)
    while left > 0 and heap:
        _, q = heapq.heappop(heap)
        counts[q] += 1
        left -= 1
        if counts[q] < highest[q]:
            heapq.heappush(heap, (-worth(q, counts[q]), q))
    return counts
