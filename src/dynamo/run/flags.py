"""Every flag of dynamo-run, once: the grammar, the help and the shell completions are made from this table."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

ROUTER_MODES = ("round-robin", "random", "least-loaded", "power-of-two", "direct", "kv")
"""Those of the router, which is not loaded to show a help text."""
Kind = Literal["text", "int", "float", "bool", "file"]


class Flag(Struct, frozen=True, kw_only=True):
    name: str
    about: str
    group: str
    metavar: str = ""
    kind: Kind = "text"
    low: float = 0
    high: float = 2**31 - 1
    choices: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()

    @property
    def field(self) -> str:
        """The name of its field in a Command."""
        return self.name.removeprefix("--").replace("-", "_")


MODEL = "Model"
HTTP = "HTTP"
ROUTER = "Router"
NETWORK = "Network"
ENGINE = "Engine"
REQUESTS = "Requests"
GROUPS = (MODEL, ENGINE, HTTP, REQUESTS, ROUTER, NETWORK)

FLAGS = (
    Flag(name="--model-path", metavar="MODEL", kind="file", group=MODEL, about="the same as the word MODEL"),
    Flag(name="--model-name", metavar="NAME", group=MODEL, about="served as (default: repo, folder or file name)"),
    Flag(
        name="--model-config", metavar="FOLDER", kind="file", group=MODEL, about="the tokenizer for a GGUF file"
    ),
    Flag(
        name="--context-length", metavar="N", kind="int", low=1, group=MODEL, about="fewer tokens than the model allows"
    ),
    Flag(name="--dyn-tool-call-parser", metavar="NAME", group=MODEL, about="how the model writes tool calls"),
    Flag(name="--dyn-reasoning-parser", metavar="NAME", group=MODEL, about="how the model writes its thoughts"),
    Flag(
        name="--kv-cache-block-size", metavar="N", kind="int", low=1, group=ENGINE, about="tokens per KV block (16)"
    ),
    Flag(name="--tensor-parallel-size", metavar="N", kind="int", low=1, high=255, group=ENGINE, about="GPUs (1)"),
    Flag(name="--base-gpu-id", metavar="N", kind="int", high=255, group=ENGINE, about="the first GPU to use (0)"),
    Flag(name="--num-nodes", metavar="N", kind="int", low=1, group=ENGINE, about="machines that run one engine (1)"),
    Flag(name="--node-rank", metavar="N", kind="int", group=ENGINE, about="which of them this is; 0 leads (0)"),
    Flag(
        name="--leader-addr",
        metavar="HOST:PORT",
        group=ENGINE,
        aliases=("--dist-init-addr",),
        about="where node 0 is",
    ),
    Flag(
        name="--extra-engine-args", metavar="FILE", kind="file", group=ENGINE, about="the engine's own, .json or .yaml"
    ),
    Flag(name="--http-host", metavar="ADDRESS", group=HTTP, about="listen here (127.0.0.1); 0.0.0.0 is everywhere"),
    Flag(name="--http-port", metavar="PORT", kind="int", high=65535, group=HTTP, about="and here (8080)"),
    Flag(
        name="--request-template", metavar="FILE", kind="file", group=REQUESTS, about="JSON: what requests leave out"
    ),
    Flag(
        name="--batch-concurrency", metavar="N", kind="int", low=1, high=65536, group=REQUESTS,
        about="batch prompts at a time (64)",
    ),
    Flag(
        name="--migration-limit", metavar="N", kind="int", high=1023, group=REQUESTS,
        about="times a request may change its worker (0)",
    ),
    Flag(
        name="--router-mode", metavar="MODE", group=ROUTER, choices=ROUTER_MODES,
        about="round-robin (default), random, kv …",
    ),
    Flag(
        name="--kv-overlap-score-weight", metavar="X", kind="float", group=ROUTER, about="weight of cached blocks (1)"
    ),
    Flag(
        name="--router-temperature", metavar="X", kind="float", group=ROUTER, about="0 takes the best worker (0)"
    ),
    Flag(
        name="--use-kv-events", metavar="BOOL", kind="bool", group=ROUTER, about="false: guess their caches (true)"
    ),
    Flag(
        name="--discovery-backend", metavar="NAME", group=NETWORK, choices=("memory", "mem", "file", "etcd"),
        about="file (default), etcd, memory",
    ),
    Flag(
        name="--request-plane", metavar="NAME", group=NETWORK, choices=("memory", "mem", "tcp", "nats"),
        about="tcp (default), nats, memory",
    ),
    Flag(
        name="--event-plane", metavar="NAME", group=NETWORK, choices=("memory", "mem", "zmq", "nats"),
        about="zmq (default), nats, memory",
    ),
)  # fmt: skip

BY_WORD = {word: flag for flag in FLAGS for word in (flag.name, *flag.aliases)}
OTHER_WORDS = ("--help", "-h", "--version", "--completion", "-v", "-vv")
SHELLS = ("bash", "zsh", "fish")

INPUTS = ("text", "stdin", "http", "batch:", "dyn://", "none")
ENGINES = ("mistralrs", "echo_core", "echo_full", "mocker", "llamacpp", "vllm", "sglang", "trtllm")
"""Those the guides know; whether this build has one is the registry's to say."""
OLD_ENGINES = {"echo": "echo_full", "llama_cpp": "llamacpp", "tensorrtllm": "trtllm"}
FILE_ENGINES = ("pystr", "pytok")
REMOTE = ("dyn", "auto")
