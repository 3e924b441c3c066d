"""Models, engines and the parity check that the rollout tests share."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor
from transformers import AutoTokenizer

from looprl.data.arithmetic import ArithmeticTask, problems
from looprl.gradients import Estimator
from looprl.models import LoopedForCausalLM, LoopLMConfig, LoopLMForCausalLM, load_model
from looprl.models.loop import run_loops
from looprl.rollout.engine import RolloutEngine
from looprl.rollout.record import RolloutRecord, stack_states
from looprl.rollout.sampling import Sampling

TRAINED = Path(__file__).parents[2] / "recipes/quickstart/model"
BLOCK = 32  # tokens in a block of the paged cache
WINDOW = 192

LAYER = dict(norm="layer", norm_placement="sandwich", injection="orthogonal", tie_word_embeddings=True)
RMS = dict(norm="rms", norm_placement="pre", injection="linear", tie_word_embeddings=False, num_key_value_heads=1)


class Setting(NamedTuple):
    """A model (None: the trained one), its number of loops, and what its engine is told."""

    architecture: dict[str, Any] | None
    num_loops: int
    engine: dict[str, Any] = {}


SETTINGS = {
    "layer-R1": Setting(LAYER, 1),
    "layer-R2": Setting(LAYER, 2),
    "layer-R6": Setting(LAYER, 6),
    "rms-R2": Setting(RMS, 2),
    "rms-R6-chunked": Setting(RMS, 6, dict(max_num_batched_tokens=24)),
    "rms-R6-per-loop": Setting(
        RMS | dict(kv_policy="per_loop"), 6, dict(kv_policy="per_loop", max_num_batched_tokens=24)
    ),
    "trained-R6": Setting(None, 6),
    "layer-R2-endpoint": Setting(LAYER, 2, dict(state_kind="endpoint")),
    # 17 blocks, where one sequence at full length needs 6
    "layer-R2-small-cache": Setting(LAYER, 2, dict(kv_cache_memory_bytes=20 * BLOCK * 512 * 4)),
}


def random_model(architecture: dict[str, Any], num_loops: int, seed: int = 0, **changes: Any) -> LoopLMForCausalLM:
    """A small LoopLM whose every tensor is random, norms and injection too."""
    torch.manual_seed(seed)
    config = LoopLMConfig(vocab_size=97, num_loops=num_loops, max_position_embeddings=256, **architecture, **changes)
    model = LoopLMForCausalLM(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.add_(0.3 * torch.randn_like(parameter))
    return model


class Gaps(NamedTuple):
    """Largest differences between replayed and sampler's log-probs, by the state that the replay starts from."""

    penultimate: float
    endpoint: float


@dataclass
class Sampler:
    """A model and an engine that runs it; the engine is started when it is needed and not open."""

    setting: Setting
    model: LoopedForCausalLM
    _engine: RolloutEngine | None = field(default=None, init=False)
    outputs: list[Any] = field(default_factory=list, init=False)  # of vLLM, in the last `sample`

    @property
    def engine(self) -> RolloutEngine:
        if self._engine is None or self._engine.closed:
            options = dict(max_model_len=WINDOW, max_num_seqs=16) | self.setting.engine
            self._engine = RolloutEngine(self.model.config, num_loops=self.setting.num_loops, **options)
        return self._engine

    def close(self) -> None:
        if self._engine is not None:
            self._engine.close()

    @property
    def trained(self) -> bool:
        return self.setting.architecture is None

    def prompts(self, lengths: Sequence[int], seed: int = 0) -> list[list[int]]:
        """Token ids; the trained model's are problems with as much of the answer, and they end where that ends.

        On what it was not trained on, the trained model amplifies rounding: a loop in fp32 is off by up to 5e-5.
        """
        if self.trained:
            tokenizer = AutoTokenizer.from_pretrained(TRAINED)
            rows = problems(ArithmeticTask(), "train", len(lengths), seed)
            texts = [f"{row['question']}\n{row['answer']}" for row in rows]
            return [tokenizer(text)["input_ids"][:length] for text, length in zip(texts, lengths, strict=True)]
        generator = torch.Generator().manual_seed(seed)
        high = self.model.config.vocab_size - 1  # the last token only ends completions
        return [torch.randint(high, (length,), generator=generator).tolist() for length in lengths]

    @property
    def stop(self) -> int:
        return 2 if self.trained else self.model.config.vocab_size - 1

    def sync(self, model: LoopedForCausalLM | None = None, version: int = 0) -> None:
        self.engine.sync_weights((model or self.model).named_parameters(), version)

    def sample(
        self, prompts: Sequence[Sequence[int]], max_tokens: int = 16, temperature: float = 1.0, seed: int = 0
    ) -> list[RolloutRecord]:
        """Records of one completion per prompt; vLLM's own outputs are left in `outputs`."""
        generate, self.outputs = self.engine.llm.generate, []

        def remember(*args: Any, **kwargs: Any) -> list[Any]:
            outputs = generate(*args, **kwargs)
            self.outputs += outputs
            return outputs

        self.engine.llm.generate = remember
        try:
            return self.engine.generate(prompts, Sampling(max_tokens, (self.stop,), temperature), seed)
        finally:
            self.engine.llm.generate = generate

    @property
    def cached_tokens(self) -> int:
        """Prompt tokens that the last `sample` found in the prefix cache."""
        return sum(output.num_cached_tokens for output in self.outputs)


def padded(records: Sequence[RolloutRecord]) -> tuple[Tensor, Tensor, int, int]:
    """Token ids and mask [B, P + C], prompts padded on the left and completions on the right as in training; P, C."""
    prompts = max(len(record.prompt_ids) for record in records)
    completions = max(len(record.completion_ids) for record in records)
    ids = torch.zeros(len(records), prompts + completions, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for i, record in enumerate(records):
        row = slice(prompts - len(record.prompt_ids), prompts + len(record.completion_ids))
        ids[i, row], mask[i, row] = torch.tensor(record.prompt_ids + record.completion_ids), 1
    return ids, mask, prompts, completions


@torch.no_grad()
def replay_gaps(
    model: LoopedForCausalLM, records: Sequence[RolloutRecord], temperature: float = 1.0, shift: int = 0
) -> Gaps:
    """Replay padded records as the trainer does, from their own states and from one loop later.

    shift: by how many rows the states are moved from the tokens that they belong to.
    """
    ids, mask, prompts, completions = padded(records)
    states = stack_states(records, prompts, completions).roll(shift, dims=1)[:, :-1]
    estimator = Estimator.preset("reuse", neumann_steps=0)

    def one_loop_later(core: Any, state: Tensor, injected: Tensor, context: Any, num_loops: int) -> Tensor:
        return estimator(core, run_loops(core, state, injected, context, 1), injected, context, num_loops)

    def gap(loop_runner: Any) -> float:
        logits = model(
            ids[:, :-1], mask[:, :-1], initial_state=states, loop_runner=loop_runner, logits_to_keep=completions
        ).logits
        logps = torch.log_softmax(logits / temperature, dim=-1)
        replayed = logps.gather(-1, ids[:, prompts:, None]).squeeze(-1)
        return max(
            (row[: len(record.logprobs)] - record.logprobs).abs().max().item()
            for row, record in zip(replayed, records, strict=True)
        )

    return Gaps(gap(estimator), gap(one_loop_later))


@pytest.fixture(scope="session")
def gaps() -> Callable[..., Gaps]:
    return replay_gaps


@pytest.fixture(scope="session")
def make_model() -> Callable[..., LoopLMForCausalLM]:
    """`make_model(setting_name, seed)`: another random model of the same shape."""

    def make(name: str, seed: int = 0, **changes: Any) -> LoopLMForCausalLM:
        setting = SETTINGS[name]
        assert setting.architecture is not None
        return random_model(setting.architecture, setting.num_loops, seed, **changes)

    return make


@pytest.fixture(scope="session")
def make_record() -> Callable[..., RolloutRecord]:
    """A valid record of three prompt and two completion tokens, 8 wide; keywords replace its fields."""

    def make(**changes: Any) -> RolloutRecord:
        fields: dict[str, Any] = dict(
            prompt_ids=(5, 6, 7),
            completion_ids=(8, 9),
            logprobs=torch.tensor([-0.5, -1.5]),
            states=torch.arange(32.0).reshape(4, 8) + 1,
            state_kind="penultimate",
            num_loops=6,
            kv_policy="terminal",
            policy_version=3,
            finish_reason="stop",
        )
        return RolloutRecord(**(fields | changes))

    return make


def make_sampler(name: str) -> Sampler:
    setting = SETTINGS[name]
    if setting.architecture is None:
        return Sampler(setting, load_model(str(TRAINED)).eval())
    return Sampler(setting, random_model(setting.architecture, setting.num_loops))


@pytest.fixture(scope="module")
def sampler(request: pytest.FixtureRequest) -> Iterator[Sampler]:
    """The sampler of the setting that the test's parameter names."""
    sampler = make_sampler(request.param)
    yield sampler
    sampler.close()


@pytest.fixture
def start() -> Iterator[Callable[[str], Sampler]]:
    """`start(setting_name)`: one more sampler. A process has one engine, so this closes the other's."""
    started: list[Sampler] = []

    def make(name: str) -> Sampler:
        started.append(make_sampler(name))
        return started[-1]

    yield make
    for sampler in started:
        sampler.close()
