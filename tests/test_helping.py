"""Batches that the consumer loads although there are workers: when, which, when not.

`policies` settles who would load. How the rule itself decides is tested in
``test_policy``, the short way through ``next()`` in ``test_direct``.
"""

from __future__ import annotations

import contextvars
import itertools
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import pytest
from conftest import wait_until
from policies import MODES, ByWorkers, Helping, Inline, Scripted, use

from dataloader import DataLoader, IterableDataset, get_worker_info
from dataloader._fast import IMPLEMENTATION
from dataloader.errors import ClosedError
from dataloader.workers.policy import INLINE_LEAVE_AT_ONCE_S, MOST_UNTIMED, Policy
from dataloader.workers.worker import Worker

SIZE = 24

OWN: dict[str, Callable[[], Policy]] = {"inline": Inline, "helping": Helping}
"""The modes in which the consumer loads every batch."""


@pytest.fixture(params=list(OWN))
def own_mode(request: pytest.FixtureRequest) -> Policy:
    """A new policy by which the consumer loads every batch."""
    return OWN[request.param]()


@pytest.fixture(params=list(MODES))
def mode(request: pytest.FixtureRequest) -> Policy:
    """A new policy by which the consumer, or the workers, load every batch."""
    return MODES[request.param]()


@pytest.fixture(autouse=True)
def workers_keep_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no worker find anything to do where the consumer is to claim everything.

    They look for work by themselves when they start, and once a second.
    """
    find = Worker._find

    def find_if_let(worker: Worker, turn: int) -> Any:
        policy = worker._pool.policy
        if isinstance(policy, Helping) and not policy.wants_worker(0):
            return None
        return find(worker, turn)

    monkeypatch.setattr(Worker, "_find", find_if_let)


def let_workers(policy: Policy) -> None:
    """Let workers load what the consumer does not."""
    if isinstance(policy, Helping):
        policy.lets_workers = True


def is_worker() -> bool:
    return threading.current_thread().name.startswith("dataloader-")


class Logged:
    """A dataset that takes down which sample is loaded and whether by a worker.

    Args:
        call: called with each index before it is taken down.
    """

    def __init__(self, call: Callable[[int], object] | None = None) -> None:
        self.call = call
        self.loaded: list[tuple[int, bool]] = []

    def __len__(self) -> int:
        return SIZE

    def __getitem__(self, index: int) -> int:
        if self.call is not None:
            self.call(index)
        self.loaded.append((index, is_worker()))
        return index

    def by_workers(self) -> list[int]:
        """Return which samples workers have loaded, sorted."""
        return sorted(index for index, by_worker in self.loaded if by_worker)

    def by_consumer(self) -> list[int]:
        """Return which samples the consumer has loaded, sorted."""
        return sorted(index for index, by_worker in self.loaded if not by_worker)


class LoggedStream(IterableDataset[int]):
    def __init__(self) -> None:
        self.loaded: list[tuple[int, bool]] = []

    def __iter__(self) -> Iterator[int]:
        for number in range(SIZE):
            self.loaded.append((number, is_worker()))
            yield number


def make(dataset: Any, policy: Policy, **options: Any) -> DataLoader[Any]:
    """Return a loader whose batches are lists, and who loads them is settled."""
    given: dict[str, Any] = {"batch_size": 2, "num_workers": 2, "collate_fn": list}
    loader = DataLoader(dataset, **{**given, **options})
    use(loader, policy)
    return loader


PAIRS = [[i, i + 1] for i in range(0, SIZE, 2)]


# Who loads.


@pytest.mark.parametrize("in_order", [True, False])
def test_the_consumer_loads_all_in_the_order_of_the_sampler(
    own_mode: Policy, in_order: bool
) -> None:
    dataset = Logged()
    with make(dataset, own_mode, in_order=in_order) as loader:
        for _ in range(2):
            assert list(loader) == PAIRS
    assert dataset.loaded == [(i, False) for i in range(SIZE)] * 2


def test_workers_load_all_where_batches_are_dear() -> None:
    dataset = Logged()
    assert list(make(dataset, ByWorkers())) == PAIRS
    assert dataset.by_workers() == list(range(SIZE))


@pytest.mark.parametrize(
    "options",
    [
        {"help": False},
        {"timeout": 60},
        {"worker_init_fn": lambda worker: None},
        {"items_in_parallel": 2},
    ],
    ids=lambda options: next(iter(options)),
)
@pytest.mark.parametrize("persistent_workers", [True, False])
def test_options_that_keep_the_consumer_from_loading(
    own_mode: Policy, options: dict[str, Any], persistent_workers: bool
) -> None:
    let_workers(own_mode)
    dataset = Logged()
    loader = make(dataset, own_mode, persistent_workers=persistent_workers, **options)
    with loader:
        for _ in range(2):
            assert list(loader) == PAIRS
    assert not dataset.by_consumer()


def test_a_stream_is_loaded_by_its_workers(own_mode: Policy) -> None:
    let_workers(own_mode)
    dataset = LoggedStream()
    assert list(make(dataset, own_mode, num_workers=1)) == PAIRS
    assert all(by_worker for _, by_worker in dataset.loaded)


def test_the_consumer_loads_from_a_copy_of_its_own() -> None:
    class Copied(Logged):
        def __getitem__(self, index: int) -> int:
            objects[is_worker()].add(id(self))
            return index

    # Of each batch that the consumer loads a worker loads the next one.
    objects: dict[bool, set[int]] = {True: set(), False: set()}
    policy = Scripted(itertools.cycle(["inline", "inline", "workers", "workers"]))
    dataset = Copied()
    with make(dataset, policy, num_workers=1, batch_size=1) as loader:
        list(loader)
        assert [len(found) for found in objects.values()] == [1, 1]
        assert not objects[True] & objects[False]
        assert id(dataset) not in objects[True] | objects[False]


def test_a_method_of_the_dataset_becomes_one_of_the_consumers_copy(
    own_mode: Policy,
) -> None:
    class Collating(Logged):
        last = -1

        def __getitem__(self, index: int) -> int:
            self.last = index
            return index

        def collate(self, samples: list[int]) -> tuple[list[int], int]:
            return samples, self.last

    dataset = Collating()
    loader = make(dataset, own_mode, collate_fn=dataset.collate)
    assert list(loader) == [(pair, pair[-1]) for pair in PAIRS]
    assert dataset.last == -1


def test_a_batch_that_is_claimed_while_helping_is_loaded_in_the_context_of_iter() -> (
    None
):
    variable = contextvars.ContextVar("variable", default=0)
    variable.set(1)
    loader = make(Logged(), Helping(), collate_fn=lambda batch: variable.get())
    iterator = iter(loader)
    variable.set(2)
    assert set(iterator) == {1}


# Code that asks which worker it is in.


def asks_in_sample(index: int) -> None:
    if index == 7:
        assert get_worker_info() is not None


def asks_in_torch(index: int) -> None:
    torch = pytest.importorskip("torch")
    if index == 7:
        assert torch.utils.data.get_worker_info() is not None


def asks_for_the_seed(index: int) -> None:
    torch = pytest.importorskip("torch")
    if index == 7:
        assert torch.initial_seed() == get_worker_info().seed  # type: ignore[union-attr]


@pytest.mark.parametrize("ask", [asks_in_sample, asks_in_torch, asks_for_the_seed])
def test_a_batch_that_asks_is_loaded_anew_by_a_worker_and_so_are_all_after_it(
    own_mode: Policy, ask: Callable[[int], object]
) -> None:
    if ask is not asks_in_sample:
        pytest.importorskip("torch")
    dataset = Logged(ask)
    with make(dataset, own_mode) as loader:
        iterator = iter(loader)
        assert list(itertools.islice(iterator, 3)) == PAIRS[:3]
        assert dataset.loaded == [(i, False) for i in range(6)]
        # Sample 6 is in the batch that is broken off.
        assert list(iterator) == PAIRS[3:]
        assert dataset.by_consumer() == list(range(7))
        assert dataset.by_workers() == list(range(6, SIZE))
        # In later epochs as well.
        del dataset.loaded[:]
        assert list(loader) == PAIRS
        assert not dataset.by_consumer()


def test_a_collate_fn_that_asks_is_called_in_a_worker(own_mode: Policy) -> None:
    def collate(samples: list[int]) -> tuple[list[int], bool]:
        return samples, get_worker_info() is not None

    assert list(make(Logged(), own_mode, collate_fn=collate)) == [
        (pair, True) for pair in PAIRS
    ]


def test_a_sample_that_catches_every_exception_is_broken_off_all_the_same(
    own_mode: Policy,
) -> None:
    def ask(index: int) -> None:
        try:
            infos.append(get_worker_info())
        except Exception:
            raise AssertionError("user code sees how a batch is broken off") from None

    infos: list[Any] = []
    assert list(make(Logged(ask), own_mode)) == PAIRS
    assert len(infos) == SIZE
    assert None not in infos


def test_what_was_asked_in_a_worker_keeps_the_consumer_from_loading_too() -> None:
    class Then(Scripted):
        """Workers load the first batch, then everything is cheap."""

    def ask(index: int) -> None:
        if index == 0:
            assert get_worker_info() is not None

    dataset = Logged(ask)
    policy = Then(iter(["workers", "inline"]))
    with make(dataset, policy) as loader:
        assert list(loader) == PAIRS
        assert list(loader) == PAIRS
    assert policy.info_was_asked
    assert not dataset.by_consumer()


def test_a_loader_inside_a_sample_that_asks_sends_the_outer_batch_to_a_worker(
    own_mode: Policy,
) -> None:
    def ask(index: int) -> None:
        inner = DataLoader(
            Logged(lambda _: answers.append(get_worker_info())),
            8,
            collate_fn=list,
        )
        assert [*itertools.chain(*inner)] == list(range(SIZE))

    answers: list[Any] = []
    dataset = Logged(ask)
    assert list(make(dataset, own_mode)) == PAIRS
    assert not dataset.by_consumer()
    assert len(answers) == SIZE * SIZE
    assert None not in answers


def test_nobody_asks_by_drawing_or_by_asking_between_batches(own_mode: Policy) -> None:
    dataset = Logged()
    for _ in make(dataset, own_mode):
        assert get_worker_info() is None
    assert not own_mode.info_was_asked
    assert not dataset.by_workers()


def test_torchs_collation_does_not_ask_for_the_user(own_mode: Policy) -> None:
    torch = pytest.importorskip("torch")
    collate = torch.utils.data.default_collate

    class Tensors(Logged):
        def __getitem__(self, index: int) -> Any:
            return torch.tensor(super().__getitem__(index))

    dataset = Tensors()
    batches = list(make(dataset, own_mode, collate_fn=collate))
    assert [batch.tolist() for batch in batches] == PAIRS
    # Nor is shared memory taken, as torch does in workers.
    assert not any(batch.is_shared() for batch in batches)
    assert not own_mode.info_was_asked
    assert not dataset.by_workers()


# Modes of torch.


@pytest.mark.parametrize("name", ["no_grad", "inference_mode", "autocast", "device"])
def test_the_consumer_loads_nothing_in_a_mode_of_torch(
    own_mode: Policy, name: str
) -> None:
    torch = pytest.importorskip("torch")
    modes: dict[str, Callable[[], AbstractContextManager[Any]]] = {
        "no_grad": torch.no_grad,
        "inference_mode": torch.inference_mode,
        "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
        "device": lambda: torch.device("meta"),
    }
    weight = torch.ones((1, 1), requires_grad=True)

    def collate(samples: list[int]) -> tuple[list[int], Any]:
        product = weight @ torch.tensor([[float(samples[0])]])
        return samples, (
            product.requires_grad,
            product.is_inference(),
            product.dtype,
            product.device.type,
        )

    dataset = Logged()
    iterator = iter(make(dataset, own_mode, collate_fn=collate))
    batches = [next(iterator)]
    let_workers(own_mode)
    with modes[name]():
        batches += itertools.islice(iterator, 6)
        assert dataset.by_consumer() == [0, 1]
    batches += iterator
    plain = (True, False, torch.float32, "cpu")
    assert batches == [(pair, plain) for pair in PAIRS]
    if own_mode.is_inline:
        # What was handed over before the mode ended is a window at most.
        assert dataset.by_consumer()[-1] == SIZE - 1


def test_what_a_mode_finds_claimed_is_loaded_by_a_worker(own_mode: Policy) -> None:
    torch = pytest.importorskip("torch")

    def interrupt(index: int) -> None:
        if index == 5 and not is_worker():
            raise KeyboardInterrupt

    dataset = Logged(interrupt)
    iterator = iter(make(dataset, own_mode))
    batches = list(itertools.islice(iterator, 2))
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            next(iterator)
    let_workers(own_mode)
    with torch.no_grad():
        batches.append(next(iterator))
    batches += iterator
    assert batches == PAIRS
    assert 5 in dataset.by_workers()


# Exceptions.


@pytest.mark.parametrize("bad", [0, 1, 6, SIZE - 1])
def test_exceptions_come_at_the_place_of_their_batch(mode: Policy, bad: int) -> None:
    def fail(index: int) -> None:
        if index == bad:
            raise LookupError(index)

    dataset = Logged(fail)
    with make(dataset, mode) as loader:
        for epoch in range(2):
            iterator = iter(loader)
            seen: list[Any] = []
            for _ in PAIRS:
                try:
                    seen.append(next(iterator))
                except LookupError as error:
                    seen.append(error.args[0])
                    [note] = error.__notes__
            assert next(iterator, None) is None
            assert seen == [bad if bad in pair else pair for pair in PAIRS]
            number = bad // 2
            place = f"epoch {epoch}, batch {number}, indices {PAIRS[number]}"
            assert note.endswith(place)
            assert note.startswith("raised in the main") != isinstance(mode, ByWorkers)
    assert loader.stats().batches == 2 * len(PAIRS)


@pytest.mark.parametrize(
    "rest", [["inline"], ["help"], ["workers"], ["help", "inline"]]
)
def test_modes_go_on_after_an_error_in_the_first_inline_batch(rest: list[str]) -> None:
    def fail(index: int) -> None:
        if index == 0:
            raise LookupError(index)

    policy = Scripted(iter(["inline", *rest]))
    with make(Logged(fail), policy) as loader:
        for epoch in range(1, 4):
            iterator = iter(loader)
            with pytest.raises(LookupError):
                next(iterator)
            assert list(iterator) == PAIRS[1:]
            assert loader.stats().batches == epoch * len(PAIRS)


def test_a_dataset_that_cannot_be_copied_fails_as_it_does_in_workers(
    mode: Policy,
) -> None:
    class Unbuildable(Logged):
        def __getstate__(self) -> dict[str, Any]:
            return {}

        def __setstate__(self, state: dict[str, Any]) -> None:
            raise LookupError("rebuilding")

    let_workers(mode)
    globals()["Unbuildable"] = Unbuildable
    Unbuildable.__qualname__ = "Unbuildable"
    try:
        iterator = iter(make(Unbuildable(), mode, replicate="deep"))
        for _ in PAIRS:
            with pytest.raises(LookupError, match="rebuilding") as caught:
                next(iterator)
            assert "raised in worker" in "".join(caught.value.__notes__)
        assert next(iterator, None) is None
    finally:
        del globals()["Unbuildable"]


@pytest.mark.parametrize("at", [0, 1, 7, SIZE - 1])
def test_a_batch_that_an_interrupt_in_a_sample_breaks_off_is_loaded_again(
    own_mode: Policy, at: int
) -> None:
    def interrupt(index: int) -> None:
        if index == at and strikes:
            raise strikes.pop()

    strikes = [KeyboardInterrupt() for _ in range(3)]
    dataset = Logged(interrupt)
    loader = make(dataset, own_mode)
    iterator = iter(loader)
    batches: list[Any] = []
    struck = 0
    while True:
        try:
            batches.extend(iterator)
            break
        except KeyboardInterrupt:
            struck += 1
            assert loader.stats().batches == at // 2
    assert batches == PAIRS
    assert struck == 3
    assert not dataset.by_workers()


def test_a_later_batch_that_an_interrupt_breaks_off_while_helping_is_loaded_again() -> (
    None
):
    """The batch that is due is with a worker meanwhile."""

    class OneWorker(Helping):
        def wants_worker(self, awake: int) -> bool:
            return awake == 0

    def call(index: int) -> None:
        if index == 0:
            entered.set()
            assert gate.wait(60)
        elif index == 3 and strikes:
            raise strikes.pop()

    entered, gate = threading.Event(), threading.Event()
    strikes = [KeyboardInterrupt(), KeyboardInterrupt()]
    dataset = Logged(call)
    iterator = iter(make(dataset, OneWorker(), num_workers=1))
    try:
        assert entered.wait(60)
        for _ in range(2):
            with pytest.raises(KeyboardInterrupt):
                next(iterator)
        assert not strikes
    finally:
        gate.set()
    assert list(iterator) == PAIRS
    # Broken off twice after sample 2.
    assert dataset.by_consumer().count(2) == 3


class Pinned(list[int]):
    """A batch that was pinned."""


@pytest.mark.parametrize("last", ["inline", "help"])
@pytest.mark.parametrize("after", ["inline", "help", "workers"])
def test_what_an_interrupt_left_of_a_batch_is_never_handed_over_as_another(
    own_mode: Policy, after: str, last: str
) -> None:
    """It strikes after the samples are fetched, and the mode changes meanwhile."""

    def pin(batch: list[int]) -> Pinned:
        if batch == PAIRS[3] and strikes:
            raise strikes.pop()
        return Pinned(batch)

    strikes = [KeyboardInterrupt(), KeyboardInterrupt()]
    dataset = Logged()
    loader = make(dataset, own_mode, pin_memory=True)
    loader._make_pinner = lambda: pin  # type: ignore[method-assign, assignment, return-value]
    iterator = iter(loader)
    batches = list(itertools.islice(iterator, 3))
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            next(iterator)
    let_workers(own_mode)
    own_mode.is_inline = after == "inline"
    own_mode.cost_s = 1.0 if after == "workers" else 1e-6
    batches.append(next(iterator))
    # Back again, as soon as no worker loads any more.
    pool = loader._backend._pool  # type: ignore[union-attr]
    assert wait_until(lambda: len(pool.sleeping) == 2)
    own_mode.is_inline = last == "inline"
    own_mode.cost_s = 1e-6
    batches += iterator
    assert batches == PAIRS
    assert all(type(batch) is Pinned for batch in batches)
    assert loader.stats().batches == len(PAIRS)


# The consumer's copy, and the epoch.


class Told(Logged):
    """A dataset that knows its epoch; takes down each time that it is told."""

    epoch = -1
    shift = 0

    def __init__(self) -> None:
        super().__init__()
        self.told: list[tuple[int, bool]] = []

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch
        self.told.append((epoch, is_worker()))

    def __getitem__(self, index: int) -> Any:
        return self.epoch, super().__getitem__(index) + self.shift


def epochs_of(batches: Iterator[Any]) -> set[int]:
    return {epoch for batch in batches for epoch, _ in batch}


@pytest.mark.parametrize("persistent_workers", [True, False])
def test_a_copy_that_the_consumer_takes_late_knows_the_epoch(
    own_mode: Policy, persistent_workers: bool
) -> None:
    dataset = Told()
    policy = ByWorkers()
    with make(dataset, policy, persistent_workers=persistent_workers) as loader:
        for epoch in (3, 5):
            loader.set_epoch(epoch)
            assert epochs_of(iter(loader)) == {epoch}
        assert not dataset.by_consumer()
        # From here on the consumer loads.
        policy.cost_s = 1e-6
        policy.is_inline = own_mode.is_inline
        del dataset.loaded[:]
        for epoch in (5, 8, 9):
            loader.set_epoch(epoch)
            assert epochs_of(iter(loader)) == {epoch}
        # While it helps, workers may be quicker.
        assert dataset.by_consumer() or not own_mode.is_inline


def test_a_copy_that_the_consumer_keeps_is_told_once_for_each_call(
    own_mode: Policy,
) -> None:
    dataset = Told()
    with make(dataset, own_mode, persistent_workers=True) as loader:
        for epoch in (2, 2, None, 7):
            del dataset.told[:]
            if epoch is not None:
                loader.set_epoch(epoch)
            assert epochs_of(iter(loader)) == {epoch or 2}
            # The loader's object and the consumer's copy of it.
            first = not dataset.loaded[SIZE:]
            calls = 0 if epoch is None else 1 if first else 2
            assert dataset.told == [(epoch, False)] * calls
    assert not dataset.by_workers()


def test_the_consumers_copy_is_of_the_dataset_as_it_was_at_iter(
    own_mode: Policy,
) -> None:
    dataset = Told()
    dataset.shift = 100
    iterator = iter(make(dataset, own_mode))
    dataset.shift = 0
    first = [index for batch in iterator for _, index in batch]
    assert first == list(range(100, 100 + SIZE))


def test_a_copy_is_kept_over_epochs_with_persistent_workers_alone(
    own_mode: Policy,
) -> None:
    class Counting(Logged):
        count = 0

        def __getitem__(self, index: int) -> int:
            self.count += 1
            return self.count

    for persistent in (True, False):
        loader = make(Counting(), own_mode, persistent_workers=persistent)
        with loader:
            last = [list(loader)[-1][-1] for _ in range(3)]
        assert last == ([SIZE, 2 * SIZE, 3 * SIZE] if persistent else [SIZE] * 3)


# Changes of mode.


STATES = ("inline", "help", "workers")


@pytest.mark.parametrize("first", STATES)
@pytest.mark.parametrize("second", STATES)
@pytest.mark.parametrize("after", [1, 2, 5])
def test_a_change_of_mode_anywhere_loses_and_doubles_nothing(
    first: str, second: str, after: int
) -> None:
    states = itertools.cycle([first] * after + [second] * (after + 1))
    dataset = Logged()
    with make(dataset, Scripted(states)) as loader:
        for _ in range(3):
            del dataset.loaded[:]
            assert list(loader) == PAIRS
            assert sorted(index for index, _ in dataset.loaded) == list(range(SIZE))
        assert loader.stats().batches == 3 * len(PAIRS)


class Flickering(Scripted):
    """A policy that says something else each time that it is asked."""

    def __init__(self, seed: int) -> None:
        self._dice = random.Random(seed)
        super().__init__(iter(()))

    @property
    def is_inline(self) -> bool:
        return self._dice.random() < 0.7

    @is_inline.setter
    def is_inline(self, value: bool) -> None:
        pass


@pytest.mark.parametrize("seed", range(8))
def test_a_mode_that_changes_between_two_looks_loses_and_doubles_nothing(
    seed: int,
) -> None:
    """As where two iterators share a policy."""
    with make(Logged(), Flickering(seed), batch_size=1) as loader:
        for epoch in range(1, 6):
            assert list(loader) == [[i] for i in range(SIZE)]
            assert loader.stats().batches == epoch * SIZE


@pytest.mark.parametrize("in_order", [True, False])
def test_costs_that_change_lead_from_the_consumer_to_workers_and_back(
    in_order: bool,
) -> None:
    dear = range(10, 20 + MOST_UNTIMED)

    class Changing(Logged):
        def __len__(self) -> int:
            return dear.stop + 10

        def __getitem__(self, index: int) -> int:
            if index in dear:
                time.sleep(INLINE_LEAVE_AT_ONCE_S * 20)
            return super().__getitem__(index)

    dataset = Changing()
    with make(dataset, Policy(), batch_size=1, in_order=in_order) as loader:
        for _ in range(3):
            del dataset.loaded[:]
            assert sorted(loader) == [[i] for i in range(len(dataset))]
            # By then it has noticed.
            assert dear[-1] in dataset.by_workers()


@pytest.mark.skipif(IMPLEMENTATION != "cython", reason="the compiled short way alone")
def test_batches_that_have_become_very_dear_go_to_workers_soon() -> None:
    class Changing(Logged):
        def __len__(self) -> int:
            return 500

        def __getitem__(self, index: int) -> int:
            if index >= 400:
                time.sleep(INLINE_LEAVE_AT_ONCE_S * 20)
            return super().__getitem__(index)

    dataset = Changing()
    with make(dataset, Policy(), batch_size=1) as loader:
        for _ in range(3):
            del dataset.loaded[:]
            assert list(loader) == [[i] for i in range(500)]
            # 8 until the clock is looked at, and one that is timed.
            assert 409 in dataset.by_workers()


@pytest.mark.parametrize(
    "states", [["help"], ["inline"], ["help", "inline", "workers"]], ids=str
)
def test_an_iterator_may_move_between_threads_in_any_mode(states: list[str]) -> None:
    iterator = iter(make(Logged(), Scripted(itertools.cycle(states)), batch_size=1))
    batches: list[Any] = []

    def consume() -> None:
        batches.extend(itertools.islice(iterator, 3))

    for _ in range(SIZE // 6):
        thread = threading.Thread(target=consume)
        thread.start()
        thread.join(60)
        consume()
    assert batches == [[i] for i in range(SIZE)]
    assert next(iterator, None) is None


def test_two_iterators_of_a_loader_are_helped_by_their_own_consumers(
    own_mode: Policy,
) -> None:
    dataset = Logged()
    loader = make(dataset, own_mode)
    assert list(zip(loader, loader, strict=True)) == [(p, p) for p in PAIRS]
    assert dataset.by_consumer() == sorted([*range(SIZE)] * 2)


# A loader inside a sample.


def test_a_loader_with_workers_inside_a_sample_is_left_to_its_workers(
    mode: Policy,
) -> None:
    def iterate(index: int) -> None:
        # The thread may be a worker, whose place in the epoch must stay its own.
        inner, policy = Logged(), Helping()
        inners.append(inner)
        let_workers(policy)
        with make(inner, policy, batch_size=8) as loader:
            assert [*itertools.chain(*loader)] == list(range(SIZE))

    inners: list[Logged] = []
    dataset = Logged(iterate)
    assert list(make(dataset, mode)) == PAIRS
    assert len(inners) == SIZE
    for inner in inners:
        assert inner.by_workers() == list(range(SIZE))


def test_a_sample_that_closes_the_loader_is_the_last_one(own_mode: Policy) -> None:
    def close(index: int) -> None:
        if index == 6:
            loader.close()

    loader = make(Logged(close), own_mode)
    iterator = iter(loader)
    assert list(itertools.islice(iterator, 4)) == PAIRS[:4]
    with pytest.raises(ClosedError):
        next(iterator)
