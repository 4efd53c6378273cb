"""SGLang behind our worker: our conformance suite, answers over HTTP, and throughput beside SGLang's own server.

    PYTHONPATH=SITE python benchmarks/gpu/sglang.py suite          # tests/engines/conformance; 3 minutes
    PYTHONPATH=SITE python benchmarks/gpu/sglang.py conformance    # answers of a 0.5B shape over HTTP; 2 minutes
    PYTHONPATH=SITE python benchmarks/gpu/sglang.py throughput     # 64 and 256 clients, 5 rounds in turns; 4 minutes

SITE is a folder of unpacked wheels: SGLang's and ours. No weights are needed: the model has a real shape, random
weights and a tokenizer made here. Each part prints lines of JSON and ends within `--limit` seconds. On a CPU
`--stand-in mocker` or `--stand-in llamacpp` puts another engine in SGLang's place, which proves that a part works.

Side `offline` of the throughput is SGLang's engine in a process of its own, which gets a wave of token ids at once and
no next one before all are answered: what it does without a server.

`engine_us_per_token` is the CPU time of the process that talks to the scheduler: our worker, or SGLang's server with
its HTTP; `frontend_us_per_token` that of our frontend; `core_us_per_token` that of the processes below: the scheduler,
and beside SGLang's server its detokenizer.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import aiohttp

sys.path.pop(0)  # there this file would hide SGLang
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from gpu.compare import SHAPES, environment, load, say
from gpu.measured import cpu, cpu_below, report, versions
from processes import REPOSITORY, Child, Stack, free_port
from prompts import MODEL, Prompts

FLAGS = ("--attention-backend", "triton", "--sampling-backend", "pytorch", "--disable-prefill-cuda-graph")
"""FlashAttention is not needed, and graphs of prefills take 48 s to capture."""
PERSON: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"enum": ["Ada", "Grace", "Alan"]},
        "motto": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
    },
    "required": ["name", "motto", "age"],
    "additionalProperties": False,
}
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"enum": ["Rome", "Oslo"]}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("--shape", choices=SHAPES, default="0.5b")
    parser.add_argument("--limit", type=float, help="seconds (suite 210, conformance 110, throughput 270)")
    parser.add_argument("--patience", type=float, default=180, help="seconds for an engine to start (%(default)s)")
    parser.add_argument("--stand-in", choices=("mocker", "llamacpp"), help="an engine instead of SGLang")
    parser.add_argument("--sides", default="ours,serve,offline", help="of the throughput (%(default)s)")
    parser.add_argument("--offline", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--clients", default="64,256", help="at once (%(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="measurements of each side (%(default)s)")
    parser.add_argument("--waves", type=int, default=4, help="requests of each client (%(default)s)")
    parser.add_argument("--prompt", type=int, default=64, help="tokens of a prompt (%(default)s)")
    parser.add_argument("--output", type=int, default=128, help="tokens of an answer (%(default)s)")
    parser.add_argument("--ids", action="store_true", help="clients send token ids, not chats")
    parser.add_argument("--within", type=float, default=0, help="seconds within which clients begin (%(default)s)")
    parser.add_argument("--only", default="", help="suite: tests whose names match this")
    parser.add_argument("--flags", default="", help="further flags of SGLang, in one text: --flags='--page-size 1'")
    options = parser.parse_args()
    options.counts = [int(count) for count in options.clients.split(",")]
    options.limit = options.limit or {"suite": 210, "conformance": 110, "throughput": 270}[options.part]
    options.until = time.monotonic() + options.limit
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    if options.offline:
        offline(options)
        return
    with tempfile.TemporaryDirectory(prefix="bench-") as place:
        PARTS[options.part](options, Path(place))


def show(**facts: Any) -> None:
    print(json.dumps(facts), flush=True)


# The suite


def suite(options: argparse.Namespace, place: Path) -> None:
    """Our conformance suite with SGLang; what it needs and this interpreter lacks is named."""
    needed = ("pytest", "pytest_asyncio", "hypothesis", "sortedcontainers", "openai")
    if lacking := [name for name in needed if importlib.util.find_spec(name) is None]:
        show(part="suite", ran=False, lacking=lacking)
        return
    lines: list[str] = []
    log = place / "suite.log"
    words = ["-m", "pytest", "-o", "addopts=", "-W", "default", "-v", "--tb=short", "-p", "no:cacheprovider"]
    picked = ["-k", options.only] if options.only else []
    folder = REPOSITORY / "tests" / "engines" / "conformance"
    files = [str(folder / f"test_engine_{name}.py") for name in ("answers", "guided", "many", "refusals", "served")]
    path = [str(REPOSITORY / "src"), str(REPOSITORY / "tests"), os.environ.get("PYTHONPATH", "")]
    environ = {
        **os.environ,
        "CONFORMANCE_ENGINE": options.stand_in or "sglang",
        "CONFORMANCE_FLAGS": options.flags,
        "PYTHONPATH": os.pathsep.join(filter(None, path)),
    }
    with log.open("wb") as out:
        child = subprocess.Popen(
            [sys.executable, *words, *picked, *files], cwd=REPOSITORY, env=environ, stdout=out, stderr=out,
            start_new_session=True,
        )  # fmt: skip
    try:
        child.wait(max(1.0, options.until - time.monotonic()))
    except subprocess.TimeoutExpired:
        say("the suite did not end in its time")
    with_processes(child.pid)
    child.wait()
    lines = log.read_text(errors="replace").splitlines()
    ended = {"passed": list[str](), "failed": list[str](), "error": list[str]()}
    for line in lines:
        words = line.split()
        for name, tests in ended.items():
            if "::" in line and len(words) > 1 and words[1] == name.upper():
                tests.append(words[0].rpartition("::")[2])
    show(
        part="suite", ran=True, rc=child.returncode, passed=len(ended["passed"]), failed=ended["failed"],
        errors=ended["error"], reasons=[line[:300] for line in lines if line.startswith("E   ")][:40],
        tail=[] if ended["passed"] else lines[-25:], versions=versions(),
    )  # fmt: skip
    keep(place)


def with_processes(group: int) -> None:
    try:
        os.killpg(group, signal.SIGKILL)
    except ProcessLookupError:
        return


# Answers over HTTP


def conformance(options: argparse.Namespace, place: Path) -> None:
    model = made_model(options, place)
    with Stack(place / "conformance", environ=environment()) as stack:
        worker(stack, options, model, "--enable-deterministic-inference")
        stack.frontend()
        ready(stack, options)
        asyncio.run(Answers(stack, options).check())
        keep(stack.folder)


class Answers:
    """Each check is one line: what it found, and whether that is right."""

    def __init__(self, stack: Stack, options: argparse.Namespace) -> None:
        self._stack = stack
        self._options = options
        self._wrong: list[str] = []

    async def check(self) -> None:
        checks: list[Callable[[], Awaitable[tuple[bool, dict[str, Any]]]]] = [
            self.together_is_solo, self.ends, self.choices, self.log_probabilities, self.guided, self.tool_calls,
            self.refusals, self.seeds, self.still_answers,
        ]  # fmt: skip
        timeout = aiohttp.ClientTimeout(total=60)
        async with aiohttp.ClientSession(timeout=timeout, connector=aiohttp.TCPConnector(limit=0)) as self._http:
            for check in checks:
                name = check.__name__
                if time.monotonic() > self._options.until:
                    self._wrong.append(name)
                    show(part="conformance", check=name, right=False, error="no time was left")
                    continue
                begun = time.monotonic()
                try:
                    right, facts = await check()
                except Exception as error:
                    right, facts = False, {"error": f"{type(error).__name__}: {error}"[:300]}
                if not right:
                    self._wrong.append(name)
                show(part="conformance", check=name, right=right, seconds=round(time.monotonic() - begun, 2), **facts)
        show(part="conformance", wrong=self._wrong, versions=versions())

    async def ask(self, path: str = "completions", **body: Any) -> tuple[int, dict[str, Any]]:
        asked = {"model": MODEL, "temperature": 0, "max_tokens": 32, **body}
        async with self._http.post(f"{self._stack.url}/v1/{path}", json=asked) as answer:
            return answer.status, await answer.json(content_type=None)

    async def text(self, **body: Any) -> str:
        status, answer = await self.ask(**body)
        if status != 200:
            raise RuntimeError(f"{status}: {answer}")
        return str(answer["choices"][0]["text"])

    async def together_is_solo(self) -> tuple[bool, dict[str, Any]]:
        prompts = Prompts(5)
        bodies = [{"prompt": prompts.next(20 + at), "max_tokens": 8 + at, "ignore_eos": True} for at in range(32)]
        alone = [await self.text(**body) for body in bodies]
        together = await asyncio.gather(*(self.text(**body) for body in bodies))
        equal = sum(one == other for one, other in zip(alone, together, strict=True))
        return equal == 32 and all(alone), {"equal": equal, "of": 32}

    async def ends(self) -> tuple[bool, dict[str, Any]]:
        prompt = Prompts(6).next(30)
        status, answer = await self.ask(prompt=prompt, ignore_eos=True)
        whole = answer["choices"][0]["text"]
        usage = answer["usage"]
        stop = whole[len(whole) // 2 :][:6]
        _, cut = await self.ask(prompt=prompt, ignore_eos=True, stop=[stop])
        choice = cut["choices"][0]
        right = choice["text"] == whole[: whole.index(stop)] and choice["finish_reason"] == "stop"
        return status == 200 and right and usage["completion_tokens"] == 32, {"usage": usage}

    async def choices(self) -> tuple[bool, dict[str, Any]]:
        _, answer = await self.ask(prompt="one two three", n=4, temperature=1.0, ignore_eos=True)
        texts = [choice["text"] for choice in answer["choices"]]
        return len(texts) == 4 and len(set(texts)) == 4, {"different": len(set(texts))}

    async def log_probabilities(self) -> tuple[bool, dict[str, Any]]:
        messages = [{"role": "user", "content": "one two three"}]
        _, answer = await self.ask(
            "chat/completions", messages=messages, logprobs=True, top_logprobs=3, ignore_eos=True, max_tokens=8
        )
        rows = answer["choices"][0]["logprobs"]["content"]
        greedy = all(abs(row["logprob"] - row["top_logprobs"][0]["logprob"]) < 1e-4 for row in rows)
        sized = all(len(row["top_logprobs"]) == 3 and row["logprob"] <= 0 for row in rows)
        prompt_status, _ = await self.ask(prompt="one two three four", max_tokens=2, echo=True, logprobs=1)
        return len(rows) == 8 and greedy and sized, {"tokens": len(rows), "echo_status": prompt_status}

    async def guided(self) -> tuple[bool, dict[str, Any]]:
        form = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON}}
        asked = [
            self.ask("chat/completions", messages=[{"role": "user", "content": f"person {number}"}],
                     response_format=form, temperature=1.0, max_tokens=120)
            for number in range(100)
        ]  # fmt: skip
        valid, spaced, first = 0, 0, None
        for status, answer in await asyncio.gather(*asked):
            try:
                text = answer["choices"][0]["message"]["content"]
                valid += set(json.loads(text)) == {"name", "motto", "age"}
                spaced += "\n" in text or "  " in text
            except (KeyError, TypeError, ValueError):
                first = first or f"{status}: {answer}"[:300]
        return valid == 100, {"valid": valid, "of": 100, "with_whitespace": spaced, "first_wrong": first}

    async def tool_calls(self) -> tuple[bool, dict[str, Any]]:
        right, first = 0, None
        for number in range(5):
            _, answer = await self.ask(
                "chat/completions", messages=[{"role": "user", "content": f"weather {number}?"}], tools=[WEATHER],
                tool_choice={"type": "function", "function": {"name": "weather"}}, max_tokens=200,
            )  # fmt: skip
            try:
                (call,) = answer["choices"][0]["message"]["tool_calls"]
                right += json.loads(call["function"]["arguments"])["city"] in ("Rome", "Oslo")
            except (KeyError, TypeError, ValueError):
                first = first or str(answer)[:300]
        return right == 5, {"calls": right, "of": 5, "first_wrong": first}

    async def refusals(self) -> tuple[bool, dict[str, Any]]:
        """What would end the engine is the client's mistake."""
        refused: dict[str, dict[str, Any]] = {
            "min_p": {"prompt": "one", "min_p": 0.1, "temperature": 1.0},
            "seed and min_p": {"prompt": "one", "min_p": 0.1, "temperature": 1.0, "seed": 3},
            "unknown token": {"prompt": [4_000_000]},
            "too long": {"prompt": [5] * 5000},
            "wrong regex": {"prompt": "one", "guided_regex": "(((" },
            "wrong tag": {"prompt": "one", "response_format": {"type": "structural_tag", "format": {"type": "no"}}},
        }  # fmt: skip
        found = {name: await self.ask(**body) for name, body in refused.items()}
        said = {name: (status, str(answer)[:120]) for name, (status, answer) in found.items() if status != 400}
        return not said, {"statuses": {name: status for name, (status, _) in found.items()}, "not_400": said}

    async def seeds(self) -> tuple[bool, dict[str, Any]]:
        """Each kind by itself: one that ends the engine fails the ones after it."""
        kinds: dict[str, dict[str, Any]] = {
            "plain": {}, "top_p": {"top_p": 0.7}, "top_k": {"top_k": 9}, "both": {"top_p": 0.7, "top_k": 9},
            "logprobs": {"logprobs": 2}, "penalties": {"frequency_penalty": 0.5},
        }  # fmt: skip
        found = {}
        for name, options in kinds.items():
            body = {"prompt": "one two three", "temperature": 1.0, "ignore_eos": True, **options}
            try:
                first, again = [await self.text(seed=11, **body) for _ in range(2)]
                other = await self.text(seed=12, **body)
                found[name] = "right" if first == again != other else f"again={first == again} other={first != other}"
            except Exception as error:
                found[name] = f"{type(error).__name__}: {error}"[:200]
        return set(found.values()) == {"right"}, {"found": found}

    async def still_answers(self) -> tuple[bool, dict[str, Any]]:
        text = await self.text(prompt="one two three", ignore_eos=True)
        return bool(text), {}


# Throughput


def throughput(options: argparse.Namespace, place: Path) -> None:
    """Both sides run; one is measured at a time, in turns."""
    model = made_model(options, place)
    with ExitStack() as running:
        sides: list[Side | Offline] = []
        for name in options.sides.split(","):
            kind: type[Side | Offline] = Offline if name == "offline" else Side
            sides.append(made := kind(name, place / name, options, model))
            running.enter_context(made)
        for side in sides:
            side.wait()
        took = 0.0
        for turn in range(options.rounds):
            begun = time.monotonic()
            if begun + took > options.until:
                show(part="throughput", rounds=turn, error="no time was left for more")
                break
            for clients in options.counts:
                for side in sides if turn % 2 == 0 else sides[::-1]:
                    side.measure(clients, turn)
            took = time.monotonic() - begun
        show(part="throughput", medians=medians(sides, options.counts))


def medians(sides: Sequence[Side | Offline], counts: Sequence[int]) -> dict[str, Any]:
    """Of each side, and its tokens per second by those of SGLang's server in the same round."""

    def middle(values: Sequence[float]) -> float:
        return sorted(values)[len(values) // 2]

    found: dict[str, Any] = {}
    for clients in counts:
        row: dict[str, Any] = {}
        serve = next((side.results[clients] for side in sides if side.name == "serve"), [])
        for side in sides:
            results = side.results[clients]
            row[f"{side.name}_tokens_per_s"] = round(middle([each[0] for each in results]))
            row[f"{side.name}_ttft_ms"] = round(1e3 * middle([each[1] for each in results]), 1)
            row[f"{side.name}_us_per_token"] = round(middle([each[2] for each in results]), 1)
            if serve and side.name != "serve":
                ratios = [mine[0] / theirs[0] for mine, theirs in zip(results, serve, strict=False)]
                row[f"{side.name}_by_serve"] = round(middle(ratios), 2)
        found[str(clients)] = row
    return found


class Offline:
    """SGLang's engine without a server."""

    def __init__(self, name: str, place: Path, options: argparse.Namespace, model: Path) -> None:
        self.name = name
        self._options = options
        self._folder = place
        self.results: dict[int, list[tuple[float, float, float]]] = {clients: [] for clients in options.counts}
        place.mkdir(parents=True, exist_ok=True)
        words = [f"--{name}={getattr(options, name)}" for name in ("clients", "prompt", "output", "waves")]
        with (place / "offline.log").open("wb") as log:
            self._child = subprocess.Popen(
                [sys.executable, __file__, "throughput", f"--offline={model}", f"--flags={options.flags}", *words],
                env={**os.environ, **environment()}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log,
                text=True,
            )  # fmt: skip

    def __enter__(self) -> Offline:
        return self

    def _line(self) -> dict[str, Any]:
        assert self._child.stdout
        for line in self._child.stdout:
            if line.startswith("{"):
                facts: dict[str, Any] = json.loads(line)
                return facts
        raise SystemExit((self._folder / "offline.log").read_text(errors="replace")[-3000:])

    def wait(self) -> None:
        self._line()

    def measure(self, clients: int, turn: int) -> None:
        assert self._child.stdin
        print(clients, 1 + turn, file=self._child.stdin, flush=True)
        facts = self._line()
        show(**facts)
        self.results[clients].append((facts["tokens_per_second"], 0.0, 0.0))

    def __exit__(self, *_: object) -> None:
        keep(self._folder)
        assert self._child.stdin
        self._child.stdin.close()
        self._child.wait()


def offline(options: argparse.Namespace) -> None:
    """In the process that was started for it: measures what it reads from standard input."""
    import random

    from sglang.srt.entrypoints.engine import Engine
    from sglang.srt.server_args import ServerArgs

    parser = argparse.ArgumentParser()
    ServerArgs.add_cli_args(parser)
    words = ["--model-path", str(options.offline), "--skip-tokenizer-init", "--page-size", "16", *flags(options)]
    engine = Engine(server_args=ServerArgs.from_cli_args(parser.parse_args(words)))
    sampling = {"max_new_tokens": options.output, "ignore_eos": True}

    def wave(clients: int, chance: random.Random) -> int:
        ids = [[chance.randrange(300, 2000) for _ in range(options.prompt + 9)] for _ in range(clients)]
        return sum(len(each["output_ids"]) for each in engine.generate(input_ids=ids, sampling_params=sampling))

    for clients in options.counts:
        wave(clients, random.Random(clients))
    show(side="offline", ready=True)
    for line in sys.stdin:
        clients, seed = map(int, line.split())
        begun, chance = time.monotonic(), random.Random(100 * clients + seed)
        tokens = sum(wave(clients, chance) for _ in range(options.waves))
        took = time.monotonic() - begun
        show(side="offline", clients=clients, tokens_per_second=round(tokens / took), seconds=round(took, 2))
    engine.shutdown()


class Side:
    """Our worker and frontend, or SGLang's own server."""

    def __init__(self, name: str, place: Path, options: argparse.Namespace, model: Path) -> None:
        self.name = name
        self._options = options
        self._stack = Stack(place, environ=environment())
        self.results: dict[int, list[tuple[float, float, float]]] = {clients: [] for clients in options.counts}
        self._begun = time.monotonic()
        self._start(model)

    def wait(self) -> None:
        """Until it answers, and has answered as many at once as it will be asked."""
        ready(self._stack, self._options)
        self._started = time.monotonic() - self._begun
        for clients in self._options.counts:
            load(self._stack, self._stack.folder, clients, clients, 0, self._options)

    def _start(self, model: Path) -> None:
        stack, options = self._stack, self._options
        if self.name == "ours" or options.stand_in:
            self._engine = worker(stack, options, model)
            self._front: Child | None = stack.frontend()
        else:
            port = free_port()
            stack.url = f"http://127.0.0.1:{port}"
            words = ("--model-path", str(model), "--served-model-name", MODEL, "--host", "127.0.0.1", "--port")
            self._engine = stack.start("serve", "-m", "sglang.launch_server", *words, str(port), *flags(options))
            self._front = None

    def __enter__(self) -> Side:
        return self

    def measure(self, clients: int, turn: int) -> None:
        options = self._options
        before = self._cpu()
        result = load(self._stack, self._stack.folder, clients, clients * options.waves, 1 + turn, options)
        spent = [now - then for now, then in zip(self._cpu(), before, strict=True)]
        report(self.name, clients, options, start_s=self._started, **result, engine_s=spent[0], turn=turn,
               frontend_s=spent[1] if self._front else None, core_s=spent[2])  # fmt: skip
        expected = result["requests"] * options.output
        if result["tokens"] != expected:
            show(part="throughput", side=self.name, error=f"usage says {result['tokens']} tokens, not {expected}")
        tokens, ttft = max(1, result["tokens"]), sorted(result["ttft"])
        self.results[clients].append(
            (tokens / result["seconds"], ttft[len(ttft) // 2], 1e6 * spent[0] / tokens)
        )  # fmt: skip

    def _cpu(self) -> tuple[float, float, float]:
        front = cpu(self._front.pid) + cpu_below(self._front.pid) if self._front else 0.0
        return cpu(self._engine.pid), front, cpu_below(self._engine.pid)

    def __exit__(self, *_: object) -> None:
        keep(self._stack.folder)
        self._stack.stop()


# What the parts share


def made_model(options: argparse.Namespace, place: Path) -> Path:
    if options.stand_in:
        sys.path.insert(0, str(REPOSITORY / "src"))
        from dynamo.model import bundled

        return bundled()
    from gpu.workers import model

    return model(place / "model", options.shape)


def flags(options: argparse.Namespace) -> list[str]:
    most = str(max(options.counts))
    room = ["--mem-fraction-static", "0.3", "--max-total-tokens", "262144"]
    return [*FLAGS, *room, "--context-length", "2048", "--max-running-requests", most, *options.flags.split()]


def worker(stack: Stack, options: argparse.Namespace, model: Path, *more: str) -> Child:
    words = (str(model), "--model-name", MODEL, "--discovery-backend", "file")
    if options.stand_in == "mocker":
        return stack.mocker(model, MODEL)
    if options.stand_in:
        return stack.start("worker", "-m", "dynamo.worker", options.stand_in, *words)
    return stack.start("worker", "-m", "dynamo.sglang", *words, *flags(options), *more)


def ready(stack: Stack, options: argparse.Namespace) -> None:
    begun = time.monotonic()
    stack.until("/v1/models", f'"{MODEL}"'.encode(), seconds=options.patience)
    say(f"{stack.folder.name}: ready after {time.monotonic() - begun:.0f} s")


def keep(folder: Path) -> None:
    """Logs go to the folder `$OUT`."""
    if out := os.environ.get("OUT"):
        for log in folder.glob("*.log"):
            shutil.copy(log, Path(out) / f"{folder.name}-{log.name}")


PARTS = {"suite": suite, "conformance": conformance, "throughput": throughput}

if __name__ == "__main__":
    main()
