"""The shape of the project: which way imports point, what the package lists say, what an import costs."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

import callboard

ROOT = Path(callboard.__file__).parent
FOLDERS = ("actors", "commands", "kernels", "lang", "models")

# who may import whom, inside the package: commands -> lang -> actors -> models -> kernels
BELOW = {
    "commands": {"commands", "lang", "actors", "models"},
    "lang": {"lang", "actors"},
    "actors": {"actors", "models", "kernels"},
    "models": {"models", "kernels"},
    "kernels": {"kernels"},
}
# the training scripts of the model that ships are tools, not runtime
TOOLS = ("models/embedded/",)


def modules() -> Iterator[tuple[Path, ast.Module]]:
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            yield path.relative_to(ROOT), ast.parse(path.read_text(encoding="utf-8"))


def imported(path: Path, tree: ast.Module) -> Iterator[str]:
    """Give the dotted names a module imports; relative ones resolved from the package's root."""
    package = ("callboard", *path.parent.parts)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level:
            base = package[: len(package) - node.level + 1]
            stem = ".".join((*base, *((node.module or "").split(".") if node.module else ())))
            yield from (f"{stem}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""


MODULES = list(modules())
NAMES = [str(path) for path, _ in MODULES]


@pytest.mark.parametrize(("path", "tree"), MODULES, ids=NAMES)
def test_imports_point_down(path: Path, tree: ast.Module) -> None:
    allowed = BELOW[path.parts[0]]
    ours = [name.split(".") for name in imported(path, tree) if name.split(".")[0] == "callboard"]
    wrong = [".".join(name) for name in ours if len(name) > 1 and name[1] in FOLDERS and name[1] not in allowed]
    assert not wrong


def test_the_actor_library_knows_nothing_of_ours() -> None:
    for path, tree in MODULES:
        if path.parts[:2] == ("actors", "core"):
            ours = [name for name in imported(path, tree) if name.startswith("callboard.")]
            assert [name for name in ours if not name.startswith("callboard.actors.core")] == [], path


@pytest.mark.parametrize("room", ["actors/scheduler", "actors/core", "lang"])
def test_these_rooms_import_no_torch(room: str) -> None:
    for path, tree in MODULES:
        if str(path).startswith(room):
            assert not [name for name in imported(path, tree) if name.split(".")[0] == "torch"], path


@pytest.mark.parametrize(("path", "tree"), MODULES, ids=NAMES)
def test_every_public_module_says_what_is_public(path: Path, tree: ast.Module) -> None:
    if path.name.startswith("_") or str(path).startswith(TOOLS):
        return
    lists = [
        node
        for node in tree.body
        if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == "__all__" for t in node.targets)
    ]
    assert len(lists) == 1, "a public module has one __all__"
    names = ast.literal_eval(lists[0].value)
    defined = {
        name
        for node in tree.body
        for name in (
            [node.name]
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
            else [t.id for t in node.targets if isinstance(t, ast.Name)]
            if isinstance(node, ast.Assign)
            else [node.target.id]
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
            else [alias.asname or alias.name for alias in node.names]
            if isinstance(node, ast.ImportFrom)
            else []
        )
    }
    assert set(names) <= defined
    assert list(names) == sorted(set(names), key=lambda name: (not name.isupper(), not name[0].isupper(), name))


def test_the_package_list_is_the_folders() -> None:
    listed = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"])
    found = {"callboard"} | {
        ".".join(("callboard", *path.parent.relative_to(ROOT).parts))
        for folder in FOLDERS
        for path in (ROOT / folder).rglob("__init__.py")
    }
    assert listed == found


@pytest.mark.parametrize(
    ("room", "page"), [("actors/worker", "docs/worker.md"), ("kernels/attention", "docs/kernels.md")]
)
def test_a_page_that_gives_an_order_of_reading_names_every_file(room: str, page: str) -> None:
    named = set(re.findall(r"(\w+\.py)`", (ROOT / page).read_text(encoding="utf-8")))
    files = {path.name for path in (ROOT / room).glob("*.py")} - {"__init__.py"}
    assert sorted(files - named) == []


def test_import_is_free_of_heavy_libraries() -> None:
    script = "import sys, callboard; print(sorted(set(sys.modules) & {'torch', 'transformers', 'numpy', 'tokenizers'}))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd="/")
    assert done.stdout.strip() == "[]"


FORBIDDEN = {"pickle", "dill", "cloudpickle", "marshal", "shelve"}


@pytest.mark.parametrize(("path", "tree"), MODULES, ids=NAMES)
def test_nothing_unpickles_or_evaluates(path: Path, tree: ast.Module) -> None:
    assert not {name.split(".")[0] for name in imported(path, tree)} & FORBIDDEN
    calls = [node.func for node in ast.walk(tree) if isinstance(node, ast.Call)]
    assert not [call for call in calls if isinstance(call, ast.Name) and call.id in {"eval", "exec"}]
    assert not [
        call
        for call in calls
        if isinstance(call, ast.Attribute)
        and call.attr == "load"
        and isinstance(call.value, ast.Name)
        and call.value.id == "torch"
    ]
