"""The documentation: its code runs, its links resolve, and it names what there is.

Every ``python`` block of README.md and docs/*.md runs. Blocks are independent of each
other unless a comment in the line above says otherwise:

    <!-- continues -->    goes on in the namespace of the block before it
    <!-- not run -->      is only looked at by readers

Lines that begin with ``#>`` say what the code above them prints; if a block has any,
all of its output is compared. Blocks that import torch or Pillow are skipped without
them.
"""

from __future__ import annotations

import ast
import contextlib
import inspect
import io
import re
import sys
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import dataloader
from dataloader import DataLoader

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
LANGUAGES = {"python", "bash", "diff", "text"}
CONTINUES, NOT_RUN = "<!-- continues -->", "<!-- not run -->"
OPTIONAL = ("torch", "PIL")


@dataclass(frozen=True)
class Block:
    """A fenced block of a page.

    Attributes:
        page: where it is from.
        line: number of its first line of code, from 1.
        language: what stands behind the opening fence.
        marker: the comment in the line above, or nothing.
        code: its text.
    """

    page: str
    line: int
    language: str
    marker: str
    code: str


def find_blocks(page: str, text: str) -> Iterator[Block]:
    """Yield the fenced blocks of a page."""
    lines = text.splitlines()
    numbered = iter(enumerate(lines, 1))
    for number, line in numbered:
        if line.lstrip().startswith("```"):
            above = lines[number - 2].strip() if number > 1 else ""
            marker = above if above.startswith("<!--") else ""
            code = _until_fence(page, number, numbered)
            yield Block(page, number + 1, line.strip()[3:], marker, code)


def _until_fence(page: str, opened: int, numbered: Iterator[tuple[int, str]]) -> str:
    code: list[str] = []
    for _, line in numbered:
        if line.strip() == "```":
            return "\n".join(code) + "\n"
        code.append(line)
    raise AssertionError(f"{page}:{opened}: the block is never closed")


def chains(blocks: Iterator[Block]) -> list[list[Block]]:
    """Return the blocks that run, those that share a namespace together."""
    found: list[list[Block]] = []
    for block in blocks:
        if block.language != "python" or block.marker == NOT_RUN:
            continue
        if block.marker == CONTINUES:
            found[-1].append(block)
        else:
            found.append([block])
    return found


def run(chain: list[Block]) -> None:
    """Run blocks in one namespace, that of a script: its classes can be pickled."""
    script = ModuleType("__main__")
    outer, sys.modules["__main__"] = sys.modules["__main__"], script
    try:
        for block in chain:
            _run_block(block, vars(script))
    finally:
        sys.modules["__main__"] = outer
        # Emptied, since a loader in a namespace of functions is in a cycle with it.
        vars(script).clear()


def _run_block(block: Block, namespace: dict[str, Any]) -> None:
    # Padded, so that a traceback shows the page's own line.
    padded = "\n" * (block.line - 1) + block.code
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(padded, block.page, "exec"), namespace)
    expected = re.findall(r"^#> ?(.*)$", block.code, re.MULTILINE)
    if expected:
        lines = [line.rstrip() for line in printed.getvalue().splitlines()]
        assert lines == expected, f"{block.page}:{block.line} prints otherwise"


def imported(code: str) -> set[str]:
    """Return the top-level names of the modules that code imports."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Import):
            names.update(alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module.partition(".")[0])
    return names


def _relative(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


BLOCKS = [
    block
    for page in PAGES
    for block in find_blocks(_relative(page), page.read_text("utf-8"))
]
CHAINS = chains(iter(BLOCKS))


# Files that workers opened are closed with the workers' datasets, by the garbage
# collector if it comes first.
@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")
@pytest.mark.parametrize(
    "chain", CHAINS, ids=[f"{chain[0].page}:{chain[0].line}" for chain in CHAINS]
)
def test_code_blocks_run(
    chain: list[Block], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for block in chain:
        for name in imported(block.code).intersection(OPTIONAL):
            pytest.importorskip(name)
    monkeypatch.chdir(tmp_path)
    run(chain)


def test_each_page_has_code_that_runs() -> None:
    with_code = {chain[0].page for chain in CHAINS}
    assert {"README.md", "docs/quickstart.md", "docs/thread-safety.md"} <= with_code
    assert "docs/migration.md" in with_code


def test_blocks_name_a_known_language() -> None:
    # A python block under another name would never run.
    assert [b for b in BLOCKS if b.language not in LANGUAGES] == []


def test_comments_above_blocks_are_known_markers() -> None:
    assert [b for b in BLOCKS if b.marker not in ("", CONTINUES, NOT_RUN)] == []


PAGE = """
```python
x = 1
print(x)
#> 1
```
<!-- continues -->
```python
print(x + 1)
#> {result}
```
<!-- not run -->
```python
raise SystemExit
```
"""


def test_a_block_runs_in_the_namespace_that_it_continues() -> None:
    (chain,) = chains(find_blocks("page", PAGE.format(result=2)))
    run(chain)
    assert [block.line for block in chain] == [3, 9]


def test_output_that_differs_fails() -> None:
    (chain,) = chains(find_blocks("page", PAGE.format(result=3)))
    with pytest.raises(AssertionError, match="page:9 prints otherwise"):
        run(chain)


def test_an_exception_shows_the_line_of_the_page() -> None:
    (chain,) = chains(find_blocks("page", "text\n```python\n\n1 / 0\n```\n"))
    with pytest.raises(ZeroDivisionError) as caught:
        run(chain)
    frame = traceback.extract_tb(caught.value.__traceback__)[-1]
    assert (frame.filename, frame.lineno) == ("page", 4)


def _without_code(text: str) -> str:
    return re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)


def _anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, made as code hosts make them."""
    headings = re.findall(
        r"^#+ (.*)$", _without_code(page.read_text("utf-8")), re.MULTILINE
    )
    return {re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in headings}


@pytest.mark.parametrize("page", PAGES, ids=_relative)
def test_links_resolve(page: Path) -> None:
    broken = []
    for link in re.findall(r"\]\(([^)]+)\)", _without_code(page.read_text("utf-8"))):
        path, _, anchor = link.partition("#")
        target = (page.parent / path) if path else page
        exists = link.startswith("https://") or target.exists()
        if not exists or (anchor and anchor not in _anchors(target)):
            broken.append(link)
    assert broken == []


def _words(*pages: str) -> set[str]:
    text = "\n".join((ROOT / page).read_text("utf-8") for page in pages)
    return set(re.findall(r"[\w.]+", text))


def test_all_lists_exactly_the_public_names() -> None:
    public = {
        name
        for name, value in vars(dataloader).items()
        if not name.startswith("_")
        and not isinstance(value, ModuleType)
        and name != "annotations"  # of __future__
    }
    assert sorted(public) == sorted(dataloader.__all__)


@pytest.mark.parametrize("name", dataloader.__all__)
def test_public_names_are_explained(name: str) -> None:
    value = getattr(dataloader, name)
    if inspect.isclass(value) or inspect.isroutine(value):
        assert vars(value)["__doc__"] if inspect.isclass(value) else value.__doc__
    assert name in _words(*map(_relative, PAGES))


def test_the_migration_page_has_a_row_for_each_argument() -> None:
    page = (ROOT / "docs/migration.md").read_text("utf-8")
    rows = set(re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE))
    arguments = set(inspect.signature(DataLoader).parameters)
    assert arguments <= rows


def test_the_migration_page_has_a_row_for_each_of_pytorchs_arguments() -> None:
    data = pytest.importorskip("torch.utils.data")
    page = (ROOT / "docs/migration.md").read_text("utf-8")
    rows = set(re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE))
    assert set(inspect.signature(data.DataLoader).parameters) <= rows


def test_how_it_works_names_each_module_and_no_other() -> None:
    page = (ROOT / "docs/how-it-works.md").read_text("utf-8")
    listing = next(b.code for b in find_blocks("", page) if "__init__.py" in b.code)
    package = ROOT / "dataloader"
    present = {
        path.relative_to(package).as_posix()
        for pattern in ("*.py", "*.pyx")
        for path in package.rglob(pattern)
    }
    # The folders' own __init__ go without saying.
    modules = {path for path in present if not path.endswith("/__init__.py")}
    assert modules <= _paths(listing) <= present


def _paths(listing: str) -> set[str]:
    """Return the files of a listing that indents the files of a folder below it."""
    paths = set()
    folder = ""
    for line in listing.splitlines():
        indent, name = re.match(r"( *)(\S*)", line).groups()  # type: ignore[union-attr]
        if name.endswith("/"):
            folder = name if len(indent) == 2 else folder
        elif name.endswith((".py", ".pyx")):
            paths.add((folder if len(indent) == 4 else "") + name)
    return paths
