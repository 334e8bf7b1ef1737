"""Imports run one way, and a few modules alone may use certain things: read from the source."""

import ast
import re
from pathlib import Path

import pytest

import async_dqn

PACKAGE = Path(async_dqn.__file__).parent

# A file imports from its own floor and those above it in the list that docs/concepts.md prints.
FLOORS = re.findall(r"^([a-z]+)/ ", (PACKAGE.parent / "docs" / "concepts.md").read_text(), re.MULTILINE)
SOURCES = {
    ".".join(path.relative_to(PACKAGE).with_suffix("").parts): ast.parse(path.read_text(), str(path))
    for path in sorted(PACKAGE.rglob("*.py"))
    if path != PACKAGE / "__init__.py"
}


def imported(tree):
    """Dotted names of everything imported, at the top or inside functions: `from a import b` gives a.b."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: relative imports are not seen by this test"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def own_imports(module):
    """Modules of the package that `module` imports, as `agents.dqn` or `config`."""
    for name in imported(SOURCES[module]):
        if name.split(".")[0] == "async_dqn":
            yield name.removeprefix("async_dqn").lstrip(".")


def floor(module):
    top = module.split(".")[0]
    return FLOORS.index(top) if top in FLOORS else len(FLOORS)


def attributes(tree):
    """Dotted names that the code uses, as tf.compat.v1."""
    return {ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}


def uses(module, what):
    names = [*attributes(SOURCES[module]), *imported(SOURCES[module])]
    return any(f".{what}." in f".{name}." for name in names)


def test_the_source_and_the_list_of_floors_are_found():
    assert {"__main__", "agents.dqn", "cluster.remote_store", "roles.worker", "base.types"} <= SOURCES.keys()
    assert {path.name for path in PACKAGE.iterdir() if path.is_dir() and path.name != "__pycache__"} == set(FLOORS)


@pytest.mark.parametrize("module", SOURCES)
def test_no_module_imports_from_a_floor_below_its_own(module):
    for other in own_imports(module):
        assert floor(other) <= floor(module), f"{module} imports {other}"


@pytest.mark.parametrize("module", [name for name in SOURCES if name.startswith(("base.", "settings."))])
def test_the_first_floors_need_no_tensorflow(module):
    assert not uses(module, "tensorflow")


def test_only_the_cluster_and_devices_use_the_graph_mode_of_tensorflow_1():
    users = {module for module in SOURCES if uses(module, "compat.v1")}
    assert {module for module in users if not module.startswith("cluster")} <= {"system.devices"}
    assert "cluster.remote_store" in users  # else this test looks for the wrong thing


def test_only_the_command_line_reads_flags():
    readers = {module for module in SOURCES if uses(module, "absl")}
    assert "cli.arguments" in readers
    assert all(module.startswith("cli.") for module in readers)


@pytest.mark.parametrize("module", [name for name in SOURCES if not name.startswith("cli")])
def test_no_global_random_state(module):
    allowed = {"Generator", "SeedSequence", "default_rng"}
    for name in attributes(SOURCES[module]):
        if name.startswith("np.random."):
            assert name.split(".")[2] in allowed, f"{module} uses {name}"
    assert not any(name.split(".")[0] == "random" for name in imported(SOURCES[module]))


def test_there_is_no_circle():
    graph = {module: set(own_imports(module)) for module in SOURCES}
    names = {module: {other for other in SOURCES for found in graph[module] if _is(other, found)} for module in SOURCES}
    while leaves := {module for module, others in names.items() if not others & names.keys() - {module}}:
        names = {module: others for module, others in names.items() if module not in leaves}
    assert not names, f"these import each other: {sorted(names)}"


def _is(module, found):
    """Whether `found` is the module, or a name in it."""
    return found == module or found.rpartition(".")[0] == module


@pytest.mark.parametrize("module", SOURCES)
def test_no_function_is_converted_by_autograph(module):
    """It would read the source again at run time, and leave files in /tmp where a process is killed."""
    for node in ast.walk(SOURCES[module]):
        names = [ast.unparse(node.func)] if isinstance(node, ast.Call) else []
        if isinstance(node, ast.FunctionDef):
            names += [ast.unparse(decorator) for decorator in node.decorator_list]
        if "tf.function" in names:
            assert isinstance(node, ast.Call), f"line {node.lineno}: tf.function without autograph=False"
            assert "autograph=False" in map(ast.unparse, node.keywords), f"line {node.lineno}"
