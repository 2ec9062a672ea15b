"""The rule that says who loads a batch, and what keeps the consumer from loading."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from dataloader.worker_info import NotInWorker
from dataloader.workers import policy as policy_module
from dataloader.workers.policy import (
    CHEAP_CHECKS,
    HELP_BELOW_S,
    INLINE_BELOW_S,
    INLINE_LEAVE_AT_ONCE_S,
    INLINE_LEAVE_S,
    MOST_UNTIMED,
    SPARE_CORE_BELOW_S,
    UNTIMED_S,
    Policy,
    is_gil_enabled,
    mode_probe,
)

CHEAP = INLINE_BELOW_S / 2
BETWEEN = (INLINE_BELOW_S + INLINE_LEAVE_S) / 2
DEAR = INLINE_LEAVE_S * 2


def policy_of(version: tuple[int, int], has_gil: bool, cores: int = 4) -> Policy:
    """Return a new policy of another interpreter or machine."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(policy_module, "is_gil_enabled", lambda: has_gil)
        patch.setattr(policy_module, "sys", SimpleNamespace(version_info=version))
        patch.setattr(policy_module, "_cores", lambda: cores)
        return Policy()


@pytest.fixture
def policy() -> Policy:
    """A new policy of an interpreter whose limits are those in the table."""
    return policy_of((3, 14), has_gil=False)


def note(policy: Policy, costs: Iterable[float]) -> bool:
    """Take note of costs; return whether the consumer loads everything then."""
    for cost_s in costs:
        policy.note(cost_s)
    return policy.is_inline


# Inline.


def test_three_cheap_batches_in_a_row_lead_to_inline(policy: Policy) -> None:
    assert not note(policy, [CHEAP] * (CHEAP_CHECKS - 1))
    assert note(policy, [CHEAP])


@pytest.mark.parametrize("cost_s", [INLINE_BELOW_S, BETWEEN, DEAR, 1.0])
def test_a_batch_that_is_not_cheap_starts_the_count_anew(
    policy: Policy, cost_s: float
) -> None:
    assert not note(policy, [CHEAP] * (CHEAP_CHECKS - 1) + [cost_s])
    assert not note(policy, [CHEAP] * (CHEAP_CHECKS - 1))
    assert note(policy, [CHEAP])


def test_what_the_average_was_before_does_not_matter(policy: Policy) -> None:
    assert note(policy, [10.0, *[CHEAP] * CHEAP_CHECKS])


def test_two_dear_batches_in_a_row_end_inline(policy: Policy) -> None:
    note(policy, [CHEAP] * CHEAP_CHECKS)
    assert note(policy, [DEAR])
    assert not note(policy, [DEAR])


def test_one_dear_batch_now_and_then_does_not_end_inline(policy: Policy) -> None:
    note(policy, [CHEAP] * CHEAP_CHECKS)
    assert note(policy, [DEAR, CHEAP, DEAR, BETWEEN, DEAR, INLINE_LEAVE_S] * 5)


def test_one_very_dear_batch_ends_inline_at_once(policy: Policy) -> None:
    note(policy, [CHEAP] * CHEAP_CHECKS)
    assert note(policy, [INLINE_LEAVE_AT_ONCE_S])
    note(policy, [CHEAP])
    assert not note(policy, [INLINE_LEAVE_AT_ONCE_S * 1.01])


def test_inline_is_left_with_the_cost_that_ended_it(policy: Policy) -> None:
    note(policy, [CHEAP] * CHEAP_CHECKS)
    note(policy, [1.0])
    # The average of the cheap ones would let the consumer help with such a batch.
    assert policy.cost_s == 1.0


def test_leaving_inline_starts_both_counts_anew(policy: Policy) -> None:
    note(policy, [CHEAP] * CHEAP_CHECKS)
    assert not note(policy, [DEAR, DEAR])
    assert not note(policy, [CHEAP] * (CHEAP_CHECKS - 1))
    assert note(policy, [CHEAP])
    assert note(policy, [DEAR])
    assert not note(policy, [DEAR])


@pytest.mark.parametrize(
    ("version", "has_gil", "factor"),
    [
        ((3, 14), False, 1.0),
        ((3, 15), False, 1.0),
        ((3, 13), False, 2.5),
        ((3, 14), True, 5.0),
        ((3, 11), True, 5.0),
    ],
)
def test_slower_interpreters_load_dearer_batches_inline(
    version: tuple[int, int], has_gil: bool, factor: float
) -> None:
    policy = policy_of(version, has_gil)
    assert not note(policy, [INLINE_BELOW_S * factor] * 10)
    assert note(policy, [INLINE_BELOW_S * factor * 0.99] * CHEAP_CHECKS)
    assert note(policy, [INLINE_LEAVE_S * factor] * 10)
    assert not note(policy, [INLINE_LEAVE_S * factor * 1.01] * 2)


def test_the_gil_is_asked_for_by_the_name_that_python_has_for_it() -> None:
    is_free_threaded = not getattr(sys, "_is_gil_enabled", lambda: True)()
    assert is_gil_enabled() is not is_free_threaded


@pytest.mark.parametrize(
    ("cost_s", "count"),
    [
        (1e-9, MOST_UNTIMED),
        (UNTIMED_S / MOST_UNTIMED / 2, MOST_UNTIMED),
        (UNTIMED_S / 2.5, 2),
        (UNTIMED_S, 1),
        (UNTIMED_S * 1.01, 0),
        (float("inf"), 0),
    ],
)
def test_the_dearer_batches_are_the_fewer_are_not_timed(
    policy: Policy, cost_s: float, count: int
) -> None:
    policy.cost_s = cost_s
    assert policy.untimed() == count


# The average.


def test_the_first_cost_is_the_average_and_later_ones_move_it(policy: Policy) -> None:
    assert policy.cost_s == float("inf")
    policy.note(0.8)
    assert policy.cost_s == 0.8
    policy.note(0.4)
    assert policy.cost_s == pytest.approx(0.7)
    note(policy, [0.1] * 60)
    assert policy.cost_s == pytest.approx(0.1, rel=1e-3)


# Waking workers: on four cores.


@pytest.mark.parametrize(
    ("cost_s", "most_awake"),
    [
        (CHEAP, 0),
        (SPARE_CORE_BELOW_S, 0),
        (SPARE_CORE_BELOW_S * 1.01, 3),
        (HELP_BELOW_S * 0.99, 3),
        (HELP_BELOW_S, 99),
        (float("inf"), 99),
    ],
)
def test_a_new_batch_wakes_a_worker_only_if_that_pays(
    policy: Policy, cost_s: float, most_awake: int
) -> None:
    policy.cost_s = cost_s
    wanted = [awake for awake in range(100) if policy.wants_worker(awake)]
    assert wanted == list(range(most_awake + 1))


@pytest.mark.parametrize(
    ("cost_s", "most_awake"),
    [
        (CHEAP, 2),
        (SPARE_CORE_BELOW_S * 0.99, 2),
        (SPARE_CORE_BELOW_S, 99),
        (float("inf"), 99),
    ],
)
def test_a_consumer_that_waits_keeps_a_core_for_itself_while_batches_are_cheap(
    policy: Policy, cost_s: float, most_awake: int
) -> None:
    policy.cost_s = cost_s
    allowed = [awake for awake in range(100) if policy.allows_worker(awake)]
    assert allowed == list(range(most_awake + 1))


@pytest.mark.parametrize("cores", [1, 2])
def test_one_worker_may_be_awake_however_few_cores_there_are(
    policy: Policy, cores: int
) -> None:
    policy.cores = cores
    policy.cost_s = CHEAP
    assert policy.wants_worker(0)
    assert policy.allows_worker(0)
    assert not policy.allows_worker(1)


def test_a_worker_is_woken_if_more_are_held_up_than_are_awake(policy: Policy) -> None:
    policy.cost_s = CHEAP
    assert policy.wants_worker(-1)
    assert policy.allows_worker(-1)


def test_the_cores_are_those_that_the_process_may_use(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {1, 5, 6}, raising=False)
    assert Policy().cores == 3
    monkeypatch.delattr("os.sched_getaffinity")
    monkeypatch.setattr("os.cpu_count", lambda: 7)
    assert Policy().cores == 7
    monkeypatch.setattr("os.cpu_count", lambda: None)
    assert Policy().cores == 1


# Who asks which worker it is in.


def test_a_worker_that_is_asked_for_its_info_is_taken_note_of(policy: Policy) -> None:
    assert not policy.info_was_asked
    policy.note_asked()
    assert policy.info_was_asked


def test_a_consumer_that_is_asked_for_its_info_sends_the_batch_away(
    policy: Policy,
) -> None:
    with pytest.raises(NotInWorker):
        policy.send_to_worker()
    assert policy.info_was_asked
    # Users' code lets it pass.
    assert not issubclass(NotInWorker, Exception)


# The modes of torch.


def test_without_torch_there_is_no_mode_to_ask_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    assert mode_probe() is None
    assert mode_probe(lambda: True) is None


def _function_mode(torch: Any) -> AbstractContextManager[Any]:
    class Mode(torch.overrides.TorchFunctionMode):  # type: ignore[misc]
        def __torch_function__(
            self, function: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            return function(*args, **(kwargs or {}))

    return Mode()


def _dispatch_mode(torch: Any) -> AbstractContextManager[Any]:
    from torch.utils._python_dispatch import TorchDispatchMode

    class Mode(TorchDispatchMode):  # type: ignore[misc]
        def __torch_dispatch__(
            self, function: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            return function(*args, **(kwargs or {}))

    return Mode()


MODES: dict[str, Callable[[Any], AbstractContextManager[Any]]] = {
    "no_grad": lambda torch: torch.no_grad(),
    "set_grad_enabled": lambda torch: torch.set_grad_enabled(False),
    "inference_mode": lambda torch: torch.inference_mode(),
    "autocast": lambda torch: torch.autocast("cpu", dtype=torch.bfloat16),
    "default device": lambda torch: torch.device("meta"),
    "function mode": _function_mode,
    "dispatch mode": _dispatch_mode,
}
NO_MODES: dict[str, Callable[[Any], AbstractContextManager[Any]]] = {
    "nothing": lambda torch: nullcontext(),
    "enable_grad": lambda torch: torch.enable_grad(),
    "inference_mode off": lambda torch: torch.inference_mode(False),
    "autocast off": lambda torch: torch.autocast("cpu", enabled=False),
    "anomalies": lambda torch: torch.autograd.set_detect_anomaly(True),
}


@pytest.mark.parametrize("name", MODES)
def test_a_mode_that_workers_do_not_have_is_seen_while_it_is_active(name: str) -> None:
    torch = pytest.importorskip("torch")
    probe = mode_probe()
    assert probe is not None
    assert probe() is False
    with MODES[name](torch):
        assert probe() is True
    assert probe() is False


@pytest.mark.filterwarnings("ignore:Anomaly Detection")
@pytest.mark.parametrize("name", NO_MODES)
def test_what_changes_no_batch_is_no_mode(name: str) -> None:
    torch = pytest.importorskip("torch")
    probe = mode_probe()
    assert probe is not None
    with NO_MODES[name](torch):
        assert probe() is False


def test_a_mode_within_another_is_no_way_out_of_it() -> None:
    torch = pytest.importorskip("torch")
    probe = mode_probe()
    assert probe is not None
    with torch.no_grad(), torch.enable_grad():
        assert probe() is False
    with torch.inference_mode(), torch.enable_grad():
        assert probe() is True


def test_a_mode_of_another_thread_is_its_own_affair() -> None:
    torch = pytest.importorskip("torch")
    import threading

    probe = mode_probe()
    assert probe is not None
    seen: list[bool] = []
    with torch.no_grad():
        thread = threading.Thread(target=lambda: seen.append(probe()))
        thread.start()
        thread.join()
    assert seen == [False]


def test_a_profiler_is_asked_for_where_each_batch_has_a_range_of_its_own() -> None:
    pytest.importorskip("torch")
    answers = [False]
    probe = mode_probe(lambda: answers[0])
    assert probe is not None
    assert probe() is False
    answers[0] = True
    assert probe() is True
