"""The house: imports between packages go downwards only, and heavy libraries load when they are used."""

from __future__ import annotations

import ast
import functools
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import tokshard
from tokshard.text.tokenizer import fast

ROOT = Path(tokshard.__file__).parent

# From the ground up: a layer may import itself and those before it. Folders in folders are layers too.
LAYERS = [
    "version",
    "dump_tokenizer_identifiers",
    "export_with_transformers",
    "errors",
    "core",
    "storage",
    "dataset",
    "text.corpus",
    "text.tokenizer",
    "text.tokenize",
    "samples.index",
    "samples.blend",
    "ranks",
    "loader",
    "exchange",
    "checks.verify",
    "checks.inspect",
    "checks.trace",
    "checks.diff",
    "checks.products",
    "checks.commands",
    "checks.doctor",
    "cli",
    "__main__",
]
FOLDERS_OF_LAYERS = {"text", "samples", "checks"}

FAST = "tokshard.text.tokenizer.fast"
HEAVY = {"tokenizers", "fastokens", "pyarrow", "numba", "torch", "fsspec", "ray", "tiktoken", "sentencepiece"}


@functools.cache
def modules() -> dict[str, str]:
    """The source of each module, by its path below the root."""
    return {str(path.relative_to(ROOT)): path.read_text() for path in sorted(ROOT.rglob("*.py"))}


def found_in_modules(search: Callable[[str, str], set[str]]) -> dict[str, set[str]]:
    """What is found in the path and the source of each module in which something is found."""
    every = {path: search(path, source) for path, source in modules().items()}
    assert len(every) > 300
    return {path: found for path, found in every.items() if found}


@functools.cache
def nodes_of(source: str) -> list[ast.AST]:
    return list(ast.walk(ast.parse(source)))


def dotted(node: ast.expr) -> str:
    """The name that an expression is, ``"a.b.c"``; empty if it is more than names and points."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and (owner := dotted(node.value)):
        return f"{owner}.{node.attr}"
    return ""


def imports_of(source: str, *, top_level_only: bool = False) -> set[str]:
    """Names of all imported modules; relative imports are refused elsewhere (ruff TID)."""
    every = nodes_of(source)
    nodes = _running_statements(every[0].body) if top_level_only else every
    found = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {f"{node.module}.{alias.name}" for alias in node.names} | {node.module}
    return found


def _running_statements(body: list[ast.stmt]) -> list[ast.stmt]:
    """Statements that run on import: not those under TYPE_CHECKING, not function bodies."""
    found = []
    for node in body:
        if isinstance(node, ast.If) and dotted(node.test) == "TYPE_CHECKING":
            continue
        found.append(node)
        if isinstance(node, ast.If | ast.Try | ast.With):
            found += _running_statements(node.body)
    return found


def upward_imports(layer: str, source: str) -> set[str]:
    allowed = set(LAYERS[: LAYERS.index(layer) + 1])
    names = {name.removeprefix("tokshard.") for name in imports_of(source) if name.startswith("tokshard.")}
    return {layer_of(name.replace(".", "/")) for name in names} & set(LAYERS) - allowed


def layer_of(path: str) -> str:
    first, *others = Path(path).with_suffix("").parts
    return f"{first}.{others[0]}" if first in FOLDERS_OF_LAYERS and others else first


def test_imports_go_downwards():
    layers = {layer_of(path) for path in modules() if not path.endswith("__init__.py")}
    assert layers <= {*LAYERS}, "a module belongs to no layer"
    assert len(layers) > 15

    def upward(path: str, source: str) -> set[str]:
        return set() if path.endswith("__init__.py") else upward_imports(layer_of(path), source)

    assert found_in_modules(upward) == {}


UNORDERED: set[str] = set()
"""Packages whose modules do not import each other in one direction only: none, when the move has ended."""


def packages() -> list[str]:
    return sorted(str(path.parent.relative_to(ROOT)) for path in ROOT.rglob("__init__.py"))


def unit_of(name: str, package: str) -> str | None:
    """The module or sub-package of a package that a dotted name lies in; None if it is outside."""
    prefix = ".".join(["tokshard", *(package.split("/") if package != "." else [])])
    if not name.startswith(f"{prefix}."):
        return None
    unit = name[len(prefix) + 1 :].split(".", maxsplit=1)[0]
    directory = ROOT / package
    return unit if (directory / unit).is_dir() or (directory / f"{unit}.py").is_file() else None


def imports_within(package: str) -> dict[str, set[str]]:
    """Which modules and sub-packages of a package import which others of it, anywhere in their code."""
    graph: dict[str, set[str]] = {}
    for path, source in modules().items():
        if package != "." and not path.startswith(f"{package}/"):
            continue
        unit = Path(path if package == "." else path.removeprefix(f"{package}/")).parts[0].removesuffix(".py")
        if unit != "__init__":
            found = {unit_of(name, package) for name in imports_of(source)}
            graph.setdefault(unit, set()).update(other for other in found if other not in {None, unit})
    return graph


def cycle_of(graph: dict[str, set[str]]) -> list[str]:
    """What is left when everything is taken away that imports nothing of the rest; empty without a cycle."""
    left = dict(graph)
    while free := [unit for unit, others in left.items() if not others & left.keys()]:
        for unit in free:
            del left[unit]
    return sorted(left)


@pytest.mark.parametrize("package", packages())
def test_a_package_has_no_cycle_inside(package: str):
    found = cycle_of(imports_within(package))
    if package in UNORDERED:
        assert found, f"{package} has no cycle any more: take it from the list"
    else:
        assert found == []


def test_a_cycle_is_found():
    assert cycle_of({"a": {"b"}, "b": {"c"}, "c": set()}) == []
    assert cycle_of({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": set()}) == ["a", "b", "c"]
    assert imports_within("dataset")["builder"] >= {"layout"}


def class_names() -> Counter[str]:
    """How often each class name is defined in the source."""
    return Counter(
        node.name
        for source in modules().values()
        for node in nodes_of(source)
        if isinstance(node, ast.ClassDef)
    )


def test_no_class_name_is_defined_twice():
    assert not {name for name, times in class_names().items() if times > 1}


def test_one_module_of_dataset_tells_products_apart():
    def defined(_: str, source: str) -> set[str]:
        names = {node.name.strip("_") for node in nodes_of(source) if isinstance(node, ast.FunctionDef)}
        return names & {"kind_of", "recognize", "is_export", "is_plan"}

    assert found_in_modules(defined) == {"dataset/products.py": {"kind_of", "recognize", "is_export"}}


NAMES_OF_PRODUCTS = {"blend.json", "export.json", "description.txt", "-description.txt"}
"""Not plan.json: work directories have one, and the type of a field of rank manifests names it."""


def test_one_module_of_dataset_names_the_files_of_products():
    def named(_: str, source: str) -> set[str]:
        return {node.value for node in nodes_of(source) if isinstance(node, ast.Constant)} & NAMES_OF_PRODUCTS

    assert found_in_modules(named).keys() == {"dataset/products.py"}


def test_an_upward_import_is_found():
    assert upward_imports("storage", "def f():\n    from tokshard.text.corpus import units\n") == {
        "text.corpus"
    }
    assert upward_imports("text.corpus", "import tokshard.text.tokenize.part\n") == {"text.tokenize"}
    assert upward_imports("text.corpus", "from tokshard.storage import syscalls\n") == set()


def heavy_imports(source: str) -> set[str]:
    return {name.split(".")[0] for name in imports_of(source, top_level_only=True)} & HEAVY


def test_heavy_libraries_are_imported_where_they_are_used():
    assert found_in_modules(lambda _, source: heavy_imports(source)) == {}


def uses_inside_of_fast(path: str, source: str) -> set[str]:
    names = {name for name in imports_of(source) if name == "fastokens" or name.startswith(f"{FAST}.")}
    exported = {f"{FAST}.{name}" for name in fast.__all__}
    return set() if path.startswith("text/tokenizer/fast/") else names - exported


def test_the_fast_encoder_is_used_by_its_interface_only():
    assert found_in_modules(uses_inside_of_fast) == {}
    assert uses_inside_of_fast("text/a.py", f"from {FAST} import metaspace, fast_encoder\n") == {
        f"{FAST}.metaspace"
    }


def test_a_heavy_import_is_found():
    assert heavy_imports("try:\n    import numba.core\nexcept ImportError:\n    pass\n") == {"numba"}
    assert heavy_imports("if TYPE_CHECKING:\n    import numba\ndef f():\n    import torch\n") == set()


def loaded_by(code: str) -> set[str]:
    program = f"import sys\n{code}\nprint('\\n'.join(sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_importing_tokshard_is_light():
    assert not loaded_by("import tokshard") & (HEAVY | {"numpy", "typer", "rich", "orjson"})


def test_the_command_line_starts_light():
    assert not loaded_by("import tokshard.cli.main") & (HEAVY | {"numpy", "orjson", "rich", "xxhash"})


def test_the_list_of_commands_imports_none_of_them():
    code = (
        "import sys\nsys.argv = ['tokshard', '--help']\nfrom tokshard.cli.main import main\n"
        "try:\n    main()\nexcept SystemExit as stop:\n    assert stop.code == 0, stop.code\n"
    )
    loaded = loaded_by(code)
    assert not loaded & (HEAVY | {"numpy", "rich", "tokshard.cli.tokenize", "tokshard.dataset"})


def test_a_wrong_option_fails_before_anything_heavy_is_imported():
    code = (
        "import sys\nsys.argv = ['tokshard', 'tokenize', 'x.jsonl', '--max-errors', '3']\n"
        "from tokshard.cli.main import main\n"
        "try:\n    main()\nexcept SystemExit as stop:\n    assert stop.code == 2, stop.code\n"
    )
    assert not loaded_by(code) & (HEAVY | {"numpy", "orjson"})


def calls_that_write(source: str) -> set[str]:
    """Calls that change the file system, or code execution in disguise."""
    forbidden_attributes = {
        "tofile",
        "memmap",
        "rename",
        "replace",
        "unlink",
        "remove",
        "rmdir",
        "rmtree",
        "makedirs",
        "mkdir",
        "truncate",
        "ftruncate",
        "fsync",
        "write_text",
        "write_bytes",
        "save",
        "savez",
        "copyfileobj",
        "symlink",
        "link",
    }
    found = set()
    for node in nodes_of(source):
        if not isinstance(node, ast.Call):
            continue
        text = dotted(node.func)
        name = text.rsplit(".", 1)[-1]
        owner = text.rsplit(".", 1)[0]
        if name in forbidden_attributes and owner in {"os", "shutil", "np", "numpy", "np.ndarray"}:
            found.add(text)
        if text == "open" and any(
            isinstance(value, ast.Constant)
            and isinstance(value.value, str)
            and set(value.value) & set("wax+")
            for value in [*node.args[1:2], *(word.value for word in node.keywords if word.arg == "mode")]
        ):
            found.add(ast.unparse(node))
        if text in {"eval", "exec", "pickle.loads", "pickle.load", "marshal.loads"}:
            found.add(text)
    return found


def imports_that_write(source: str) -> set[str]:
    imported = {name.split(".")[0] for name in imports_of(source)}
    return imported & {"pickle", "marshal", "shelve", "dill", "multiprocessing"}


def test_only_storage_changes_files():
    def writing(path: str, source: str) -> set[str]:
        return calls_that_write(source) | imports_that_write(source)

    found = found_in_modules(writing)
    assert "os.replace" in found.pop("storage/syscalls.py")
    # Between a job and the worker processes that it started.
    assert found.pop("text/tokenize/workers/channel.py") == {"pickle", "pickle.loads"}
    # It registers how torch's workers send a micro-batch: through anonymous memory.
    assert found.pop("loader/shared_batches.py") == {"multiprocessing"}
    assert found == {}


def test_a_writer_outside_storage_is_found():
    assert calls_that_write("import os\nos.replace('a', 'b')\nopen('x', 'wb')\n") == {
        "os.replace",
        "open('x', 'wb')",
    }
    assert calls_that_write("open('x', mode='a')\neval('x')\nopen('x')\nx().replace('a')\n") == {
        "open('x', mode='a')",
        "eval",
    }
    assert imports_that_write("def f():\n    from multiprocessing import Pool\n") == {"multiprocessing"}


OPENS = {"open", "io.open", "os.open", "os.read", "os.pread", "os.preadv", "os.readv"}
OPENING_MODULES = {"loader/shared_batches.py", "storage/reading.py", "storage/syscalls.py"}


def calls_that_open(source: str) -> set[str]:
    """Calls that open files, or read them at positions; not the null device, nor pipes of processes."""
    calls = [node for node in nodes_of(source) if isinstance(node, ast.Call)]
    found = {ast.unparse(node) for node in calls if dotted(node.func) in OPENS}
    return {call for call in found if not call.startswith(("os.open(os.devnull,", "os.read(alarm,"))}


def test_files_are_opened_by_storage():
    # A pipe in the place of a file must not be waited for, and a short read is no end of a file.
    assert found_in_modules(lambda _, source: calls_that_open(source)).keys() == OPENING_MODULES


def test_a_module_that_opens_files_is_found():
    assert calls_that_open("import os\nos.open(path, 0)\nos.open(os.devnull, 0)\n") == {"os.open(path, 0)"}
    assert calls_that_open("with open(p) as f:\n    os.pread(f, 1, 0)\n") == {"open(p)", "os.pread(f, 1, 0)"}


COMMANDS_MAY_IMPORT = {"cli", "core", "errors", "version"}
"""Packages and modules, besides the public names of tokshard itself."""

ONLY_COMMANDS_USE = {
    "checks.commands.inspect.describe_path",
    "checks.commands.inspect.write_inspection_page",
    "checks.doctor.options.ITERATION",
    "checks.doctor.options.VARIABLES",
    "checks.inspect.blend_facts.describe_blend",
    "checks.inspect.packing_facts.describe_packed",
    "checks.inspect.plan_facts.describe_plan",
    "checks.doctor.from_launch.indexes_of_launch",
    "checks.doctor.from_launch.plan_of_launch",
    "checks.trace.report.TraceReadsReport",
    "checks.verify.options.Level",
    "samples.blend.emission.emit_megatron",
    "samples.blend.emission.next_step",
    "samples.blend.options.Form",
    "text.tokenize.options.DistributionOptions",
}
"""What commands need and the public API does not have: views, options of launch scripts, parts of reports."""


def beyond_the_public_api(source: str) -> set[str]:
    """The names that a module of the command line imports from elsewhere; type checkers may import any."""
    found = set()
    for node in _running_nodes(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    inner = {name.removeprefix("tokshard.") for name in found if name.startswith("tokshard.")}
    return {name for name in inner - {*tokshard.__all__} if name.split(".")[0] not in COMMANDS_MAY_IMPORT}


def _running_nodes(node: ast.AST) -> Iterator[ast.AST]:
    for child in ast.iter_child_nodes(node):
        if not (isinstance(child, ast.If) and dotted(child.test) == "TYPE_CHECKING"):
            yield child
            yield from _running_nodes(child)


def test_the_command_line_uses_the_public_api():
    found = {path.stem: beyond_the_public_api(path.read_text()) for path in (ROOT / "cli").glob("*.py")}
    assert len(found) > 10
    assert set().union(*found.values()) == ONLY_COMMANDS_USE


def test_an_import_beyond_the_public_api_is_found():
    assert beyond_the_public_api("from tokshard import IndexedDataset, errors\n") == set()
    assert beyond_the_public_api("def f():\n    from tokshard.samples import blend\n") == {"samples.blend"}
    assert beyond_the_public_api("from tokshard.storage import syscalls\n") == {"storage.syscalls"}
    assert beyond_the_public_api("import tokshard.storage.files\n") == {"storage.files"}
    assert beyond_the_public_api("if TYPE_CHECKING:\n    from tokshard.storage import files\n") == set()
