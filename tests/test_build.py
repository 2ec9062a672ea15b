"""What is installed: compiled kernels or their twins, and what packages hold."""

from __future__ import annotations

import ast
import inspect
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from twins import twins

from dataloader import _fast, build_info

ROOT = Path(__file__).resolve().parents[1]

free_threaded = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))


def python(
    code: str, cwd: Path | None = None, /, **switches: str
) -> subprocess.CompletedProcess[str]:
    """Run code in an interpreter that has these switches and no others of ours."""
    ours = ("DATALOADER_", "PYTHON_GIL")
    env = {k: v for k, v in os.environ.items() if not k.startswith(ours)}
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        cwd=cwd,
        env={**env, **switches},
        capture_output=True,
        text=True,
    )


def asked(code: str, **switches: str) -> str:
    done = python(code, **switches)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


# --- which twins run ------------------------------------------------------------------

TELL = """
import dataloader
info = dataloader.build_info()
print(info.implementation, info.is_checked, info.reason, sep="|")
"""
# None in sys.modules is how an import is made to fail.
MISSING = "import sys; sys.modules['dataloader._fast._permutation_c'] = None\n" + TELL
BROKEN = (
    """
import sys
class Broken:
    def find_spec(self, name, path, target=None):
        if name.startswith("dataloader._fast._") and name.endswith("_c"):
            raise ImportError("undefined symbol")
sys.meta_path.insert(0, Broken())
"""
    + TELL
)

needs_kernels = pytest.mark.skipif(
    _fast.IMPLEMENTATION != "cython", reason=_fast.REASON
)


def test_the_switch_picks_the_python_twins() -> None:
    said = asked(TELL, DATALOADER_NO_EXT="1")
    assert said == "python|False|DATALOADER_NO_EXT is set"


@needs_kernels
@pytest.mark.parametrize("off", ["", "0"])
def test_a_switch_that_is_empty_or_zero_is_off(off: str) -> None:
    said = asked(TELL, DATALOADER_NO_EXT=off, DATALOADER_DEBUG_EXT=off)
    assert said.startswith("cython|")


def test_without_compiled_kernels_the_python_twins_run() -> None:
    said = asked(MISSING, DATALOADER_REQUIRE_EXT="0")
    assert said == "python|False|the package was installed without compiled kernels"


def test_kernels_that_cannot_be_imported_are_not_passed_over_in_silence() -> None:
    assert "undefined symbol" in asked(BROKEN)


@pytest.mark.parametrize("switch", ["DATALOADER_REQUIRE_EXT", "DATALOADER_DEBUG_EXT"])
@pytest.mark.parametrize("code", [MISSING, BROKEN], ids=["missing", "broken"])
def test_kernels_that_are_required_must_be_there(code: str, switch: str) -> None:
    done = python(code, **{switch: "1"})
    assert done.returncode != 0
    assert "ImportError: " in done.stderr
    assert switch in done.stderr


@needs_kernels
def test_kernels_can_be_required_to_check_their_indices() -> None:
    done = python(TELL, DATALOADER_DEBUG_EXT="1")
    assert (done.returncode == 0) == _fast.IS_CHECKED
    assert done.stdout.startswith("cython|True|") or "without checks" in done.stderr


@pytest.mark.parametrize("other", ["DATALOADER_REQUIRE_EXT", "DATALOADER_DEBUG_EXT"])
def test_switches_that_exclude_each_other_are_refused(other: str) -> None:
    done = python(TELL, DATALOADER_NO_EXT="1", **{other: "1"})
    assert done.returncode != 0
    assert "DATALOADER_NO_EXT excludes" in done.stderr


def test_build_info_tells_what_runs() -> None:
    info = build_info()
    assert info.implementation == _fast.IMPLEMENTATION
    assert info.reason
    assert "\n" not in info.reason
    assert info.kernels == _fast.KERNELS
    assert info.python == sys.version.split()[0].rstrip("+")
    assert info.is_free_threaded == free_threaded
    assert info.is_gil_enabled or free_threaded


def test_the_kernels_are_those_that_are_built() -> None:
    assigned = {
        node.targets[0].id: node.value
        for node in ast.parse((ROOT / "setup.py").read_text("utf-8")).body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
    }
    assert ast.literal_eval(assigned["KERNELS"]) == _fast.KERNELS
    folder = ROOT / "dataloader" / "_fast"
    assert {path.name for path in folder.glob("*.pyx")} == {
        f"_{name}_c.pyx" for name in _fast.KERNELS
    }


def members(kind: type) -> set[str]:
    """Return the names that a class has of its own, without what all classes have."""
    return {name for name in vars(kind) if not name.startswith("__")}


@needs_kernels
@pytest.mark.parametrize("kernel", _fast.KERNELS)
def test_twins_have_the_same_functions(kernel: str) -> None:
    python_twin, compiled = twins(kernel)
    assert sorted(compiled.__all__) == sorted(python_twin.__all__)
    for name in python_twin.__all__:
        one, other = getattr(python_twin, name), getattr(compiled, name)
        if inspect.isfunction(one):
            assert list(inspect.signature(one).parameters) == list(
                inspect.signature(other).parameters
            )
            assert other.__doc__
        elif inspect.isclass(one):
            assert members(one) <= members(other)
        elif isinstance(one, int):
            assert one == other
        else:
            assert members(type(one)) <= members(type(other))


IMPORT_ALL = """
import importlib, pkgutil, sys, dataloader
for module in pkgutil.walk_packages(dataloader.__path__, "dataloader."):
    importlib.import_module(module.name)
print(sys._is_gil_enabled())
"""


@pytest.mark.skipif(not free_threaded, reason="this interpreter has a GIL")
def test_importing_everything_leaves_the_gil_off() -> None:
    assert asked(IMPORT_ALL) == "False"


# --- packages -------------------------------------------------------------------------

LEFT_OUT = shutil.ignore_patterns(
    ".*", "*.so", "*.pyd", "*.c", "__pycache__", "build", "dist", "*.egg-info"
)


def has_compiler() -> bool:
    headers = Path(sysconfig.get_path("include"), "Python.h")
    compiler = (sysconfig.get_config_var("CC") or "cl").split()[0]
    return headers.exists() and shutil.which(compiler) is not None


needs_compiler = pytest.mark.skipif(
    not has_compiler(), reason="needs a C compiler and Python's headers"
)
heeds_cc = pytest.mark.skipif(os.name == "nt", reason="MSVC does not look at CC")


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A copy of the source, since building leaves files in it."""
    pytest.importorskip("setuptools")
    return Path(shutil.copytree(ROOT, tmp_path / "tree", ignore=LEFT_OUT))


def build(
    tree: Path, kind: str = "wheel", *, before: str = "", **switches: str
) -> subprocess.CompletedProcess[str]:
    """Build a package as an installer does, into the folder ``dist`` of the tree."""
    code = f"{before}from setuptools import build_meta as b; b.build_{kind}('dist')"
    (tree / "dist").mkdir(exist_ok=True)
    # setuptools warns of what it finds in the tree; that is no error.
    return python(
        "import warnings; warnings.simplefilter('ignore');" + code, tree, **switches
    )


def built(
    tree: Path, kind: str = "wheel", *, before: str = "", **switches: str
) -> Path:
    done = build(tree, kind, before=before, **switches)
    assert done.returncode == 0, done.stderr
    (package,) = (tree / "dist").iterdir()
    return package


def names(package: Path) -> set[str]:
    """Return the files in a package, without the folder at the top of an sdist."""
    if package.suffix == ".whl":
        with zipfile.ZipFile(package) as wheel:
            return set(wheel.namelist())
    with tarfile.open(package) as sdist:
        return {name.partition("/")[2] for name in sdist.getnames()}


def compiled(package: Path) -> list[str]:
    return [n for n in names(package) if n.endswith((".so", ".pyd"))]


def modules() -> Iterator[str]:
    """Yield what every package holds."""
    for pattern in ("*.py", "*.pyi", "py.typed"):
        for path in (ROOT / "dataloader").rglob(pattern):
            yield path.relative_to(ROOT).as_posix()


@pytest.mark.slow
@needs_compiler
def test_a_wheel_holds_the_package_and_its_kernels(tree: Path) -> None:
    wheel = built(tree, DATALOADER_REQUIRE_EXT="1")
    packed = {n for n in names(wheel) if ".dist-info/" not in n}
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    kernels = {f"dataloader/_fast/_{name}_c{suffix}" for name in _fast.KERNELS}
    assert packed == {*modules(), *kernels}


@pytest.mark.slow
@needs_compiler
def test_a_source_distribution_holds_all_that_building_needs(
    tree: Path, tmp_path: Path
) -> None:
    # Also one that was made without kernels.
    sdist = built(tree, "sdist", DATALOADER_NO_EXT="1")
    packed = names(sdist)
    kernels = {f"dataloader/_fast/_{name}_c.pyx" for name in _fast.KERNELS}
    assert {*modules(), *kernels, "setup.py", "LICENSE", "CHANGELOG.md"} <= packed
    assert {"tests/conftest.py", "docs/migration.md", "scripts/test"} <= packed
    assert not [n for n in packed if n.endswith((".c", ".so", ".pyd", ".pyc"))]

    shutil.unpack_archive(sdist, tmp_path, filter="data")
    (unpacked,) = tmp_path.glob("dataloader_ft-*")
    assert compiled(built(unpacked, DATALOADER_REQUIRE_EXT="1"))


@pytest.mark.slow
@heeds_cc
def test_without_a_compiler_a_wheel_has_no_kernels(tree: Path) -> None:
    assert compiled(built(tree, CC="/bin/false")) == []


@pytest.mark.slow
def test_without_cython_a_wheel_has_no_kernels(tree: Path) -> None:
    before = "import sys; sys.modules['Cython'] = None;"
    assert compiled(built(tree, before=before)) == []


@pytest.mark.slow
def test_a_wheel_without_kernels_by_choice_fits_all_interpreters(tree: Path) -> None:
    wheel = built(tree, DATALOADER_NO_EXT="1")
    assert wheel.name.endswith("-py3-none-any.whl")
    assert compiled(wheel) == []


@pytest.mark.slow
@heeds_cc
def test_a_build_that_requires_kernels_fails_without_a_compiler(tree: Path) -> None:
    done = build(tree, CC="/bin/false", DATALOADER_REQUIRE_EXT="1")
    assert done.returncode != 0
    assert not list((tree / "dist").iterdir())


@pytest.mark.slow
def test_a_build_refuses_switches_that_exclude_each_other(tree: Path) -> None:
    done = build(tree, DATALOADER_NO_EXT="1", DATALOADER_REQUIRE_EXT="1")
    assert done.returncode != 0
    assert "unset one" in done.stderr


@pytest.mark.slow
@needs_compiler
def test_kernels_are_built_with_checks_only_when_asked(tree: Path) -> None:
    pytest.importorskip("Cython")
    source = tree / "dataloader/_fast/_permutation_c.c"
    found = []
    for debug in ("0", "1"):
        wheel = built(tree, DATALOADER_REQUIRE_EXT="1", DATALOADER_DEBUG_EXT=debug)
        installed = tree / f"installed{debug}"
        shutil.unpack_archive(wheel, installed, "zip")
        said = python(TELL, installed).stdout.split("|")
        found.append(("BufferIndexError(" in source.read_text(), *said[:2]))
        wheel.unlink()
    assert found == [(False, "cython", "False"), (True, "cython", "True")]
