"""in=batch:FILE: every prompt of a file answered, in the file's order, into output.jsonl beside it or --output."""

from __future__ import annotations

import asyncio
import codecs
import statistics
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType

import msgspec
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar
from rich.text import Text

from dynamo.api.headers import ignored
from dynamo.cli.run.answering import RunError, request_defaults, request_template, serve_models
from dynamo.cli.run.grammar import Command
from dynamo.cli.run.prompts import BadLine, BatchPrompt, Request, read_prompt
from dynamo.protocols.errors import DynamoException, ModelNotFound, Unavailable
from dynamo.runtime import DistributedRuntime
from dynamo.runtime.process import INTERRUPTED, unless_shut_down
from dynamo.serving.ask import Answer, ask
from dynamo.serving.batches.journal import Journal, JournalError, JournalHeader, checksum
from dynamo.serving.models import Models

OUTPUT = "output.jsonl"
_ATTEMPTS = 3


async def run(runtime: DistributedRuntime, command: Command, environ: Mapping[str, str]) -> int:
    file = _prompts_file(command)
    journal = Journal(_output_file(command, file))
    journal.check_output()
    code = await unless_shut_down(runtime, _batch(runtime, command, environ, file, journal))
    if code is None:
        print("interrupted: the same command continues from here", file=sys.stderr)
        return INTERRUPTED
    return code


def _prompts_file(command: Command) -> Path:
    file = Path(command.input.target).expanduser()
    if file.is_dir():
        found = sorted(path for path in file.glob("*.jsonl") if path.name != OUTPUT)
        if len(found) != 1:
            there = ", ".join(path.name for path in found) or "none"
            raise RunError(f"a folder should hold one file of prompts as JSON lines, and {file} has: {there}; name one")
        return found[0]
    if not file.is_file():
        raise RunError(f'missing or not a file: {file}; it should hold JSON lines such as {{"text": "…"}}')
    return file


def _output_file(command: Command, file: Path) -> Path:
    output = Path(command.batch_output).expanduser() if command.batch_output else file.with_name(OUTPUT)
    if output.resolve() == file.resolve():
        raise RunError(f"{file} is where the answers go: give the prompts another name, or the answers with --output")
    return output


async def _batch(
    runtime: DistributedRuntime, command: Command, environ: Mapping[str, str], file: Path, journal: Journal
) -> int:
    digest, total = await asyncio.to_thread(checksum, file)
    async with serve_models(runtime, command, environ) as (models, model):
        try:
            journal.open(JournalHeader(input=file.name, checksum=digest, model=model.name))
            batch = Batch(runtime, command, models, model.name, journal)
            with Progress(total, done=len(journal)) as progress:
                await batch.answer_all(file, progress)
            journal.finish()
        finally:
            journal.close()
    print(batch.summary(), file=sys.stderr)
    return 1 if total and journal.failed == total else 0


class Batch:
    def __init__(
        self, runtime: DistributedRuntime, command: Command, models: Models, model: str, journal: Journal
    ) -> None:
        self._runtime = runtime
        self._concurrency = command.batch_concurrency
        self._defaults = request_defaults(command)
        self._template = request_template(command.request_template)
        self._models = models
        self._model = model
        self._journal = journal
        self._earlier = len(journal)
        self._began = time.perf_counter()
        self._tokens_in = 0
        self._tokens_out = 0
        self._times_to_first_token: list[float] = []
        self._ignored: set[str] = set()

    async def answer_all(self, file: Path, progress: Progress) -> None:
        with file.open("rb") as lines:
            waiting = self._unanswered_lines(lines)
            try:
                async with asyncio.TaskGroup() as group:
                    for _ in range(self._concurrency):
                        group.create_task(self._answer_some(waiting, progress))
            except* JournalError as errors:
                raise RunError(str(errors.exceptions[0])) from errors

    def _unanswered_lines(self, lines: Iterator[bytes]) -> Iterator[tuple[int, bytes]]:
        for number, line in enumerate(lines, start=1):
            if number == 1:
                line = line.removeprefix(codecs.BOM_UTF8)
            if line.strip() and number not in self._journal:
                yield number, line

    async def _answer_some(self, waiting: Iterator[tuple[int, bytes]], progress: Progress) -> None:
        for number, line in waiting:
            record, failed = await self._outcome(number, line)
            if failed and self._runtime.is_shutting_down:
                return  # our own shutdown failed it: a resumed batch sends it again
            self._journal.add(number, msgspec.json.encode(record), failed=failed)
            progress.advance(self._journal.failed)

    async def _outcome(self, number: int, line: bytes) -> tuple[dict[str, object], bool]:
        try:
            prompt = read_prompt(line, model=self._model, defaults=self._defaults, template=self._template)
        except BadLine as bad:
            return bad.record(number), True
        try:
            return prompt.answered(await self._ask(prompt)), False
        except DynamoException as error:
            return prompt.failed(error), True

    async def _ask(self, prompt: BatchPrompt) -> Answer:
        request: Request = prompt.request()
        self._ignored.update(prompt.ignored)
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                answer = await ask(self._models.get(request.model), request)
                break
            except (Unavailable, ModelNotFound):
                # All workers of our model left: wait for another. For a model that is not ours none may ever join.
                if attempt == _ATTEMPTS or request.model != self._model:
                    raise
                await self._models.wait_for(self._model)
        self._tokens_in += answer.tokens_in
        self._tokens_out += answer.tokens_out
        if answer.time_to_first_token is not None:
            self._times_to_first_token.append(answer.time_to_first_token)
        return answer

    def summary(self) -> str:
        seconds = time.perf_counter() - self._began
        now = len(self._journal) - self._earlier
        parts = [f"{now} prompts in {seconds:.1f} s"]
        if self._earlier:
            parts.append(f"{self._earlier} done before")
        if self._journal.failed:
            parts.append(f'{self._journal.failed} failed: see "error" in {self._journal.output.name}')
        lines = [
            "; ".join(parts),
            f"tokens in: {self._tokens_in} ({self._tokens_in / seconds:.0f}/s), "
            f"out: {self._tokens_out} ({self._tokens_out / seconds:.0f}/s)",
        ]
        if self._times_to_first_token:
            late = sorted(self._times_to_first_token)[int(len(self._times_to_first_token) * 0.95)]
            lines.append(
                f"time to first token: {statistics.median(self._times_to_first_token) * 1000:.0f} ms median, "
                f"{late * 1000:.0f} ms at the 95th percentile"
            )
        if self._ignored:
            lines.append(ignored("unknown fields", sorted(self._ignored)))
        return "\n".join(lines)


class _Rate(ProgressColumn):
    def render(self, task: Task) -> Text:
        return Text(f"{task.speed:.1f}/s" if task.speed else "")


class Progress:
    def __init__(self, total: int, *, done: int) -> None:
        self._bar = Bar(
            BarColumn(),
            MofNCompleteColumn(),
            _Rate(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[failed]}", style="red"),
            console=Console(stderr=True),
            disable=not sys.stderr.isatty(),
        )
        self._task = self._bar.add_task("prompts", total=total, completed=done, failed="")

    def advance(self, failed: int) -> None:
        self._bar.update(self._task, advance=1, failed=f"{failed} failed" if failed else "")

    def __enter__(self) -> Progress:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()
