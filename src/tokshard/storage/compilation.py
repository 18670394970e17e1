"""Compilation of loops that numpy cannot express, if numba is installed, and the cache of their machine code.

numba takes half a second to import and seconds to compile, so it does that once per machine: the machine code
is kept as an object file, which llvmlite alone loads in a tenth of a second. The name of such a file is made
of all that its content depends on, and the content ends with its digest, so a stale, damaged or foreign file
is never loaded, and processes that write the same name at once write the same content.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import importlib.util
import os
import threading
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from tokshard.errors import UsageError
from tokshard.storage.cache_files import read_cached, write_cached
from tokshard.storage.paths import user_cache_directory

WORTH_COMPILING = 1_000_000
"""Minimum number of loop iterations for which a compiled kernel is faster than numpy: loading one takes a
tenth of a second, compiling it for the first time a few seconds."""

_SYMBOL = "tokshard_kernel"
_MOST_RESULTS = 8
# What numba's functions return: no error, with a value and without.
_RETURNED = (0, -2)

Kernel = Callable[..., Any]


@cache
def has_numba() -> bool:
    """Return whether numba is installed and not disabled, without importing it."""
    enabled = os.environ.get("NUMBA_DISABLE_JIT", "0") in {"", "0"}
    return enabled and importlib.util.find_spec("numba") is not None


@cache
def compiled(kernel: Kernel) -> Kernel:
    """Return a kernel as machine code, which is loaded or compiled on the first call for each set of dtypes.

    If the cache cannot be read or written, the kernel is compiled for this process only. Kernels run without
    the GIL. Floating-point operations keep their order and are never contracted or reassociated. An index out
    of range is not detected, and a division by zero has no error.

    Args:
        kernel: A module-level function of C-contiguous arrays and integers that returns None, int or a tuple
            of int, as annotated. To be cached, it must allocate no memory.
    """
    return _CompiledKernel(kernel)


class _CompiledKernel:
    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._functions: dict[tuple[str, ...], Kernel] = {}
        self._lock = threading.Lock()

    def __call__(self, *arguments: Any) -> Any:
        kinds = tuple(map(_kind, arguments))
        function = self._functions.get(kinds)
        if function is None:
            with self._lock:
                function = self._functions.get(kinds) or self._load_or_compile(kinds)
                self._functions[kinds] = function
        return function(*arguments)

    def _load_or_compile(self, kinds: tuple[str, ...]) -> Kernel:
        name = f"{self._kernel.__name__}.{_key(self._kernel, kinds)}.o"
        for directory in _directories(self._kernel):
            code = read_cached(os.path.join(directory, name))
            if code is not None:
                with contextlib.suppress(Exception):  # whatever it contains, the kernel can be compiled
                    return _load(code, self._kernel, kinds)
        machine_code = _compile(self._kernel, kinds)
        if machine_code is None:
            return _numba_function(self._kernel)
        for directory in _directories(self._kernel):
            if write_cached(os.path.join(directory, name), machine_code):
                break
        return _load(machine_code, self._kernel, kinds)


def _kind(argument: Any) -> str:
    # The type of an argument: its dtype, dimensions, and whether its address is a multiple of the item size.
    if not isinstance(argument, np.ndarray):
        return "int"
    flags = argument.flags
    if not flags.c_contiguous:
        raise ValueError("the arrays of a compiled kernel must be C-contiguous")
    return f"{argument.dtype.str}:{argument.ndim}:{'aligned' if flags.aligned else 'unaligned'}"


def _key(kernel: Kernel, kinds: tuple[str, ...]) -> str:
    code = kernel.__code__
    numbers = [
        (name, kernel.__globals__[name])
        for name in code.co_names
        if isinstance(kernel.__globals__.get(name), int | float)
    ]
    parts = (
        kernel.__module__, code.co_code, code.co_consts, code.co_names, code.co_varnames, numbers, kinds,
        _source(__file__),
        _versions(),
        _target(),
    )  # fmt: skip
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:32]


def _source(path: str) -> bytes:
    # A whole module, so that no function is forgotten that another one calls.
    with contextlib.suppress(OSError):
        return Path(path).read_bytes()
    return b""


@cache
def _versions() -> tuple[str, bytes, list[tuple[str, str]]]:
    import llvmlite

    found = importlib.util.find_spec("numba")
    if found is None or found.origin is None:
        raise RuntimeError("numba is not installed")
    settings = sorted(item for item in os.environ.items() if item[0].startswith("NUMBA_"))
    # numba's version without importing numba.
    return llvmlite.__version__, Path(found.origin).with_name("_version.py").read_bytes(), settings


@cache
def _target() -> tuple[str, str, str]:
    # The triple of the process, and the processor with its features unless numba is told another.
    import llvmlite.binding as llvm

    with contextlib.suppress(RuntimeError):  # before llvmlite 0.45 required, then refused
        llvm.initialize()
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    processor = os.environ.get("NUMBA_CPU_NAME") or llvm.get_host_cpu_name()
    features = os.environ.get("NUMBA_CPU_FEATURES") or llvm.get_host_cpu_features().flatten()
    return llvm.get_process_triple(), processor, features


def _directories(kernel: Kernel) -> list[str]:
    # Beside the bytecode of the kernel's module, as its equal, or in the user's cache.
    directories = [os.path.join(os.path.dirname(kernel.__code__.co_filename), "__pycache__")]
    with contextlib.suppress(UsageError):
        directories.append(os.path.join(user_cache_directory(), "kernels"))
    return directories


def _numba_function(kernel: Kernel) -> Kernel:
    import numba

    function: Kernel = numba.njit(nogil=True, error_model="numpy")(kernel)
    return function


def _compile(kernel: Kernel, kinds: tuple[str, ...]) -> bytes | None:
    # None if the machine code would need numba at run time.
    import llvmlite.binding as llvm
    import numba

    signature = tuple(_numba_type(numba, kind) for kind in kinds)
    # Without numba's reference counts of arrays; what allocates memory does not compile then.
    options: dict[str, Any] = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True, "_nrt": False}
    try:
        dispatcher: Any = numba.njit(signature, nogil=True, error_model="numpy", **options)(kernel)
    except numba.errors.NumbaError:
        return None
    (overload,) = dispatcher.overloads.values()
    module = llvm.parse_assembly(dispatcher.inspect_llvm(signature))
    function = module.get_function(overload.fndesc.llvm_func_name)
    needed = [one.name for one in module.functions if one.is_declaration]
    alone = all(name.startswith("llvm.") or name in {"memcpy", "memmove", "memset"} for name in needed)
    # The arguments are numba's convention, not a promise of it.
    expected = ["retptr", "excinfo"]
    for name, kind in zip(kernel.__code__.co_varnames, kinds, strict=False):
        expected += [f"arg.{name}{part}" for part in _parts(kind)]
    results = str(overload.signature.return_type)
    counts = {0: "none", 1: "int64"}.get(_results(kernel), f"UniTuple(int64 x {_results(kernel)})")
    if not alone or [one.name for one in function.arguments] != expected or results != counts:
        return None
    function.name = _SYMBOL
    _, processor, features = _target()
    machine = llvm.Target.from_default_triple().create_target_machine(
        cpu=processor, features=features, opt=3, reloc="pic", codemodel="jitdefault", jit=True
    )
    code: bytes = machine.emit_object(module)
    return code


def _numba_type(numba: Any, kind: str) -> Any:
    if kind == "int":
        return numba.int64
    dtype, dimensions, alignment = kind.split(":")
    aligned = alignment == "aligned"
    item = numba.from_dtype(np.dtype(dtype))
    # What is not aligned is a part of a file, which no kernel writes.
    return numba.types.Array(item, int(dimensions), "C", readonly=not aligned, aligned=aligned)


def _parts(kind: str) -> list[str]:
    # The parts of an argument: for an array its owners, entries, item size, address, shape and strides.
    if kind == "int":
        return [""]
    dimensions = range(int(kind.split(":")[1]))
    shape, strides = [f".5.{k}" for k in dimensions], [f".6.{k}" for k in dimensions]
    return [".0", ".1", ".2", ".3", ".4", *shape, *strides]


def _results(kernel: Kernel) -> int:
    return str(kernel.__annotations__.get("return")).count("int")


def _load(code: bytes, kernel: Kernel, kinds: tuple[str, ...]) -> Kernel:
    # The library is kept by the function that calls it.
    import llvmlite.binding as llvm

    _target()
    compiler = llvm.create_lljit_compiler(llvm.Target.from_default_triple().create_target_machine(jit=True))
    builder = llvm.JITLibraryBuilder().add_object_img(code).export_symbol(_SYMBOL).add_current_process()
    library = builder.link(compiler, _SYMBOL)
    count = 2 + sum(len(_parts(kind)) for kind in kinds)
    # Pointers are passed as integers, which have the same registers.
    function = ctypes.CFUNCTYPE(ctypes.c_int32, *[ctypes.c_int64] * count)(library[_SYMBOL])
    results = _results(kernel)

    def call(*arguments: Any, _kept: Any = (compiler, library)) -> Any:
        returned, exception = (ctypes.c_int64 * _MOST_RESULTS)(), ctypes.c_int64()
        words = [ctypes.addressof(returned), ctypes.addressof(exception)]
        for argument in arguments:
            if isinstance(argument, np.ndarray):
                words += [0, 0, argument.size, argument.itemsize, argument.ctypes.data]
                words += [*argument.shape, *argument.strides]
            else:
                words.append(int(argument))
        status = function(*words)
        if status not in _RETURNED:
            raise RuntimeError(f"the compiled kernel {kernel.__name__} failed with status {status}")
        if results > 1:
            return tuple(returned[:results])
        return returned[0] if results else None

    return call
