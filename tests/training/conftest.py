"""One trainer with a real engine, and rollouts whose lengths a test chooses."""

from dataclasses import replace

import pytest
import torch
from datasets import Dataset

from looprl.data.tokenizer import build_tokenizer
from looprl.models import LoopLMConfig, LoopLMForCausalLM
from looprl.training.config import LoopedGRPOConfig
from looprl.training.trainer import LoopedGRPOTrainer

PROMPTS = ["Tom has 12 apples. Tom buys 3.\n", "Ann has 7 coins.\n"]
GROUP = 8


def make_model(tokenizer, **overrides):
    torch.manual_seed(0)
    config = LoopLMConfig(
        **{
            "vocab_size": len(tokenizer),
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_attention_heads": 1,
            "num_loops": 3,
            "pad_token_id": tokenizer.pad_token_id,
            "bos_token_id": tokenizer.bos_token_id,
            "eos_token_id": tokenizer.eos_token_id,
            **overrides,
        }
    )
    return LoopLMForCausalLM(config)


def sums_modulo_seven(completion_ids, **columns):
    """A reward that tells almost all completions apart."""
    return [float(sum(ids) % 7) for ids in completion_ids]


def make_trainer(folder, reward, tokenizer=None, model=None, **settings):
    tokenizer = tokenizer or build_tokenizer()
    args = LoopedGRPOConfig(
        **{
            "output_dir": str(folder),
            "per_device_train_batch_size": 2 * GROUP,
            "num_generations": GROUP,
            "max_completion_length": 8,
            "neumann_steps": 2,
            "learning_rate": 1e-3,
            **settings,
        }
    )
    rows = Dataset.from_dict({"prompt": PROMPTS * 4})
    return LoopedGRPOTrainer(model or make_model(tokenizer), reward, args, rows, processing_class=tokenizer)


class Setting:
    """A trainer, its reward, and rollouts cut to chosen lengths."""

    def __init__(self, trainer, rewards):
        self.trainer, self.rewards = trainer, rewards

    def records(self, lengths, prompts=None):
        """Records of the engine whose first `lengths[i]` completion tokens are kept; a prefix is a rollout too."""
        trainer = self.trainer
        trainer.vllm_generation.sync_weights()
        prompts = prompts or [PROMPTS[i // GROUP] for i in range(len(lengths))]
        ids = trainer.processing_class(prompts)["input_ids"]
        sampling = replace(trainer.sampling(), stop_token_ids=())
        full = trainer.engine.generate(ids, sampling, seed=0)
        return prompts, [
            replace(
                record,
                completion_ids=record.completion_ids[:length],
                logprobs=record.logprobs[:length],
                states=record.states[: len(record.prompt_ids) + max(length, 1) - 1],
            )
            for record, length in zip(full, lengths, strict=True)
        ]

    def batch(self, records, prompts, rewards):
        """The rollout batch that TRL makes of these records, through the trainer's own path."""
        self.rewards[:] = rewards
        self.trainer.model.train()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(self.trainer.engine, "generate", lambda *_: records)
            return self.trainer._generate_and_score_completions([{"prompt": prompt} for prompt in prompts])

    def gradients(self, batch, micro_batches=1):
        """Gradients of the loss, accumulated over equal micro-batches as TRL does."""
        from trl.trainer.utils import split_tensor_dict

        self.trainer.model.zero_grad()
        self.trainer.current_gradient_accumulation_steps = micro_batches
        for part in split_tensor_dict(batch, micro_batches):
            self.trainer.compute_loss(self.trainer.model, part).backward()
        return {name: p.grad.clone() for name, p in self.trainer.model.named_parameters() if p.grad is not None}


@pytest.fixture(scope="module")
def setting(tmp_path_factory):
    rewards = []

    def given(prompts, **kwargs):
        assert len(prompts) == len(rewards)
        return list(rewards)

    trainer = make_trainer(tmp_path_factory.mktemp("run"), given)
    yield Setting(trainer, rewards)
    trainer.engine.close()
