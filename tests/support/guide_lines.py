"""Every command line of the five documents dynamo-run is built after, and what comes of it here.

Documents: A the readme of March 2025, B the guide of May 2025, C the guide of July 2025, D its last edition, E the
project's readme of July 2025. Lines that install, compile or patch other software are not ours to run.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

Outcome = Literal["chat", "pipe", "server", "ingress", "worker", "absent", "batch", "help", "curl", "frontend"]


class Line(NamedTuple):
    command: str
    documents: str
    outcome: Outcome


LINES = [
    Line("dynamo-run --help", "ABCD", "help"),
    Line("dynamo-run Qwen/Qwen2.5-3B-Instruct", "A", "chat"),
    Line("dynamo-run Qwen/Qwen3-0.6B", "BCD", "chat"),
    Line("dynamo run Qwen/Qwen3-0.6B", "B", "chat"),
    Line("dynamo-run Qwen/Qwen3-4B", "BCD", "chat"),
    Line("dynamo-run in=text out=mistralrs Qwen/Qwen3-4B", "BCD", "chat"),
    Line("dynamo-run Llama-3.2-1B-Instruct-Q4_K_M.gguf", "A", "chat"),
    Line("dynamo-run Llama-3.2-3B-Instruct-Q4_K_M.gguf", "C", "chat"),
    Line("dynamo run Llama-3.2-3B-Instruct-Q4_K_M.gguf", "B", "chat"),
    Line("dynamo-run in=text out=llamacpp -vv", "C", "chat"),
    Line('echo "What is the capital of Costa Rica?" | dynamo-run Qwen/Qwen3-0.6B', "D", "pipe"),
    Line("dynamo-run in=http out=mistralrs -v", "CD", "server"),
    Line("dynamo-run in=http Llama-3.2-1B-Instruct-Q4_K_M.gguf", "A", "server"),
    Line("dynamo-run in=http out=mistralrs Llama-3.2-3B-Instruct-Q4_K_M.gguf", "C", "server"),
    Line("dynamo run in=http out=mistralrs Llama-3.2-3B-Instruct-Q4_K_M.gguf", "B", "server"),
    Line("dynamo-run in=http out=mistralrs Qwen/Qwen3-0.6B", "D", "server"),
    Line("curl localhost:8080/v1/models", "ABCD", "curl"),
    Line(
        """curl -d '{"model": "Llama-3.2-1B-Instruct-Q4_K_M", "max_tokens": 2049, "messages":[{"role":"user", """
        """"content": "What is the capital of South Africa?" }]}' -H 'Content-Type: application/json' """
        """http://localhost:8080/v1/chat/completions""",
        "A",
        "curl",
    ),
    Line(
        """curl -d '{"model": "Llama-3.2-3B-Instruct-Q4_K_M", "max_completion_tokens": 2049, "messages":"""
        """[{"role":"user", "content": "What is the capital of South Africa?" }]}' -H 'Content-Type: """
        """application/json' http://localhost:8080/v1/chat/completions""",
        "BCD",
        "curl",
    ),
    Line("dynamo-run in=http out=dyn", "CD", "ingress"),
    Line("dynamo-run in=http out=auto", "D", "ingress"),
    Line("dynamo-run in=http out=dyn://llama3B_pool", "AB", "ingress"),
    Line("dynamo-run in=http out=dyn --router-mode kv", "CD", "ingress"),
    Line("dynamo-run in=dyn://llama3B_pool out=mistralrs ~/llm_models/Llama-3.2-3B-Instruct", "A", "worker"),
    Line("dynamo-run in=dyn://llama3B.backend.generate out=mistralrs ~/llms/Llama-3.2-3B-Instruct", "D", "worker"),
    Line("dynamo-run in=dyn://... out=mistralrs ~/llms/Llama-3.2-3B-Instruct --migration-limit=3", "CD", "worker"),
    Line("dynamo-run in=dyn://llama3B_pool out=vllm ~/llms/Llama-3.2-3B-Instruct", "B", "absent"),
    Line("dynamo-run in=dyn://llama3B.backend.generate out=vllm ~/llms/Llama-3.2-3B-Instruct", "C", "absent"),
    Line(
        "dynamo-run in=dyn://qwen3-32b.backend.generate out=sglang /data/Qwen3-32B --tensor-parallel-size 2 "
        "--base-gpu-id 0",
        "CD",
        "absent",
    ),
    Line(
        "dynamo-run in=dyn://qwen3-32b.backend.generate out=sglang /data/Qwen3-32B --tensor-parallel-size 2 "
        "--base-gpu-id 2",
        "CD",
        "absent",
    ),
    Line("dynamo-run in=dyn://qwen3-32b.backend.generate out=vllm /data/Qwen3-32B", "CD", "absent"),
    Line("dynamo-run in=dyn://llama3-1-8b.backend.generate out=vllm /data/Llama-3.1-8B-Instruct/", "CD", "absent"),
    Line("dynamo-run in=dyn://dynamo.endpoint.generate out=vllm /data/llms/Qwen/Qwen3-4B", "C", "absent"),
    Line("dynamo-run out=vllm Qwen/Qwen3-4B", "C", "absent"),
    Line("dynamo run out=vllm Qwen/Qwen3-4B", "B", "absent"),
    Line("./dynamo-run in=http out=vllm ~/llms/Llama-3.2-3B-Instruct/", "BC", "absent"),
    Line("./dynamo-run in=http out=vllm --model-path ~/llm_models/Llama-3.2-3B-Instruct/", "A", "absent"),
    Line(
        "./dynamo-run in=http out=vllm --model-path ~/llm_models/Llama-3.2-3B-Instruct-Q6_K.gguf "
        "--model-config ~/llm_models/Llama-3.2-3B-Instruct/",
        "A",
        "absent",
    ),
    Line(
        "dynamo-run in=text out=vllm ~/llm_models/Llama-3.2-3B-Instruct/ --tensor-parallel-size 8 --num-nodes 2 "
        "--leader-addr 10.217.98.122:6539 --node-rank 0",
        "A",
        "absent",
    ),
    Line(
        "dynamo-run in=none out=vllm ~/llm_models/Llama-3.2-3B-Instruct/ --num-nodes 2 "
        "--leader-addr 10.217.98.122:6539 --node-rank 1",
        "A",
        "absent",
    ),
    Line("dynamo-run out=vllm ~/llms/DeepSeek-R1-Distill-Llama-70B/ --tensor-parallel-size 16", "BC", "absent"),
    Line("dynamo-run out=llamacpp ~/llms/gemma-3-1b-it-q4_0.gguf", "BC", "chat"),
    Line("dynamo-run out=llamacpp ~/llms/Qwen3-0.6B-Q8_0.gguf", "BC", "chat"),
    Line(
        "dynamo-run out=llamacpp ~/llms/Llama-4-Scout-17B-16E-Instruct-UD-IQ1_S.gguf --context-length 32768 "
        "--model-config ~/llms/Llama-4-Scout-17B-16E-Instruct",
        "C",
        "chat",
    ),
    Line(
        "dynamo-run out=llamacpp ~/llms/Llama-4-Scout-17B-16E-Instruct-UD-IQ1_S.gguf "
        "--model-config ~/llms/Llama-4-Scout-17B-16E-Instruct",
        "B",
        "chat",
    ),
    Line(
        "dynamo-run out=llama_cpp --model-path ~/llm_models/Llama-3.2-3B-Instruct-Q6_K.gguf "
        "--model-config ~/llm_models/Llama-3.2-3B-Instruct/",
        "A",
        "chat",
    ),
    Line(
        "dynamo-run in=http out=sglang --model-path ~/llm_models/DeepSeek-R1-Distill-Llama-70B/ "
        "--tensor-parallel-size 8 --num-nodes 2 --node-rank 0 --dist-init-addr 10.217.98.122:9876",
        "A",
        "absent",
    ),
    Line(
        "dynamo-run in=none out=sglang --model-path ~/llm_models/DeepSeek-R1-Distill-Llama-70B/ "
        "--tensor-parallel-size 8 --num-nodes 2 --node-rank 1 --dist-init-addr 10.217.98.122:9876",
        "A",
        "absent",
    ),
    Line(
        "./dynamo-run in=http out=sglang --model-path ~/llms/DeepSeek-R1-Distill-Llama-70B/ --tensor-parallel-size 8",
        "BC",
        "absent",
    ),
    Line("dynamo-run out=sglang ~/llms/Llama-4-Scout-17B-16E-Instruct/ --tensor-parallel-size 8", "BC", "absent"),
    Line("dynamo-run out=sglang <model> --tensor-parallel-size 4 --base-gpu-id 4", "BC", "absent"),
    Line(
        "dynamo-run out=sglang /data/models/DeepSeek-R1-Distill-Llama-70B/ --tensor-parallel-size 16 --node-rank 0 "
        "--num-nodes 2 --leader-addr 10.217.98.122:5000",
        "BC",
        "absent",
    ),
    Line("dynamo-run out=sglang ~/llms/Llama-3.2-3B-Instruct --extra-engine-args sglang_extra.json", "BC", "absent"),
    Line(
        "dynamo-run in=text out=trtllm --model-path /app/trtllm_engine/ "
        "--model-config ~/llm_models/Llama-3.2-3B-Instruct/",
        "A",
        "absent",
    ),
    Line("dynamo-run in=http out=trtllm TinyLlama/TinyLlama-1.1B-Chat-v1.0", "C", "absent"),
    Line(
        "dynamo-run in=http out=trtllm TinyLlama/TinyLlama-1.1B-Chat-v1.0 --extra-engine-args trtllm_extra.yaml",
        "C",
        "absent",
    ),
    Line("dynamo-run out=pystr:/home/user/my_python_engine.py", "A", "chat"),
    Line(
        "dynamo run out=pystr:/workspace/examples/tensorrt_llm/engines/trtllm_engine.py -- --engine_args "
        "/workspace/examples/tensorrt_llm/configs/llm_api_config.yaml",
        "B",
        "chat",
    ),
    Line("dynamo-run out=pytok:/home/user/my_python_engine.py --model-path <hf-repo-checkout>", "A", "chat"),
    Line("dynamo-run in=http out=echo_core --model-path <hf-repo-checkout>", "ABC", "server"),
    Line(
        """curl -N -d '{"nvext": {"ignore_eos": true}, "stream": true, "model": "Qwen2.5-3B-Instruct", """
        """"max_completion_tokens": 4096, "messages":[{"role":"user", "content": "Tell me a story" }]}' ...""",
        "ABC",
        "curl",
    ),
    Line("dynamo-run in=http out=echo_full", "A", "server"),
    Line("dynamo-run in=http out=echo_full --model-name my_model", "BC", "server"),
    Line("DYN_TOKEN_ECHO_DELAY_MS=1 dynamo-run in=http out=echo_full", "ABC", "server"),
    Line("DYN_TOKEN_ECHO_DELAY_MS=1 dynamo-run in=http out=echo", "D", "server"),
    Line("dynamo-run in=batch:prompts.jsonl out=llamacpp <model>", "BC", "batch"),
    Line("dynamo-run in=batch:prompts.jsonl <model>", "D", "batch"),
    Line(
        "dynamo-run in=dyn://dynamo.mocker.generate out=mocker --model-path TinyLlama/TinyLlama-1.1B-Chat-v1.0 "
        "--extra-engine-args mocker_args.json",
        "CD",
        "worker",
    ),
    Line("python -m dynamo.frontend --interactive", "E", "frontend"),
    Line("python -m dynamo.frontend --http-port 8080", "E", "ingress"),
    Line("python -m dynamo.sglang.worker Qwen/Qwen3-4B", "E", "absent"),
    Line("python -m dynamo.sglang.worker --model-path ~/llms/Qwen3-0.6B", "E", "absent"),
    Line("python -m dynamo.sglang.worker deepseek-ai/DeepSeek-R1-Distill-Llama-8B", "E", "absent"),
    Line("python -m dynamo.sglang.worker --help", "E", "help"),
    Line("python -m dynamo.vllm --help", "E", "help"),
    Line("python -m dynamo.trtllm --help", "E", "help"),
    Line("python -m dynamo.llama_cpp --model-path ~/llms/Qwen3-0.6B-Q8_0.gguf", "E", "worker"),
    Line(
        """curl localhost:8080/v1/chat/completions -H "Content-Type: application/json" -d '{"model": """
        """"deepseek-ai/DeepSeek-R1-Distill-Llama-8B", "messages": [{"role": "user", "content": "Hello, how are """
        """you?"}], "stream":false, "max_tokens": 300}'""",
        "E",
        "curl",
    ),
]
