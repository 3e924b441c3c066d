"""Scoring + backward of every estimator, side by side on one model, loss and set of states."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from looprl.gradients import Estimator, token_log_probs
from looprl.measure.estimator_rows import Case, Row
from looprl.measure.timing import Call, interleaved_seconds, peak_bytes
from looprl.models import LoopedForCausalLM, LoopLMConfig, LoopLMForCausalLM


@dataclass(frozen=True)
class Shape:
    """A micro-batch: sequences, tokens in each, and the model's width."""

    batch: int
    length: int
    hidden_size: int

    def __str__(self) -> str:
        return f"{self.batch}x{self.length}xd{self.hidden_size}"

    def model(self, device: str) -> LoopedForCausalLM:
        """The quickstart's architecture at this width, with random weights; bf16 on a GPU."""
        torch.manual_seed(0)
        config = LoopLMConfig(
            vocab_size=512,
            hidden_size=self.hidden_size,
            intermediate_size=2 * self.hidden_size,
            num_attention_heads=max(self.hidden_size // 64, 2),
        )
        return LoopLMForCausalLM(config).to(device, torch.bfloat16 if device == "cuda" else torch.float32)


SHAPES = (Shape(32, 128, 64), Shape(8, 512, 256))
LOOPS = (6, 16)
CASES = (
    Case.preset("full"),
    Case.preset("full_checkpointed"),
    Case.preset("rltt"),
    Case.preset("truncated", loops_recorded=4),
    Case.preset("recompute", 4),
    Case.preset("reuse", 0),
    Case.preset("reuse", 2),
    Case.preset("reuse", 2, adjoint_solver="least_squares"),
    Case.preset("reuse", 4),
    Case.preset("reuse", "auto"),
)


def bench_updates(
    shapes: Sequence[Shape] = SHAPES, loops: Sequence[int] = LOOPS, repeats: int = 5, device: str = "cpu"
) -> Iterator[Row]:
    """Rows of `Case.row`, with medians in `seconds`, as each (shape, number of loops) is finished."""
    for shape in shapes:
        model = shape.model(device)
        for num_loops in loops:
            calls = {str(index): _update(model, shape, num_loops, case.estimator) for index, case in enumerate(CASES)}
            seconds = interleaved_seconds(calls, repeats, device)
            for (index, call), case in zip(calls.items(), CASES, strict=True):
                yield case.row(shape, num_loops, seconds[index], seconds["0"], peak_bytes(call, device))


def jacobian_product_cost(shape: Shape, repeats: int, device: str) -> float:
    """Seconds of one J^T product over seconds of one gradient-free loop."""
    model = shape.model(device)
    with torch.no_grad():
        ids = _tokens(shape, device)
        context = model.model.context(ids, None)
        injected = model.model.prelude(ids, None, context)
    state = torch.randn_like(injected).requires_grad_()
    output = model.model.core(state, injected, *context)
    vector = torch.randn_like(output)

    def forward() -> None:
        with torch.no_grad():
            model.model.core(state, injected, *context)

    def product() -> Tensor:
        return torch.autograd.grad(output, state, vector, retain_graph=True)[0]

    seconds = interleaved_seconds({"forward": forward, "product": product}, repeats, device)
    return seconds["product"].median / seconds["forward"].median


def _tokens(shape: Shape, device: str) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(3, 512, (shape.batch, shape.length), generator=generator).to(device)


def _update(model: LoopedForCausalLM, shape: Shape, num_loops: int, estimator: Estimator) -> Call:
    """Score the second half of each sequence and backpropagate a policy-gradient loss."""
    ids = _tokens(shape, next(model.parameters()).device.type)
    completion = shape.length // 2
    advantages = torch.randn(shape.batch, 1, generator=torch.Generator().manual_seed(1)).to(ids.device)
    state = None
    if estimator.state_from == "rollout":
        with torch.no_grad():
            state = model(ids[:, :-1], num_loops=num_loops - 1).state

    def update() -> None:
        model.zero_grad(set_to_none=True)
        output = model(
            ids[:, :-1],
            num_loops=num_loops,
            initial_state=state,
            loop_runner=estimator,
            logits_to_keep=completion,
        )
        logps = token_log_probs(output, ids[:, -completion:], loop_weights=estimator.loop_weights).objective
        (-(advantages * logps).sum() / logps.numel()).backward()

    return update
