"""Policies that settle who loads, so that no test depends on what a batch costs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from dataloader import DataLoader
from dataloader.workers.policy import Policy
from dataloader.workers.threads import ThreadBackend

__all__ = ["MODES", "ByWorkers", "Helping", "Inline", "Scripted", "use"]


class Helping(Policy):
    """No worker is ever woken, so the consumer claims every batch itself.

    Attributes:
        lets_workers: workers are woken after all.
    """

    def __init__(self) -> None:
        super().__init__()
        self.cost_s = 1e-6
        self.lets_workers = False

    def note(self, cost_s: float) -> None:
        """Learn nothing."""

    def wants_worker(self, awake: int) -> bool:
        return self.info_was_asked or self.lets_workers

    def allows_worker(self, awake: int) -> bool:
        return self.info_was_asked or self.lets_workers


class Inline(Policy):
    """The consumer loads everything inline.

    Args:
        untimed: batches that take the short way before the next one that is timed.
    """

    def __init__(self, untimed: int = 3) -> None:
        super().__init__()
        self.cost_s = 1e-6
        self.is_inline = True
        self._untimed = untimed

    def note(self, cost_s: float) -> None:
        """Learn nothing."""

    def untimed(self) -> int:
        return self._untimed


class ByWorkers(Policy):
    """Batches are so dear that the consumer loads none."""

    def __init__(self) -> None:
        super().__init__()
        self.cost_s = 1.0

    def note(self, cost_s: float) -> None:
        """Learn nothing."""


class Scripted(Policy):
    """Goes through states: each batch that is noted leads to the next one.

    Args:
        states: ``"inline"``, ``"help"`` or ``"workers"``; without end, or the last one
            stays.
    """

    def __init__(self, states: Iterator[str]) -> None:
        super().__init__()
        self._states = states
        self._go_on()

    def note(self, cost_s: float) -> None:
        self._go_on()

    def untimed(self) -> int:
        return 1

    def _go_on(self) -> None:
        state = next(self._states, None)
        if state is not None:
            self.is_inline = state == "inline"
            self.cost_s = 1.0 if state == "workers" else 1e-6


def use(loader: DataLoader[Any], policy: Policy) -> Policy:
    """Let a loader that has not begun yet decide by ``policy``; return it."""
    backend = loader._living_backend()
    assert isinstance(backend, ThreadBackend)
    backend._policy = policy
    return policy


MODES: dict[str, Callable[[], Policy]] = {
    "inline": Inline,
    "helping": Helping,
    "workers": ByWorkers,
}
"""By name: each of the ways in which a batch is loaded."""
