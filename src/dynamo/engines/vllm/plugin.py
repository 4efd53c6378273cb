"""What this package does in vLLM's own processes, which call it by the entry point `vllm.general_plugins`."""

from __future__ import annotations

from dynamo.engines.vllm.nodes.orphans import end_with_worker, is_marked


def prepare_process() -> None:
    if is_marked():
        end_with_worker()
        # Not where vLLM runs without a worker of ours.
        from dynamo.engines.vllm.grammars import resume_grammars
        from dynamo.engines.vllm.nodes.cpu_ranks import learn_ranks
        from dynamo.engines.vllm.steps import report_steps

        learn_ranks()
        resume_grammars()
        report_steps()
