"""How much one has to know to change this: figures of the source that are to fall, `make figures`.

They say where the structure is hard to live in. Compared from commit to commit, so the patterns here stay as they are.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any

from tests.unit.core import make
from tests.unit.core.simulator import World

import tfgpujob
from tfgpujob.core.observed.snapshot import Kind

ROOT = Path(__file__).resolve().parents[1]
OPERATOR, TRAINER = Path("operator/src/tfgpujob"), Path("trainer_image/src/tfgpujob_trainer")
CONTRACT = Path("trainer_image/src/tfgpujob_contract")

IN_STATUS = frozenset(("resize", "limit", "absent", "spares", "sharesParts"))
"""Keys of status.plan that say which workers are in the gang."""
OF_PLAN = IN_STATUS | {"shares_parts", "joining", "growing", "doubtful", "required", "independent_workers"}
"""What a Plan says of them; counted where it is read of something that is called a plan."""
ELSEWHERE = frozenset(("leader_answer", "elastic_policy", "workers_come_and_go", "shares_parts", "spares"))
"""What else decides who is in the gang; counted wherever it is read."""
MODULES = frozenset(
    ("come_and_go", "elastic_policy", "resize", "resize_in_place", "trains_without", "lost_worker", "leader")
)
"""Files that decide it; counted where they are imported."""
IDIOMS = re.compile(
    r"\b(whoever|nobody|somebody|so many|anew|is told|tells?|goes on|go on|comes? and goes?|takes? the place of"
    r"|is through|left so|in one look)\b|^Of [a-z]|\. Of [a-z]",
    re.IGNORECASE | re.MULTILINE,
)
"""Turns of speech that the field does not use."""


def figures() -> dict[str, int]:
    modules = [path for package in (OPERATOR, TRAINER, CONTRACT) for path in _modules(ROOT / package)]
    texts = [text for path in modules for text in _docstrings(_tree(path))]
    return {
        "chain_links": _length(ROOT / OPERATOR / "core/attempt.py", "_CHAIN"),
        "membership_files": len([*membership(ROOT / OPERATOR)]),
        "files_after_a_loss": len(after_a_loss()),
        "takeover_imports": len(_imports(_tree(ROOT / TRAINER / "script/takeover.py"), TRAINER.name)),
        "tests_that_import_tests": len([*tests_that_import_tests(ROOT / "tests")]),
        "docstrings": len(texts),
        "docstrings_with_idioms": sum(bool(IDIOMS.search(text)) for text in texts),
        "product_lines": sum(len(path.read_text().splitlines()) for path in modules),
        "test_lines": sum(len(path.read_text().splitlines()) for path in _modules(ROOT / "tests")),
    }


def membership(package: Path) -> Iterator[Path]:
    """The files that read who is in the gang."""
    for path in _modules(package):
        if any(_reads_membership(node, path) for node in ast.walk(_tree(path))):
            yield path.relative_to(package)


def _reads_membership(node: ast.AST, path: Path) -> bool:
    if isinstance(node, ast.Attribute):
        of = ast.unparse(node.value).split(".")[-1]
        plan = of == "plan" or (of == "self" and path.name == "plan.py")
        return node.attr in ELSEWHERE or (plan and node.attr in OF_PLAN)
    if isinstance(node, ast.Subscript):
        return _is_key(node.slice) and "plan" in ast.unparse(node.value)
    if isinstance(node, ast.Compare):
        return _is_key(node.left) and any("plan" in ast.unparse(other) for other in node.comparators)
    if isinstance(node, ast.ImportFrom) and node.module:
        named = {alias.name for alias in node.names} if "policies" in node.module else set[str]()
        return bool({*named, node.module.split(".")[-1]} & MODULES)
    return False


def _is_key(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value in IN_STATUS


def after_a_loss() -> set[str]:
    """The operator's files that one opens to see what follows when one of four elastic workers is lost and no node is
    found: those with a function that runs for the first time then."""
    elastic = {"recovery": "InPlace", "elasticPolicy": {"shrinkAfterSeconds": 30, "growAfterSeconds": 60}}
    world = World(make.job(worker={"replicas": 4, "minReplicas": 2, "maxReplicas": 8}, run=elastic))

    def begin() -> None:
        world.settle()
        world.ready()
        world.advance(minutes=5)

    def lose() -> None:
        world.remove(Kind.POD, "train-worker-2")
        world.waits("train-worker-2", "Unschedulable", "0/3 nodes are available: 3 Insufficient nvidia.com/gpu.")
        world.leader_says(4, 4, without=frozenset({2}))
        world.advance(minutes=5)

    before, after = _called(begin), _called(lose)
    assert (world.phase, world.status["plan"]["absent"]) == ("Running", [2]), "the others train on"
    return {file for file, _ in after - before}


def _called(story: Callable[[], None]) -> set[tuple[str, int]]:
    """The operator's functions that are called in it: each one's file and first line."""
    package, found = f"{Path(tfgpujob.__file__).parent}/", set[tuple[str, int]]()

    def profile(frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(package):
            found.add((code.co_filename.removeprefix(package), code.co_firstlineno))

    sys.setprofile(profile)
    try:
        story()
    finally:
        sys.setprofile(None)
    return found


def tests_that_import_tests(folder: Path) -> Iterator[str]:
    """Each import of a module of tests by another one."""
    for path in _modules(folder):
        for module in sorted(_imports(_tree(path), "tests")):
            if module.split(".")[-1].startswith("test_"):
                yield f"{path.relative_to(folder)}: {module}"


@cache
def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def _modules(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.py"))


def _imports(tree: ast.Module, package: str) -> set[str]:
    found = {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    return {module for module in found if module.split(".")[0] == package}


def _length(path: Path, name: str) -> int:
    """Length of the tuple of that name."""
    for node in ast.walk(_tree(path)):
        match node:
            case ast.Assign([ast.Name(found)], ast.Tuple(parts)) | ast.AnnAssign(ast.Name(found), _, ast.Tuple(parts)):
                if found == name:
                    return len(parts)
    raise LookupError(f"{path} has no tuple {name}")


def _docstrings(tree: ast.Module) -> Iterator[str]:
    """Docstrings of modules, classes and functions, and the texts below fields and constants."""
    for node in ast.walk(tree):
        for statement in getattr(node, "body", ()) if not isinstance(node, ast.Lambda | ast.IfExp) else ():
            match statement:
                case ast.Expr(ast.Constant(str(text))):
                    yield text


def main() -> None:
    parser = argparse.ArgumentParser(prog="figures", description=__doc__)
    parser.add_argument("--list", action="store_true", help="the files that are counted, too")
    options = parser.parse_args()
    if options.list:
        listed = {
            "read membership": [str(path) for path in membership(ROOT / OPERATOR)],
            "after a loss": sorted(after_a_loss()),
            "tests that import tests": [*tests_that_import_tests(ROOT / "tests")],
        }
        print(*(f"{what}: {one}" for what, each in listed.items() for one in each), sep="\n", file=sys.stderr)
    print(json.dumps({"name": "figures", "ok": True, **figures()}))


if __name__ == "__main__":
    main()
