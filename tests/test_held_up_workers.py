"""Workers that are inside samples that take long, while batches are cheap.

Where batches are cheap only as many workers are awake as pay. If those do not come
back, others have to be woken, and at once: not when a slice of the wait is over.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
from conftest import wait_until
from policies import use

from dataloader import DataLoader
from dataloader.workers.policy import Policy
from dataloader.workers.pool import Pool
from dataloader.workers.sleeper import Sleeper

LONG = 59
"""The index whose sample takes as long as the gate is shut."""


class Cheap(Policy):
    """Batches are so cheap that one worker that is awake is enough."""

    def __init__(self) -> None:
        super().__init__()
        self.cost_s = 1e-5
        self.cores = 2

    def note(self, cost_s: float) -> None:
        """Learn nothing."""


class Gated:
    """A dataset of which one sample waits for a gate."""

    def __init__(self) -> None:
        self.entered = threading.Event()
        self.gate = threading.Event()

    def __len__(self) -> int:
        return 60

    def __getitem__(self, index: int) -> int:
        if index == LONG:
            self.entered.set()
            assert self.gate.wait(60)
        return index


@pytest.fixture
def dataset() -> Iterator[Gated]:
    """A dataset whose gate opens when the test is over."""
    dataset = Gated()
    yield dataset
    dataset.gate.set()


@pytest.fixture(autouse=True)
def no_safety_net(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let nobody look again when a slice is over: a delay is a hang."""
    monkeypatch.setattr("dataloader.workers.threads.WAIT_SLICE_S", 1000)
    monkeypatch.setattr(Sleeper.sleep, "__defaults__", (1000,))


def pool_of(loader: DataLoader[Any]) -> Pool:
    pool: Any = loader._backend._pool  # type: ignore[union-attr]
    assert isinstance(pool, Pool)
    return pool


def in_another_thread(
    loader: DataLoader[Any], mode: AbstractContextManager[Any], asleep: int
) -> list[Any]:
    """Return an epoch's batches; before each ``next()`` so many workers lie down."""
    batches: list[Any] = []

    def iterate() -> None:
        with mode:
            for batch in loader:
                batches.append(batch)
                # As in a step that takes a while.
                assert wait_until(lambda: len(pool_of(loader).sleeping) == asleep)

    consumer = threading.Thread(target=iterate, daemon=True)
    consumer.start()
    consumer.join(30)
    assert not consumer.is_alive(), "the epoch hangs"
    return batches


def check_with_a_worker_held_up(
    dataset: Gated, mode: AbstractContextManager[Any], **options: Any
) -> None:
    keys = [LONG, *range(50)]
    loader = DataLoader(
        dataset, sampler=keys, num_workers=3, collate_fn=list, **options
    )
    with loader:
        use(loader, Cheap())
        with mode:
            other = iter(loader)
        assert dataset.entered.wait(60)
        keys[0] = 50
        batches = in_another_thread(loader, mode, asleep=2)
        assert sorted(batches) == [[i] for i in range(51)]
        if loader.in_order:
            assert batches[0] == [50]
        # Whoever was woken is back, and only the one that is held up does not count.
        pool = pool_of(loader)
        assert wait_until(lambda: len(pool.held_up) == 1 and pool.awake == 0)
        dataset.gate.set()
        # The other iterator is as good as before.
        assert sorted(other) == [*([i] for i in range(50)), [LONG]]
        assert wait_until(lambda: not pool.held_up)


@pytest.mark.parametrize("in_order", [True, False])
def test_a_worker_that_is_held_up_does_not_keep_others_asleep(
    dataset: Gated, in_order: bool
) -> None:
    check_with_a_worker_held_up(dataset, nullcontext(), in_order=in_order, help=False)


@pytest.mark.parametrize("in_order", [True, False])
def test_a_consumer_in_a_mode_of_torch_is_not_kept_waiting_either(
    dataset: Gated, in_order: bool
) -> None:
    torch = pytest.importorskip("torch")
    check_with_a_worker_held_up(dataset, torch.no_grad(), in_order=in_order)


def test_batches_of_the_same_epoch_pass_a_worker_that_is_held_up(
    dataset: Gated,
) -> None:
    keys = [0, LONG, *range(1, 30)]
    options: dict[str, Any] = {"num_workers": 2, "in_order": False, "help": False}
    loader = DataLoader(dataset, sampler=keys, collate_fn=list, **options)
    use(loader, Cheap())
    batches: list[Any] = []

    def iterate() -> None:
        for batch in loader:
            batches.append(batch)
            assert dataset.entered.wait(20)
            assert wait_until(lambda: bool(pool_of(loader).sleeping))
            if len(batches) == 30:
                dataset.gate.set()

    consumer = threading.Thread(target=iterate, daemon=True)
    consumer.start()
    consumer.join(30)
    assert not consumer.is_alive(), "the epoch hangs"
    assert sorted(batches) == [*([i] for i in range(30)), [LONG]]
    assert batches[-1] == [LONG]


def test_workers_that_are_held_up_one_after_the_other_are_all_relieved(
    dataset: Gated,
) -> None:
    keys = [LONG, *range(20)]
    options: dict[str, Any] = {"num_workers": 4, "help": False, "collate_fn": list}
    loader = DataLoader(dataset, sampler=keys, **options)
    with loader:
        use(loader, Cheap())
        others = []
        for _ in range(3):
            dataset.entered.clear()
            others.append(iter(loader))
            assert dataset.entered.wait(60)
            keys[0] = 20
            batches = in_another_thread(loader, nullcontext(), 4 - len(others))
            assert sorted(batches) == [[i] for i in range(21)]
            keys[0] = LONG
        dataset.gate.set()
        for other in others:
            assert sorted(other) == [*([i] for i in range(20)), [LONG]]
