"""The map of the code: which part may use which, so that data flows one way."""

import ast
import re
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path
from typing import NamedTuple

from queueproof.guarantees.catalogue import CATALOGUE, FAMILIES
from queueproof.queues.ids import IDS
from tests.fix_places import ROOT, TEMPLATES

PACKAGE = ROOT / "harness" / "queueproof"

FLOORS = (
    {"errors", "ending", "machine"},
    {"waits", "schedule"},
    {"postgres", "wire"},
    {"queues"},
    {"history", "bench", "__init__"},
    {"judge"},
    {"run"},
    {"space"},
    {"guarantees", "search"},
    {"probes"},
    {"report"},
    {"examine"},
    {"advice", "cluster", "doctor", "explain", "library", "testing"},
    {"cli", "pytest_plugin"},
    {"__main__"},
)
"""Folders and single modules, the lowest first: each uses what is below it, and itself."""

BACK = {
    ("queueproof", module): "the package's name offers, late, what stands on top of it"
    for module in ("queueproof.library", "queueproof.report.card")
}
"""Imports that run back, from a module to a module, each with its reason."""

PUBLIC = ("library", "pytest_plugin", "queues.client", "queues.model", "report.card", "testing")
"""Modules that users call, and docs/reference shows; inside, a name and a type often say it all."""


class Import(NamedTuple):
    """One module uses another."""

    by: str
    of: str


def module_of(path: Path, root: Path = ROOT / "harness") -> str:
    """The name by which a file is imported."""
    return ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__")


def tree(path: Path) -> ast.Module:
    """A file as Python reads it."""
    return ast.parse(path.read_text(encoding="utf-8"))


# What `queueproof init` writes is nothing of ours.
FILES = [p for p in sorted((ROOT / "harness").rglob("*.py")) if TEMPLATES not in p.parents]
TREES = {module_of(path): tree(path) for path in FILES}
PARTS = {name: tree for name, tree in TREES.items() if name.partition(".")[0] == "queueproof"}


def imports(by: str, tree: ast.Module) -> Iterator[Import]:
    """Every import of a module, wherever it stands: in a function, or for types only."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (Import(by, name.name) for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0 or by not in TREES, f"{by}: write the whole name"
            for name in node.names:
                module = f"{node.module}.{name.name}"
                yield Import(by, module if module in TREES else str(node.module))


LIBRARY = [found for name, tree in PARTS.items() for found in imports(name, tree)]
OWN = [found for found in LIBRARY if found.of.partition(".")[0] == "queueproof"]


def part(module: str) -> str:
    """The folder of a module, or the module itself where it stands in none."""
    _, _, rest = module.partition(".")
    return rest.partition(".")[0] or "__init__"


def floor(module: str) -> int:
    """How high the part of a module stands."""
    return next(n for n, parts in enumerate(FLOORS) if part(module) in parts)


def test_every_part_has_its_place_and_imports_never_run_back() -> None:
    """Each part stands once in the list and uses those below it; modules stand in a line, too."""
    # What is excepted is needed.
    listed = [one for parts in FLOORS for one in parts]
    assert sorted(listed) == sorted({part(name) for name in PARTS})
    back = {
        (found.by, found.of)
        for found in OWN
        if part(found.by) != part(found.of) and floor(found.by) <= floor(found.of)
    }
    assert back == BACK.keys()
    line = TopologicalSorter[str]()
    for found in OWN:
        if found.by != found.of:
            line.add(found.by, found.of)
    line.prepare()  # which fails where they stand in a circle


def test_nothing_installed_uses_the_workshop() -> None:
    """The wheel lacks it: neither the library nor the scenarios or strategies import it."""
    beside = [
        found
        for folder in ("scenarios", "strategies")
        for path in (ROOT / folder).rglob("*.py")
        if "node_modules" not in path.parts
        for found in imports(module_of(path, ROOT), tree(path))
    ]
    assert beside
    assert [f for f in [*LIBRARY, *beside] if f.of.partition(".")[0] == "workshop"] == []


def test_every_folder_is_installed_and_says_what_is_in_it() -> None:
    """Each package is in the wheel's list, and its docstring begins with one whole sentence."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    folders = {module_of(path.parent) for path in FILES if PACKAGE in path.parents}
    assert folders <= set(settings["tool"]["setuptools"]["packages"])
    for folder in folders:
        told = ast.get_docstring(TREES[folder]) or ""
        assert told.partition("\n")[0].endswith("."), folder


class Function(NamedTuple):
    """A public function or method, and what its class takes over from."""

    name: str
    node: ast.FunctionDef | ast.AsyncFunctionDef
    bases: tuple[str, ...] = ()


def is_told(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """True when a docstring says what each of several parameters is, and what is raised."""
    # What nobody reads is no parameter, and what is passed on is not raised here.
    given = [node.arg for node in ast.walk(function.args) if isinstance(node, ast.arg)]
    names = [name for name in given if name not in {"self", "cls"} and name[0] != "_"]
    errors = [node.exc for node in ast.walk(function) if isinstance(node, ast.Raise)]
    called = [error.func if isinstance(error, ast.Call) else error for error in errors]
    raises = any(isinstance(one, ast.Name) and one.id[0].isupper() for one in called)
    doc = (ast.get_docstring(function) or "").replace("*", "")
    told = all(f"\n    {name}: " in doc for name in names) and ("Raises:" in doc or not raises)
    return told or len(names) <= 1


def functions(body: list[ast.stmt], owner: str = "", *bases: str) -> Iterator[Function]:
    """The public functions of a module or a class."""
    for node in body:
        if isinstance(node, ast.ClassDef) and node.name[0] != "_":
            named = [base.id for base in node.bases if isinstance(base, ast.Name)]
            yield from functions(node.body, f"{owner}{node.name}.", *named)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name[0] != "_":
            yield Function(owner + node.name, node, bases)


def test_parameters_and_errors_are_told() -> None:
    """A public function with several parameters says what each is, and what it raises itself."""
    # What a base of ours tells, or pytest of its hooks, is not told again.
    everywhere = {name: list(functions(TREES[f"queueproof.{name}"].body)) for name in PUBLIC}
    told = {function.name for found in everywhere.values() for function in found}
    lacking = [
        f"{module}: {one.name}"
        for module, found in everywhere.items()
        for one in found
        if not is_told(one.node)
        and not any(f"{base}.{one.node.name}" in told for base in one.bases)
        and not one.node.name.startswith("pytest_")
    ]
    assert lacking == []


def test_the_catalogue_has_a_guarantee_for_each_id() -> None:
    """One for each id of the list below it, with whole sentences on how it breaks and is kept."""
    assert tuple(CATALOGUE) == IDS
    assert sorted(one.id for family in FAMILIES for one in family.GUARANTEES) == sorted(IDS)
    for one in CATALOGUE.values():
        assert one.wild.endswith("."), one.id
        assert one.safe.endswith("."), one.id


def test_a_name_means_one_class() -> None:
    """Whoever reads a class's name need not ask which of two it is."""
    places = defaultdict(list)
    for module, tree in PARTS.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(f"{module}:{node.lineno}")
    assert {name: found for name, found in places.items() if len(found) > 1} == {}


def test_every_rule_that_is_named_is_written_down() -> None:
    """`rule 21` in the code is one of those that users can read, in their order."""
    text = (ROOT / "strategies" / "RULES.md").read_text(encoding="utf-8")
    rules = [int(number) for number in re.findall(r"^(\d+)\. ", text, re.MULTILINE)]
    assert rules == list(range(1, len(rules) + 1))
    sources = " ".join(path.read_text(encoding="utf-8") for path in FILES)
    named = {int(number) for number in re.findall(r"\brule (\d+)", sources)}
    assert named
    assert named <= set(rules)


def test_no_guarantee_is_a_special_case_elsewhere() -> None:
    """A fact of one guarantee alone stands on its record; its id is no literal elsewhere."""
    ids = {one for one in IDS if "-" in one}  # those of one word are keys of a header as well
    found = [
        f"{module}: {node.value}"
        for module, tree in PARTS.items()
        # The judge says what broke, and a safe form what it may mend.
        if part(module) not in {"guarantees", "judge", "advice"}
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value in ids
    ]
    assert [one for one in found if not one.startswith("queueproof.queues.ids: ")] == []
