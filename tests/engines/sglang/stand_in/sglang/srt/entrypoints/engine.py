"""The engine's entry point. A node that follows starts a real process, as SGLang starts its schedulers."""

from __future__ import annotations

import logging
import subprocess
import tempfile
import threading
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

from sglang.srt.managers.tokenizer_manager import CACHE_TOKENS, TokenizerManager


def init_tokenizer_manager(server_args: Any, port_args: Any) -> tuple[TokenizerManager, None]:
    return TokenizerManager(server_args, port_args), None


class Engine:
    init_tokenizer_manager_func = staticmethod(init_tokenizer_manager)
    run_detokenizer_process_func = staticmethod(lambda *_: None)
    started: list[Engine] = []  # noqa: RUF012
    fails: str | None = None

    def __init__(self, **kwargs: Any) -> None:
        self.server_args = kwargs["server_args"]
        self.thread = threading.current_thread()
        logging.basicConfig(format="SGLang: %(message)s", force=True)
        if self.fails:
            raise RuntimeError(self.fails)
        self.processes: list[subprocess.Popen[bytes]] = []
        self.tokenizer_manager: Any = None
        if self.server_args.node_rank:
            self.processes.append(subprocess.Popen(["sleep", "1000"]))
        else:
            self._sockets = tempfile.TemporaryDirectory(prefix="stand-in-")
            names = {name: f"ipc://{self._sockets.name}/{name}" for name in ("tokenizer", "detokenizer")}
            ports = SimpleNamespace(**{f"{name}_ipc_name": address for name, address in names.items()})
            self._launch_detokenizer_subprocesses(
                server_args=self.server_args, port_args=ports,
                run_detokenizer_process_func=self.run_detokenizer_process_func,
            )  # fmt: skip
            self.tokenizer_manager, _ = self.init_tokenizer_manager_func(self.server_args, ports)
        self._scheduler_init_result = SimpleNamespace(scheduler_infos=[{"max_total_num_tokens": CACHE_TOKENS}])
        self.was_shut_down = False
        Engine.started.append(self)

    @classmethod
    def _launch_detokenizer_subprocesses(
        cls, server_args: Any, port_args: Any, run_detokenizer_process_func: Any
    ) -> tuple[list[Any], list[str]]:
        raise NotImplementedError("the stand-in has no detokenizer")

    def get_all_child_pids(self) -> list[int]:
        return [process.pid for process in self.processes]

    async def async_generate(
        self,
        prompt: Any = None,
        sampling_params: Any = None,
        input_ids: Any = None,
        image_data: Any = None,
        audio_data: Any = None,
        video_data: Any = None,
        mm_hashes: Any = None,
        mm_content_hashes: Any = None,
        return_logprob: Any = False,
        logprob_start_len: Any = None,
        top_logprobs_num: Any = None,
        token_ids_logprob: Any = None,
        lora_path: Any = None,
        custom_logit_processor: Any = None,
        require_reasoning: bool = False,
        return_hidden_states: Any = False,
        return_routed_experts: bool = False,
        routed_experts_start_len: int = 0,
        stream: bool = False,
        bootstrap_host: Any = None,
        bootstrap_port: Any = None,
        bootstrap_room: Any = None,
        routed_dp_rank: int | None = None,
        disagg_prefill_dp_rank: int | None = None,
        kv_hints: Any = None,
        data_parallel_rank: int | None = None,
        external_trace_header: Any = None,
        rid: Any = None,
        session_params: Any = None,
        priority: int | None = None,
        session_id: str | None = None,
        *,
        cache_salt: Any = None,
    ) -> AsyncIterator[dict[str, Any]]:
        given = {name: value for name, value in locals().items() if name != "self"}
        assert stream
        chunks: AsyncIterator[dict[str, Any]] = self.tokenizer_manager.generate_request(SimpleNamespace(**given), None)
        return chunks

    def shutdown(self) -> None:
        assert threading.current_thread() is self.thread
        self.was_shut_down = True
        for process in self.processes:
            process.kill()
            process.wait()
        if self.tokenizer_manager is not None:
            self.tokenizer_manager.close()
            self._sockets.cleanup()
