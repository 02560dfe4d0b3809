"""Prefill of a transformer-shaped stack with random weights: what the matrix products and attention of a model cost here.

Every layer has the model's own shapes: norm, Q K V projection, causal attention, output projection, norm, gated MLP. All layers
use the weights of one, which are far larger than any cache, so memory holds one layer and the times are those of all. There is
no embedding, no rotary step, no head and no sampling, nothing is fused or compiled, and nobody else uses the device: a serving
engine has other fixed costs. A time measured in that engine (`prefill_file`) is the better one wherever there is one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import torch
from torch.nn import functional

from hicachectl.errors import InvariantBroken, UsageError
from hicachectl.runtime.probes.fits import Timing
from hicachectl.runtime.probes.stopping import ProbeStopped, Stop, never

__all__ = ["SHAPES", "ModelShape", "StackTimes", "model_shape", "time_stack"]


@dataclass(frozen=True, slots=True)
class ModelShape:
    """Sizes of a dense model with grouped-query attention, in elements."""

    name: str
    n_layers: int
    hidden: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    intermediate: int

    @property
    def layer_weights(self) -> int:
        """Elements of one layer's weights, as `time_stack` holds them. Pure."""
        q_dim, kv_dim = self.n_heads * self.head_dim, self.n_kv_heads * self.head_dim
        return self.hidden * (2 * q_dim + 2 * kv_dim + 3 * self.intermediate)

    @property
    def token_activations(self) -> int:
        """Elements that one token takes at the widest point of a layer, about: the MLP's gate, up and product, and its input. Pure."""
        return 3 * self.intermediate + 2 * self.hidden


# num_hidden_layers, hidden_size, num_attention_heads, num_key_value_heads, head_dim and intermediate_size of each model's
# config.json on huggingface.co: Qwen/Qwen3-8B, meta-llama/Llama-3.1-8B, meta-llama/Llama-3.3-70B-Instruct.
SHAPES = {
    shape.name: shape
    for shape in (
        ModelShape("qwen3-8b", 36, 4096, 32, 8, 128, 12288),
        ModelShape("llama-3.1-8b", 32, 4096, 32, 8, 128, 14336),
        ModelShape("llama-3.3-70b", 80, 8192, 64, 8, 128, 28672),
    )
}


@dataclass(frozen=True, slots=True)
class StackTimes:
    """Times of the whole stack, each after an uncounted run of the same length; `left_out` are lengths with the reason."""

    shape: ModelShape
    dtype: str
    timings: tuple[Timing, ...]
    left_out: tuple[tuple[int, str], ...]


def model_shape(geometry_name: str) -> ModelShape:
    """Return the shapes of the model that a geometry preset is named after. Pure. Raises UsageError."""
    shape = SHAPES.get(geometry_name)
    if shape is None:
        raise UsageError(
            f"the layers of {geometry_name} are not known",
            where="--prefill synthetic",
            why="only dense models with grouped-query attention have their shapes here",
            hint=f"--geometry {', '.join(SHAPES)}, or --prefill-file with times of your engine",
        )
    return shape


def time_stack(
    shape: ModelShape,
    lengths: Sequence[int],
    *,
    device: str = "cpu",
    rounds: int = 3,
    budget_s: float = 300.0,
    stop: Stop = never,
    told: Callable[[str], None] = lambda text: None,
    clock: Callable[[], float] = perf_counter,
) -> StackTimes:
    """Time prefills of `lengths` tokens, from short to long, `rounds` times each after one uncounted.

    A length whose rounds would pass `budget_s` in all, by the time of the one before, is left out, and so are longer ones; the
    same where the device has no memory for one. Takes device memory for one layer and the activations. bfloat16 on an accelerator,
    float32 on the processor. Raises ProbeStopped when asked to stop, InvariantBroken for a result that is not finite.
    """
    if budget_s <= 0:
        return StackTimes(shape, "", (), tuple((n, "no time was left for it") for n in sorted(set(lengths))))
    stack = _Stack(shape, torch.device(device))
    began, timings, left_out = clock(), list[Timing](), list[tuple[int, str]]()
    last: tuple[int, float] | None = None
    for n in sorted(set(lengths)):
        if left_out:
            left_out.append((n, "longer than one that was left out"))
            continue
        used = clock() - began
        expected = 0.0 if last is None else last[1] * (n / last[0]) ** 2 * (rounds + 1)
        if used + expected > budget_s:
            left_out.append((n, f"up to {expected:.0f} s more, {used:.0f} of {budget_s:.0f} s are used"))
            continue
        told(f"prefill of {n} tokens")
        try:
            seconds = [stack.seconds(n, stop, clock) for _ in range(rounds + 1)][1:]
        except torch.OutOfMemoryError as error:
            left_out.append((n, str(error).splitlines()[0]))
            continue
        timings += [Timing(n, one) for one in seconds]
        last = (n, min(seconds))
    return StackTimes(shape, str(stack.dtype).removeprefix("torch."), tuple(timings), tuple(left_out))


class _Stack:
    """One layer's weights on a device, run as often as the model has layers."""

    def __init__(self, shape: ModelShape, device: torch.device) -> None:
        self.shape, self.device = shape, device
        self.dtype = torch.float32 if device.type == "cpu" else torch.bfloat16
        self._module: Any = None if device.type == "cpu" else torch.get_device_module(device)
        self._generator = torch.Generator(device=device).manual_seed(0)
        q_dim, kv_dim = shape.n_heads * shape.head_dim, shape.n_kv_heads * shape.head_dim
        self._qkv = self._weight(shape.hidden, q_dim + 2 * kv_dim)
        self._out = self._weight(q_dim, shape.hidden)
        self._gate_up = self._weight(shape.hidden, 2 * shape.intermediate)
        self._down = self._weight(shape.intermediate, shape.hidden)
        self._norm = torch.ones(shape.hidden, device=device, dtype=self.dtype)

    def seconds(self, n_tokens: int, stop: Stop, clock: Callable[[], float]) -> float:
        """Run a prefill and return its time on the host's clock, from the first call until the device is done."""
        x = self._weight(n_tokens, self.shape.hidden)
        self._wait()
        began = clock()
        with torch.inference_mode():
            for _ in range(self.shape.n_layers):
                if stop():
                    raise ProbeStopped
                x = self._layer(x)
        self._wait()
        took = clock() - began
        if not bool(torch.isfinite(x).all()):
            raise InvariantBroken(f"a prefill of {n_tokens} tokens is not finite", where=self.shape.name)
        return took

    def _layer(self, x: torch.Tensor) -> torch.Tensor:
        shape, n = self.shape, x.shape[0]
        qkv = functional.rms_norm(x, (shape.hidden,), self._norm) @ self._qkv
        heads = qkv.view(n, -1, shape.head_dim).transpose(0, 1)
        q, k, v = torch.split(heads, [shape.n_heads, shape.n_kv_heads, shape.n_kv_heads])
        groups = shape.n_heads // shape.n_kv_heads
        k, v = k.repeat_interleave(groups, 0), v.repeat_interleave(groups, 0)
        seen = functional.scaled_dot_product_attention(q[None], k[None], v[None], is_causal=True)[0]
        x = x + seen.transpose(0, 1).reshape(n, -1) @ self._out
        gate, up = (functional.rms_norm(x, (shape.hidden,), self._norm) @ self._gate_up).chunk(2, dim=-1)
        down: torch.Tensor = x + (functional.silu(gate) * up) @ self._down
        return down

    def _weight(self, rows: int, columns: int) -> torch.Tensor:
        made = torch.randn(rows, columns, generator=self._generator, device=self.device, dtype=self.dtype)
        scaled: torch.Tensor = made * rows**-0.5
        return scaled

    def _wait(self) -> None:
        if self._module is not None:
            self._module.synchronize()
