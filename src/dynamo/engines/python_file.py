"""`out=pystr:FILE` and `out=pytok:FILE`: an engine in a user's Python file, an async generator `generate(request)`."""

from __future__ import annotations

import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec

from dynamo.engines.base import EngineError, EngineInfo, Running
from dynamo.engines.registry import EngineSpec, reject_extra_arguments
from dynamo.process.threads import in_thread
from dynamo.protocols.card import ModelInput
from dynamo.protocols.engine import EngineOutput, PreprocessedRequest
from dynamo.protocols.errors import Cancelled, DynamoException, EngineShutdown, Unknown
from dynamo.runtime.context import Context
from dynamo.runtime.handler import GeneratorHandler, UserHandler, takes_context
from dynamo.runtime.plane.frames import as_builtin
from dynamo.runtime.stream import Sink


class PythonFileEngine:
    """The user's file, loaded once. With `ModelInput.Text` it speaks OpenAI itself, with `Tokens` only in ids.

    While it runs, `sys.argv` is the file and what the user wrote after `--`, as if the file had been started by itself.
    """

    def __init__(self, spec: EngineSpec, model_input: ModelInput) -> None:
        self.model_input = model_input
        name = "pystr" if model_input is ModelInput.Text else "pytok"
        if not spec.file:
            raise EngineError(f"out={name} needs a file: out={name}:FILE.py")
        reject_extra_arguments(name, spec)
        self._file = Path(spec.file).expanduser().absolute()
        if not self._file.is_file():
            raise EngineError(f"out={name}: no such file: {spec.file}")
        self._spec = spec
        self._outlets: set[FileOutlet] = set()
        self._handler: GeneratorHandler | None = None
        self._argv = sys.argv

    async def start(self) -> EngineInfo:
        self._argv, sys.argv = sys.argv, [str(self._file), *self._spec.arguments]
        try:
            module = await in_thread(lambda: _load(self._file))
            self._handler = GeneratorHandler(_generate(module, self._file))
            await _initialize(module, self._file, self._spec.arguments)
        except BaseException:
            sys.argv = self._argv
            raise
        return EngineInfo(context_length=self._spec.context_length)

    def generate(self, request: PreprocessedRequest | dict[str, Any], sink: Sink) -> Running:
        context = Context()
        running = _FileRunning(context)
        if self._handler is None:
            sink.fail(EngineShutdown("engine is not running"))
            return running
        tokens = self.model_input is ModelInput.Tokens
        outlet = FileOutlet(sink, columnar=tokens, forget=self._outlets.discard)
        self._outlets.add(outlet)
        self._handler(msgspec.to_builtins(request, enc_hook=as_builtin) if tokens else request, context, outlet)
        return running

    def quiet(self) -> bool:
        return not self._outlets

    async def close(self) -> None:
        handler, self._handler = self._handler, None
        if handler is None:
            return
        for outlet in self._outlets:
            outlet.stopping = True
        await handler.close()
        sys.argv = self._argv


def pystr(spec: EngineSpec) -> PythonFileEngine:
    return PythonFileEngine(spec, ModelInput.Text)


def pytok(spec: EngineSpec) -> PythonFileEngine:
    return PythonFileEngine(spec, ModelInput.Tokens)


class _FileRunning:
    def __init__(self, context: Context) -> None:
        self._context = context

    def abort(self) -> None:
        self._context.stop_for_caller(kill=True)


class FileOutlet:
    """Between the generator and the engine's sink: checks what the file yields and names its mistakes."""

    def __init__(self, sink: Sink, *, columnar: bool, forget: Callable[[FileOutlet], None]) -> None:
        self.columnar = columnar
        self.stopping = False
        self._sink = sink
        self._forget = forget
        self._wait = getattr(sink, "writable", None)

    def tokens(self, ids: list[int]) -> None:
        if not all(type(id) is int and id >= 0 for id in ids):
            raise Unknown(f"generate yielded invalid token_ids: {str(ids)[:100]}")
        self._sink.tokens(ids)

    def item(self, value: Any) -> None:
        if not isinstance(value, dict):
            raise Unknown(f"generate must yield maps, not {type(value).__name__}")
        if not self.columnar:
            self._sink.item(value)
            return
        try:
            output = msgspec.convert(value, EngineOutput)
        except msgspec.ValidationError as error:
            raise Unknown(f"generate yielded a map that is not an engine output: {error}") from None
        self._sink.item(output)

    def end(self) -> None:
        self._forget(self)
        self._sink.end()

    def fail(self, error: DynamoException) -> None:
        self._forget(self)
        if self.stopping and isinstance(error, Cancelled):
            error = EngineShutdown("engine shutting down")
        self._sink.fail(error)

    async def writable(self) -> None:
        if self._wait is not None:
            await self._wait()


def _load(file: Path) -> ModuleType:
    name = f"dynamo_engine_{file.stem}"
    found = importlib.util.spec_from_file_location(name, file, loader=None)
    if found is None or found.loader is None:
        raise EngineError(f"{file}: not a Python file")
    module = importlib.util.module_from_spec(found)
    # As if it had been started by itself: its neighbours can be imported, and what it defines can be found by name.
    if str(file.parent) not in sys.path:
        sys.path.insert(0, str(file.parent))
    sys.modules[name] = module
    try:
        found.loader.exec_module(module)
    except BaseException as error:  # also sys.exit, as argparse does it
        del sys.modules[name]
        raise EngineError(explain(error, file)) from error
    return module


def _generate(module: ModuleType, file: Path) -> UserHandler:
    wanted = "an engine is an async generator: `async def generate(request)` with `yield` in it"
    function: Any = getattr(module, "generate", None)
    if function is None:
        raise EngineError(f"{file}:1: it has no `generate`; {wanted}")
    code = getattr(inspect.unwrap(function), "__code__", None) if callable(function) else None
    place = f"{file}:{code.co_firstlineno if code else 1}"
    if not callable(function) or (code and not code.co_flags & (inspect.CO_ASYNC_GENERATOR | inspect.CO_COROUTINE)):
        raise EngineError(f"{place}: `generate` is not async; {wanted}")
    try:
        context = {"context": None} if takes_context(function) else {}
        inspect.signature(function).bind(None, **context)
    except (TypeError, ValueError) as error:
        raise EngineError(f"{place}: `generate` must take (request) or (request, context): {error}") from None
    handler: UserHandler = function
    return handler


async def _initialize(module: ModuleType, file: Path, arguments: list[str]) -> None:
    hook = getattr(module, "initialize", None)
    if hook is None:
        return
    try:
        done = hook(list(arguments))
        if inspect.isawaitable(done):
            await done
    except (Exception, SystemExit) as error:
        raise EngineError(explain(error, file)) from error


def explain(error: BaseException, file: Path) -> str:
    """What went wrong in the user's file, in one line that begins with file and line."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}:{error.lineno or 1}: {type(error).__name__}: {error.msg}"
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(file)]
    place = f"{file}:{lines[-1] if lines else 1}"
    if isinstance(error, SystemExit):
        return f"{place}: the file exited with status {error.code}"
    text = " ".join(str(error).split())
    return f"{place}: {type(error).__name__}{': ' if text else ''}{text}"
