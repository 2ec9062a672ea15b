"""Torch's functions in worker threads; draws and seeds that come through torch."""

from __future__ import annotations

import contextvars
import inspect
import os
import pickle
import random
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dataloader._fast import local
from dataloader._torch import (
    draw_int64,
    install_worker_hooks,
    loaded,
    seeded_globals,
    torch_class,
)
from dataloader.worker_info import Scope, WorkerInfo, WorkerRng

PROJECT = Path(__file__).parents[1]


@contextmanager
def as_worker(number: int = 1, torch_seed: int = 77) -> Iterator[WorkerInfo]:
    """Make the calling thread look like a worker thread of a loader."""
    scope = Scope(seed=5, epoch=0)
    rng = WorkerRng(scope)
    info = WorkerInfo(number, 4, torch_seed, object(), rng, "thread")
    scope.info, scope.torch_seed = info, torch_seed
    local.scope = scope
    try:
        yield info
    finally:
        local.scope = None


@pytest.fixture
def torch() -> Any:
    """Torch with the hooks in place."""
    torch = pytest.importorskip("torch")
    install_worker_hooks()
    return torch


# --- Torch is loaded ------------------------------------------------------------------


def test_torch_get_worker_info_answers_for_the_thread_that_asks(torch: Any) -> None:
    from torch.utils.data import get_worker_info

    barrier = threading.Barrier(2)

    def ask(number: int) -> Any:
        with as_worker(number) as info:
            barrier.wait(10)
            return get_worker_info() is info

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(ask, range(2))) == [True, True]
    assert get_worker_info() is None


def test_torch_get_worker_info_still_answers_in_torchs_own_workers(torch: Any) -> None:
    from torch.utils.data._utils import worker

    own = object()
    worker._worker_info = own
    try:
        assert torch.utils.data.get_worker_info() is own
        with as_worker() as info:
            assert torch.utils.data.get_worker_info() is info
    finally:
        worker._worker_info = None


def test_a_reference_taken_before_the_hooks_is_the_same_function() -> None:
    # In a fresh process: here the hooks may be in place already.
    pytest.importorskip("torch")
    run(
        """
        from torch.utils.data import get_worker_info as early
        from torch.utils.data._utils.collate import collate_tensor_fn as collate
        import inspect, pickle, torch
        before = [str(inspect.signature(f)) for f in (early, collate)]
        doc = early.__doc__
        from dataloader._torch import install_worker_hooks
        install_worker_hooks()
        from tests.test_torch_hooks import as_worker
        with as_worker() as info:
            assert early() is info
            assert torch.initial_seed() == 77
        assert early() is None
        assert [str(inspect.signature(f)) for f in (early, collate)] == before
        assert early.__doc__ == doc and early.__code__.co_name == "get_worker_info"
        assert pickle.loads(pickle.dumps(early)) is early
        """
    )


def test_torch_default_collate_allocates_no_shared_memory(torch: Any) -> None:
    batch = [torch.ones(3), torch.zeros(3)]
    with as_worker():
        joined = torch.utils.data.default_collate(batch)
        assert torch.utils.data.get_worker_info() is not None
    assert not joined.is_shared()
    assert joined.tolist() == [[1, 1, 1], [0, 0, 0]]


def test_torch_default_collate_promotes_in_a_worker_as_outside(torch: Any) -> None:
    batch = [torch.ones(1), torch.ones(1, dtype=torch.float64, requires_grad=True)]
    outside = torch.utils.data.default_collate(batch)
    with as_worker():
        inside = torch.utils.data.default_collate(batch)
    assert inside.dtype == outside.dtype == torch.float64
    assert inside.requires_grad


def test_the_mask_of_collation_goes_when_collation_fails(torch: Any) -> None:
    with as_worker() as info:
        with pytest.raises(RuntimeError):
            torch.utils.data.default_collate([torch.ones(1), torch.ones(2)])
        assert torch.utils.data.get_worker_info() is info


def test_torchs_process_workers_still_collate_into_shared_memory(torch: Any) -> None:
    from torch.utils.data._utils import worker

    worker._worker_info = object()
    try:
        assert torch.utils.data.default_collate([torch.ones(2)]).is_shared()
    finally:
        worker._worker_info = None


def test_torch_initial_seed_is_the_workers(torch: Any) -> None:
    from torch.random import initial_seed

    outside = torch.initial_seed()
    with as_worker(torch_seed=123):
        assert (torch.initial_seed(), initial_seed()) == (123, 123)
    assert torch.initial_seed() == outside


def test_torch_thread_safe_generator_is_the_workers(torch: Any) -> None:
    thread_safe_generator = getattr(torch.random, "thread_safe_generator", None)
    if thread_safe_generator is None:
        pytest.skip("this version of torch has no thread_safe_generator")
    assert thread_safe_generator() is None
    with as_worker() as info:
        assert info.rng is not None
        assert thread_safe_generator() is info.rng.torch_generator


def test_signatures_and_pickling_by_name_stay(torch: Any) -> None:
    from torch.utils.data._utils.collate import collate_tensor_fn

    for function in (torch.utils.data.get_worker_info, torch.initial_seed):
        assert not inspect.signature(function).parameters
    parameters = inspect.signature(collate_tensor_fn).parameters
    assert list(parameters) == ["batch", "collate_fn_map"]
    assert parameters["collate_fn_map"].default is None
    for function in (collate_tensor_fn, torch.initial_seed):
        assert pickle.loads(pickle.dumps(function)) is function


def test_installing_again_changes_nothing(torch: Any) -> None:
    finders = list(sys.meta_path)
    code = torch.initial_seed.__code__
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: install_worker_hooks(), range(100)))
    assert torch.initial_seed.__code__ is code
    assert sys.meta_path == finders


def test_a_torch_worker_process_forked_off_a_worker_thread_is_torchs(
    torch: Any,
) -> None:
    from torch.utils.data._utils import worker

    def answers_in_child() -> list[bool]:
        worker._worker_info = own = object()
        torch.random.default_generator.manual_seed(9)
        return [
            torch.utils.data.get_worker_info() is own,
            torch.initial_seed() == 9,
        ]

    with as_worker():
        assert in_fork(answers_in_child) == [True, True]
        assert torch.initial_seed() == 77


# --- Torch is loaded later, or never --------------------------------------------------

# A torch of which nothing but the three functions is there, so that imports are fast,
# can fail, and are tested where no torch is installed.
FAKE = {
    "torch/__init__.py": """
        import torch.random
        from torch.random import initial_seed
        """,
    "torch/random.py": """
        class Generator:
            seed = 1
            def initial_seed(self): return self.seed
            def manual_seed(self, seed): self.seed = seed
            def get_state(self): return self.seed
            def set_state(self, state): self.seed = state
        default_generator = Generator()
        def initial_seed():
            return default_generator.initial_seed()
        """,
    "torch/utils/__init__.py": "",
    "torch/utils/data/__init__.py": """
        from torch.utils.data._utils.worker import get_worker_info
        from torch.utils.data._utils.collate import collate_tensor_fn
        class DataLoader: pass
        """,
    "torch/utils/data/_utils/__init__.py": "",
    "torch/utils/data/_utils/worker.py": """
        _worker_info = None
        def get_worker_info():
            return _worker_info
        """,
    "torch/utils/data/_utils/collate.py": """
        import torch.utils.data
        def collate_tensor_fn(batch, *, collate_fn_map=None):
            return torch.utils.data.get_worker_info()
        """,
}

ASK = """
    from tests.test_torch_hooks import as_worker
    import sys, torch, torch.utils.data as data
    def check():
        with as_worker() as info:
            assert data.get_worker_info() is info
            assert torch.initial_seed() == 77
            assert data.collate_tensor_fn([]) is None
        assert data.get_worker_info() is None
        assert torch.initial_seed() == 1
        assert not any("dataloader" in type(f).__module__ for f in sys.meta_path)
    """


@pytest.fixture
def fake(tmp_path: Path) -> Path:
    """Folder with a package called torch."""
    for name, text in FAKE.items():
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(textwrap.dedent(text))
    return tmp_path


def run(code: str, path: Path | None = None) -> None:
    """Run code in a fresh interpreter; AssertionError if it fails."""
    folders = [str(f) for f in (path, PROJECT) if f is not None]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(folders)}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(code)],
        env=environment,
        cwd=PROJECT,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""


def in_fork(answer: Callable[[], list[bool]]) -> list[bool]:
    """Return what a function answers in a forked child."""
    receiver, sender = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(sender, bytes(answer()))
        finally:
            os._exit(0)
    os.close(sender)
    os.waitpid(child, 0)
    with open(receiver, "rb") as stream:
        return [bool(byte) for byte in stream.read()]


def after(*parts: str) -> str:
    return "\n".join(textwrap.dedent(part) for part in parts)


INSTALL = """
    from dataloader._torch import install_worker_hooks
    install_worker_hooks(); install_worker_hooks()
    import sys
    assert "torch" not in sys.modules
    """


def test_hooks_take_when_torch_is_imported_later(fake: Path) -> None:
    run(after(INSTALL, ASK, "check()"), fake)


def test_hooks_take_when_a_worker_thread_imports_torch(fake: Path) -> None:
    work = """
        import threading
        failures = []
        def work():
            try:
                import torch.utils.data
            except BaseException as error:
                failures.append(error)
        threads = [threading.Thread(target=work) for _ in range(4)]
        for t in threads: t.start()
        for t in threads: t.join()
        assert not failures
        """
    run(after(INSTALL, work, ASK, "check()"), fake)


def test_hooks_take_when_the_first_import_fails(fake: Path) -> None:
    worker = fake / "torch/utils/data/_utils/worker.py"
    good = worker.read_text()
    worker.write_text("raise RuntimeError('broken')")
    mend = f"""
        try:
            import torch.utils.data
        except RuntimeError as error:
            assert "broken" in str(error)
        else:
            raise AssertionError
        import importlib, pathlib
        pathlib.Path({str(worker)!r}).write_text({good!r} + "# another length")
        importlib.invalidate_caches()
        """
    run(after(INSTALL, mend, ASK, "check()"), fake)


def test_imported_modules_keep_their_own_loader(fake: Path) -> None:
    check = """
        import torch.random, inspect
        from importlib.machinery import SourceFileLoader
        assert type(torch.random.__loader__) is SourceFileLoader
        assert type(torch.random.__spec__.loader) is SourceFileLoader
        assert "Generator" in inspect.getsource(torch.random)
        """
    run(after(INSTALL, check), fake)


def test_hooks_take_beside_another_finder_that_asks_all(fake: Path) -> None:
    other = """
        class Nosy:
            def find_spec(self, name, path=None, target=None):
                for finder in sys.meta_path:
                    if finder is not self:
                        spec = finder.find_spec(name, path, target)
                        if spec is not None:
                            return spec
        sys.meta_path.insert(0, Nosy())
        """
    run(after(INSTALL, other, ASK, "check()"), fake)


def test_a_function_with_other_parameters_is_left_alone(fake: Path) -> None:
    worker = fake / "torch/utils/data/_utils/worker.py"
    worker.write_text("def get_worker_info(more):\n    return more\n")
    check = """
        import logging
        said = []
        logging.getLogger("dataloader").addFilter(lambda r: said.append(r.getMessage()))
        import torch, torch.utils.data as data
        from tests.test_torch_hooks import as_worker
        with as_worker():
            assert data.get_worker_info(3) == 3
            assert torch.initial_seed() == 77
        assert len(said) == 1 and "get_worker_info" in said[0]
        """
    run(after(INSTALL, check), fake)


def test_a_half_imported_torch_is_not_handed_out(fake: Path) -> None:
    (fake / "torch/__init__.py").write_text("import probe\n")
    probe = """
        import sys
        from dataloader._torch import loaded_torch, draw_int64
        assert "torch" in sys.modules and loaded_torch() is None
        assert draw_int64() >= 0
        """
    (fake / "probe.py").write_text(textwrap.dedent(probe))
    check = """
        import torch, probe
        from dataloader._torch import loaded_torch
        assert loaded_torch() is torch
        """
    run(check, fake)


def test_init_function_that_loads_torch_sees_it_seeded(fake: Path) -> None:
    check = """
        from dataloader._torch import seeded_globals
        with seeded_globals(40, 2) as state:
            import torch
            assert torch.initial_seed() == 40
        assert state.torch_seed == 40
        assert torch.initial_seed() == 1
        """
    run(after(INSTALL, check), fake)


def test_without_torch_nothing_is_found_and_nothing_imported() -> None:
    run(
        """
        import sys
        from dataloader._torch import *
        assert loaded_torch() is None and torch_class("DataLoader") is None
        draws = {draw_int64() for _ in range(100)}
        assert len(draws) == 100 and max(draws) < 2**63 and max(draws) > 2**60
        with seeded_globals(3, 0) as state:
            pass
        assert state.torch_seed is None
        install_worker_hooks()
        assert not any(name.partition(".")[0] == "torch" for name in sys.modules)
        """
    )


# --- Draws ----------------------------------------------------------------------------


def test_draw_is_the_draw_of_torchs_loader(torch: Any) -> None:
    def torchs(generator: Any) -> int:
        empty = torch.empty((), dtype=torch.int64)
        return int(empty.random_(generator=generator).item())

    expected = torchs(torch.Generator().manual_seed(4))
    assert draw_int64(torch.Generator().manual_seed(4)) == expected
    with torch.random.fork_rng():
        torch.manual_seed(4)
        assert draw_int64() == expected
        assert draw_int64() != expected


def test_draw_takes_a_numpy_generator() -> None:
    expected = int(np.random.default_rng(3).integers(0, 2**63))
    assert draw_int64(np.random.default_rng(3)) == expected


def test_draw_refuses_other_generators() -> None:
    with pytest.raises(TypeError, match="generator"):
        draw_int64(random.Random(1))


def test_torch_class_finds_classes_alone(torch: Any) -> None:
    assert torch_class("DataLoader") is torch.utils.data.DataLoader
    assert torch_class("DistributedSampler") is torch.utils.data.DistributedSampler
    assert torch_class("random_split") is None
    assert torch_class("NoSuchClass") is None


def test_loaded_knows_modules_by_name() -> None:
    assert loaded("random") is random
    assert loaded("no_such_module") is None


# --- worker_init_fn -------------------------------------------------------------------


def states() -> tuple[Any, ...]:
    numpy_state = np.random.get_state(legacy=False)
    torch = loaded("torch")
    torch_state = None if torch is None else torch.get_rng_state().tolist()
    return random.getstate(), repr(numpy_state), torch_state


def test_globals_are_seeded_as_in_a_torch_worker_process(torch: Any) -> None:
    base, worker = 2**40 + 3, 5
    with seeded_globals(base + worker, worker):
        drawn = random.random(), np.random.random(), torch.rand(()).item()
    words = torch.utils.data._utils.worker._generate_state(base, worker)
    generator = torch.Generator().manual_seed(base + worker)
    assert drawn == (
        random.Random(base + worker).random(),
        np.random.RandomState(words).random(),
        torch.rand((), generator=generator).item(),
    )


def test_globals_are_put_back(torch: Any) -> None:
    np.random.normal()  # leaves half of a pair, which is part of the state
    before = states(), torch.initial_seed()
    with seeded_globals(7, 0):
        random.random(), np.random.normal(), torch.rand(3)
        assert states() != before[0]
    assert (states(), torch.initial_seed()) == before


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
def test_globals_are_put_back_after_an_exception(error: type[BaseException]) -> None:
    before = states()

    def fail() -> None:
        with seeded_globals(7, 0):
            random.random(), np.random.random()
            raise error

    with pytest.raises(error):
        fail()
    assert states() == before
    with seeded_globals(8, 0):  # the lock was given back too
        pass


def test_another_numpy_bit_generator_is_kept_and_put_back() -> None:
    get, put = np.random.get_bit_generator, np.random.set_bit_generator  # type: ignore[attr-defined]
    own = get()
    put(np.random.PCG64(5))
    try:
        before = get(), repr(get().state)
        with seeded_globals(7, 0):
            np.random.random()
            put(np.random.PCG64(6))
        assert (get(), repr(get().state)) == before
    finally:
        put(own)


def test_the_seed_that_the_init_function_left_is_told(torch: Any) -> None:
    with seeded_globals(7, 0) as state:
        assert torch.initial_seed() == 7
    assert state.torch_seed == 7
    with as_worker(torch_seed=99), seeded_globals(7, 0) as state:
        torch.manual_seed(1234)
        assert torch.initial_seed() == 1234
    assert state.torch_seed == 1234


def test_one_init_function_runs_at_a_time() -> None:
    inside: list[int] = []
    most: list[int] = []
    barrier = threading.Barrier(4)

    def work(number: int) -> float:
        barrier.wait(10)
        with seeded_globals(number, number):
            inside.append(number)
            most.append(len(inside))
            drawn = random.random()
            inside.remove(number)
        return drawn

    with ThreadPoolExecutor(4) as pool:
        drawn = list(pool.map(work, range(4)))
    assert max(most) == 1
    assert drawn == [random.Random(number).random() for number in range(4)]


def test_an_init_function_may_wait_for_workers_of_its_own() -> None:
    def inner() -> float:
        with seeded_globals(2, 0):
            return random.random()

    with seeded_globals(1, 0), ThreadPoolExecutor(2) as pool:
        contexts = [contextvars.copy_context() for _ in range(2)]
        futures = [pool.submit(context.run, inner) for context in contexts]
        expected = random.Random(2).random()
        assert [f.result(10) for f in futures] == [expected, expected]


def test_a_child_forked_during_an_init_function_can_seed() -> None:
    holding, leave = threading.Event(), threading.Event()

    def hold() -> None:
        with seeded_globals(1, 0):
            holding.set()
            leave.wait(30)

    def seeds() -> list[bool]:
        with seeded_globals(2, 0):
            return [random.random() == random.Random(2).random()]

    thread = threading.Thread(target=hold)
    thread.start()
    try:
        assert holding.wait(10)
        assert in_fork(seeds) == [True]
    finally:
        leave.set()
        thread.join()
