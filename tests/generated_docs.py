"""What is made from the code: `python -m tests.generated_docs --write`.

crds/                       the CustomResourceDefinition, with and without CEL; the chart links to it
charts/                     the host gate as CEL
docs/reference/             the API and the command line
docs/architecture.md        the chain of policies, from `core/attempt.py`
docs/design/membership.md   the changes of members, from `core/membership/changes.py`
docs/adr/README.md          the list of decision records, from their titles
docs/reference/conditions.md   which function sets which condition with which reason, read from the core's source
"""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from tests import references

import tfgpujob.core
from tfgpujob.api import JobStatus, admission_policy, crd
from tfgpujob.api.structural import structural
from tfgpujob.core import attempt
from tfgpujob.core.membership.changes import ADJUST, RESIZE
from tfgpujob.core.observed.members import Kind
from tfgpujob.names import Condition, Reason

ROOT = Path(__file__).resolve().parents[1]
CORE = Path(tfgpujob.core.__path__[0])
ARCHITECTURE, CONDITIONS = "docs/architecture.md", "docs/reference/conditions.md"
MEMBERSHIP = "docs/design/membership.md"
DECISIONS = "docs/adr/README.md"
CHAIN = "<!-- the chain of policies, from `make crds` -->\n"
CHANGES = "<!-- the changes of members, from `make crds` -->\n"
END = "<!-- end -->\n"

HEAD = """# Conditions and reasons

Which function of `operator/src/tfgpujob/core` sets which condition for which reason. `make crds` reads it from there.

Two things are not repeated: the reason of a start that was refused or took too long stands on Running as well
(`policies/start.release`), and under startPolicy Fail on Failed.

| condition | reason | decided by |
|---|---|---|
"""


ABOUT_DECISIONS = """# Decisions

Why things are as they are, one page each, in the order in which they were decided. Each says what else was considered.
Decisions 25, 31, 36, 37, 41, 42 and 47 are one page now: [membership](../design/membership.md).

"""


class _Dumper(yaml.SafeDumper):
    """Without anchors: each role has its schema in full."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _yaml(obj: dict[str, Any]) -> str:
    header = "# Generated from operator/src/tfgpujob/api by `make crds`. Change the models, not this file.\n"
    return header + yaml.dump(obj, Dumper=_Dumper, sort_keys=False, width=110, allow_unicode=True)


def _with_table(page: str, begin: str, table: str) -> str:
    before, _, rest = (ROOT / page).read_text().partition(begin)
    return f"{before}{begin}{table}{END}{rest.partition(END)[2]}"


def changes_of_members() -> str:
    """A row for each change, in the order in which they are tried."""
    rows = ["| | change | of | when | then |", "|---|---|---|---|---|"]
    for link, changes in (("running attempt", ADJUST), ("another number", RESIZE)):
        for row in changes:
            name = row.decide.__name__.removeprefix("_").replace("_", " ")
            kinds = "any" if {*row.kinds} == {*Kind} else ", ".join(row.kinds)
            rows.append(f"| {link} | {name} | {kinds} | {row.when} | {row.then} |")
    return "\n".join(rows) + "\n"


def decisions() -> str:
    """A line for each decision record, in the order of their numbers."""
    records = sorted((ROOT / DECISIONS).parent.glob("[0-9]*.md"))
    return "".join(f"- [{r.read_text().partition(chr(10))[0].lstrip('# ')}]({r.name})\n" for r in records)


def chain() -> str:
    """A row for each policy in `_CHAIN`, in its order, with the first sentence of its docstring."""
    rows = ["| policy | file | what it decides |", "|---|---|---|"]
    for policy in attempt._CHAIN:
        file = policy.__module__.removeprefix("tfgpujob.").replace(".", "/")
        text = " ".join((inspect.getdoc(policy) or "").split()).removeprefix("Policy: ").rstrip(".")
        rows.append(f"| {policy.__name__.replace('_', ' ')} | `{file}.py` | {text} |")
    return "\n".join(rows) + "\n"


def conditions() -> str:
    """A row for each pair of condition and reason, in the order of `names.py`."""
    found: dict[tuple[str, str], set[str]] = {}
    for setter in Source(CORE).setters():
        found.setdefault((setter.condition, setter.reason), set()).add(f"`{setter.function}`")
    order = [(c.name, r.name) for c in Condition for r in Reason if (c.name, r.name) in found]
    return "".join(f"| {Condition[c]} | {Reason[r]} | {', '.join(sorted(found[c, r]))} |\n" for c, r in order)


@dataclass(frozen=True)
class Setter:
    condition: str
    reason: str
    function: str


@dataclass(frozen=True)
class Function:
    name: str
    """As the table shows it."""
    node: ast.FunctionDef

    def parameters(self) -> list[str]:
        return [argument.arg for argument in (*self.node.args.args, *self.node.args.kwonlyargs)]


Pair = tuple[ast.expr, ast.expr]


class Source:
    """The core's functions. Values are followed through variables, parameters and returns, never through fields."""

    def __init__(self, root: Path) -> None:
        self.functions: list[Function] = []
        for path in sorted(root.rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.FunctionDef):
                    self.functions.append(Function(f"{path.relative_to(root).with_suffix('')}.{node.name}", node))

    def setters(self) -> Iterator[Setter]:
        for function in self.functions:
            for call in _calls(function.node):
                if isinstance(call.func, ast.Attribute) and call.func.attr == "set":
                    for condition in self.values(call.args[0], function, Condition):
                        yield from self.reasons(call, condition, function)
                # These are values: what matters is not who puts them into the status, but who made them.
                elif _name(call.func) == "Problem":
                    for condition in self.values(call.args[0], function, Condition):
                        for reason in self.values(call.args[1], function, Reason):
                            yield Setter(condition, reason, function.name)
                elif _name(call.func) == "Exceeded":
                    for reason in self.values(call.args[0], function, Reason):
                        yield Setter(Condition.FAILED.name, reason, function.name)

    def reasons(self, call: ast.Call, condition: str, function: Function) -> Iterator[Setter]:
        given = call.args[-1] if isinstance(call.args[-1], ast.Starred) else call.args[2]
        if isinstance(given, ast.Starred):
            for reason, source in self.returned(given.value):
                yield Setter(condition, reason, source)
        elif isinstance(given, ast.Name) and given.id in function.parameters():
            for reason, source in self.passed(function, given.id):
                yield Setter(condition, reason, source)
        else:
            for reason in self.values(given, function, Reason):
                yield Setter(condition, reason, function.name)

    def values(self, node: ast.expr, function: Function, kind: type[Condition] | type[Reason]) -> set[str]:
        """The names of the members that the expression may have."""
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == kind.__name__:
            return {node.attr}
        if isinstance(node, ast.IfExp):
            return self.values(node.body, function, kind) | self.values(node.orelse, function, kind)
        if isinstance(node, ast.Tuple):
            return {value for element in node.elts for value in self.values(element, function, kind)}
        if isinstance(node, ast.Name):
            if node.id in function.parameters():
                return {value for value, _ in self.passed(function, node.id, kind)}
            sources = _assigned(function.node, node.id)
            return {value for source in sources for value in self.values(source, function, kind)}
        return set()

    def passed(
        self, function: Function, parameter: str, kind: type[Condition] | type[Reason] = Reason
    ) -> Iterator[tuple[str, str]]:
        """What callers give for a parameter, and who they are."""
        position = function.parameters().index(parameter)
        for caller in self.functions:
            for call in _calls(caller.node):
                if _name(call.func) != function.node.name or len(call.args) <= position:
                    continue
                given = call.args[position]
                if isinstance(given, ast.Starred):
                    yield from self.returned(given.value)
                elif isinstance(given, ast.Name) and given.id in caller.parameters():
                    yield from self.passed(caller, given.id, kind)
                else:
                    yield from ((value, caller.name) for value in self.values(given, caller, kind))

    def returned(self, node: ast.expr) -> Iterator[tuple[str, str]]:
        """The reasons in the tuples that a called function returns."""
        called = _name(node.func) if isinstance(node, ast.Call) else ""
        for function in self.functions:
            if function.node.name == called:
                for statement in ast.walk(function.node):
                    if isinstance(statement, ast.Return) and isinstance(statement.value, ast.Tuple):
                        for reason in self.values(statement.value.elts[0], function, Reason):
                            yield reason, function.name


@cache
def _calls(node: ast.AST) -> list[ast.Call]:
    return [call for call in ast.walk(node) if isinstance(call, ast.Call)]


def _name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _assigned(node: ast.AST, name: str) -> Iterator[ast.expr]:
    for statement in ast.walk(node):
        if isinstance(statement, ast.Assign) and any(_name(target) == name for target in statement.targets):
            yield statement.value
        elif isinstance(statement, ast.For) and _name(statement.target) == name:
            yield statement.iter


FILES: dict[str, Callable[[], str]] = {
    "crds/tfgpujobs.yaml": lambda: _yaml(crd.build(cel=True)),
    "crds/tfgpujobs-no-cel.yaml": lambda: _yaml(crd.build(cel=False)),
    "charts/tfgpujob/files/admission-policy.yaml": lambda: _yaml(admission_policy.policy()),
    "docs/reference/api.md": lambda: references.of_api(
        crd.ABOUT, crd.spec_schema(), structural(JobStatus, defaults=False)
    ),
    "docs/reference/cli.md": references.of_command_line,
    ARCHITECTURE: lambda: _with_table(ARCHITECTURE, CHAIN, chain()),
    MEMBERSHIP: lambda: _with_table(MEMBERSHIP, CHANGES, changes_of_members()),
    CONDITIONS: lambda: f"{HEAD}{conditions()}",
    DECISIONS: lambda: f"{ABOUT_DECISIONS}{decisions()}",
}
"""What is generated, by path below the repository's root."""


def main(arguments: list[str]) -> int:
    if arguments != ["--write"]:
        sys.stderr.write("usage: python -m tests.generated_docs --write\n")
        return 2
    for path, text in FILES.items():
        (ROOT / path).write_text(text())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
