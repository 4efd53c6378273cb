"""The network, with parameter names and arithmetic of Hugging Face's LlamaForCausalLM."""

from dataclasses import asdict, dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class Shape:
    vocab_size: int = 2048
    hidden_size: int = 256
    intermediate_size: int = 640
    num_hidden_layers: int = 5
    num_attention_heads: int = 8
    num_key_value_heads: int = 4
    head_dim: int = 32
    max_position_embeddings: int = 2048
    rms_norm_eps: float = 1e-5
    rope_theta: float = 10000.0

    def config(self) -> dict[str, Any]:
        return {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            **asdict(self),
            "rope_scaling": None,
            "hidden_act": "silu",
            "tie_word_embeddings": True,
            "attention_bias": False,
            "attention_dropout": 0.0,
            "mlp_bias": False,
            "initializer_range": 0.02,
            "bos_token_id": None,
            "eos_token_id": 2,
            "pad_token_id": 0,
            "pretraining_tp": 1,
            "torch_dtype": "float16",
            "use_cache": True,
        }


class RMSNorm(nn.Module):
    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        scaled = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)
        return self.weight * scaled.to(x.dtype)


class Attention(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.size = shape.num_attention_heads, shape.num_key_value_heads, shape.head_dim
        self.q_proj = nn.Linear(shape.hidden_size, self.heads * self.size, bias=False)
        self.k_proj = nn.Linear(shape.hidden_size, self.kv_heads * self.size, bias=False)
        self.v_proj = nn.Linear(shape.hidden_size, self.kv_heads * self.size, bias=False)
        self.o_proj = nn.Linear(self.heads * self.size, shape.hidden_size, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        batch, length, _ = x.shape
        q = rotate(self.q_proj(x).view(batch, length, self.heads, self.size).transpose(1, 2), cos, sin)
        k = rotate(self.k_proj(x).view(batch, length, self.kv_heads, self.size).transpose(1, 2), cos, sin)
        v = self.v_proj(x).view(batch, length, self.kv_heads, self.size).transpose(1, 2)
        groups = self.heads // self.kv_heads
        k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o_proj(mixed.transpose(1, 2).reshape(batch, length, -1))


class MLP(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(shape.hidden_size, shape.intermediate_size, bias=False)
        self.up_proj = nn.Linear(shape.hidden_size, shape.intermediate_size, bias=False)
        self.down_proj = nn.Linear(shape.intermediate_size, shape.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(shape.hidden_size, shape.rms_norm_eps)
        self.self_attn = Attention(shape)
        self.post_attention_layernorm = RMSNorm(shape.hidden_size, shape.rms_norm_eps)
        self.mlp = MLP(shape)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), cos, sin)
        return x + self.mlp(self.post_attention_layernorm(x))


class LlamaModel(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(shape.vocab_size, shape.hidden_size)
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.num_hidden_layers))
        self.norm = RMSNorm(shape.hidden_size, shape.rms_norm_eps)
        cos, sin = rope_tables(shape)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed_tokens(ids)
        cos, sin = self.cos[: ids.shape[1]], self.sin[: ids.shape[1]]
        for layer in self.layers:
            x = layer(x, cos, sin)
        return self.norm(x)


class Llama(nn.Module):
    """`model(ids)` returns hidden states; `logits` turns selected ones into scores (embeddings are tied)."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.model = LlamaModel(shape)
        for name, weight in self.named_parameters():
            if weight.ndim > 1:
                deep = name.endswith(("o_proj.weight", "down_proj.weight"))
                nn.init.normal_(weight, std=0.02 / (2 * shape.num_hidden_layers) ** 0.5 if deep else 0.02)

    def forward(self, ids: Tensor) -> Tensor:
        return self.model(ids)

    def logits(self, hidden: Tensor) -> Tensor:
        return F.linear(hidden, self.model.embed_tokens.weight.to(hidden.dtype))


def rope_tables(shape: Shape) -> tuple[Tensor, Tensor]:
    frequencies = shape.rope_theta ** (-torch.arange(0, shape.head_dim, 2).float() / shape.head_dim)
    angles = torch.outer(torch.arange(shape.max_position_embeddings).float(), frequencies)
    angles = torch.cat((angles, angles), -1)
    return angles.cos(), angles.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    turned = torch.cat((-x[..., half:], x[..., :half]), -1)
    return (x * cos + turned * sin).to(x.dtype)


@torch.no_grad()
def greedy(model: Llama, prompts: list[list[int]], end: int, most: int = 160, rows: int = 512) -> list[list[int]]:
    """Answers to many prompts at once, recomputing everything at each step: simple, and fast enough on a GPU."""
    device = model.model.embed_tokens.weight.device
    order = sorted(range(len(prompts)), key=lambda number: len(prompts[number]))
    answers: list[list[int]] = [[] for _ in prompts]
    for first in range(0, len(order), rows):
        chosen = order[first : first + rows]
        longest = max(len(prompts[number]) for number in chosen) + most
        ids = torch.zeros(len(chosen), longest, dtype=torch.long)
        for row, number in enumerate(chosen):
            ids[row, : len(prompts[number])] = torch.tensor(prompts[number])
        ids = ids.to(device)
        lengths = torch.tensor([len(prompts[number]) for number in chosen], device=device)
        running = torch.arange(len(chosen), device=device)
        for _ in range(most):
            ends = lengths[running]
            hidden = model(ids[running, : int(ends.max())])
            token = model.logits(hidden[torch.arange(len(running), device=device), ends - 1]).argmax(-1)
            ids[running, ends] = token
            lengths[running] += 1
            running = running[token != end]
            if not len(running):
                break
        for row, number in enumerate(chosen):
            answers[number] = ids[row, len(prompts[number]) : int(lengths[row])].tolist()
    return answers
