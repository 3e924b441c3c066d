"""Ten steps with a real engine in each rank, whose weights are read back after every sync; and again from the fifth.

The second training goes on from the first one's checkpoint, and the last rank's engine fails in its eighth step, and
another one while it is given weights in the ninth. The third finds nothing to do.
Run by torchrun: synced.py FOLDER STAGE TIED
"""

import faulthandler
import hashlib
import os
import sys
from dataclasses import replace
from pathlib import Path

import torch
from accelerate.state import AcceleratorState, GradientState
from datasets import Dataset
from vllm.model_executor.layers.linear import LinearBase
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead

from looprl.data.tokenizer import build_tokenizer
from looprl.training.callbacks import show_only_progress_line
from looprl.training.config import LoopedGRPOConfig
from looprl.training.trainer import LoopedGRPOTrainer
from looprl.training.zero import gathered
from tests.training.zero.taped import make_model, sharding_everything

HANGS, STEPS, RESUMED, FAILING = 240, 10, 5, 7


@torch.no_grad()
def weights_of(engine):
    """The engine's weights under the trainer's names; vLLM packs some for the CPU, but their products tell them."""
    model = engine.llm.llm_engine.engine_core.engine_core.model_executor.driver_worker.worker.model_runner.model
    weights = {name: parameter.detach() for name, parameter in model.named_parameters()}
    for name, layer in model.named_modules():
        if isinstance(layer, LinearBase | ParallelLMHead):
            inputs = layer.input_size if isinstance(layer, LinearBase) else layer.embedding_dim
            weights[f"{name}.weight"] = layer.quant_method.apply(layer, torch.eye(inputs)).T
    return weights


def checksum(weights):
    digest = hashlib.sha256()
    for name in sorted(weights):
        digest.update(name.encode() + weights[name].contiguous().numpy().tobytes())
    return digest.hexdigest()


def even_tokens(completion_ids, **columns):
    return [sum(token % 2 == 0 for token in ids) / len(ids) for ids in completion_ids]


class Training:
    """A trainer, and what is seen of it: checksums of its weights and its engine's by sync, samples, their lengths."""

    def __init__(self, folder, stage, tied):
        AcceleratorState._reset_state()
        GradientState._reset_state()
        tokenizer = build_tokenizer()
        args = LoopedGRPOConfig(
            output_dir=folder,
            per_device_train_batch_size=4,
            num_generations=8,  # a group is shared by both ranks
            max_completion_length=12,
            max_steps=STEPS,
            save_steps=RESUMED,
            learning_rate=1e-3,
            deepspeed=sharding_everything(int(stage)),
        )
        self.trainer = LoopedGRPOTrainer(
            make_model(tokenizer, tied == "tied", 64),
            even_tokens,
            args,
            Dataset.from_dict({"prompt": ["Tom has 12 apples.", "Ann has 7 coins."] * 4}),
            processing_class=tokenizer,
            on_completions=lambda name, rows: self.samples.append([row["completion"] for row in rows]),
        )
        show_only_progress_line(self.trainer)
        rollouts = self.trainer.vllm_generation
        # a third of the vocabulary ends a completion, so that lengths differ
        rollouts.sampling = replace(rollouts.sampling, stop_token_ids=tuple(range(len(tokenizer) // 3)))
        self.sync_weights, self.draw = rollouts.sync_weights, rollouts._draw
        rollouts.sync_weights, rollouts._draw = self.sync_and_compare, self.draw_and_measure
        self.checksums, self.samples, self.longest, self.fails_at = [], [], [], None

    def sync_and_compare(self):
        if self.fails_at is not None and self.trainer.state.global_step == self.fails_at + 1:
            self.trainer.engine.llm.collective_rpc = None  # what it gives weights with
        self.sync_weights()
        ours = dict(gathered(self.trainer.model))
        if "lm_head.weight" not in ours:
            ours["lm_head.weight"] = ours["model.embed_tokens.weight"]
        theirs = {name: weight[: len(ours[name])] for name, weight in weights_of(self.trainer.engine).items()}
        self.checksums.append((checksum(ours), checksum(theirs)))

    def draw_and_measure(self, engine, *args):
        if self.fails_at == self.trainer.state.global_step and self.trainer.vllm_generation.restarts == 0:
            engine.llm.generate = None  # what it calls
        records = self.draw(engine, *args)
        self.longest.append(max(len(record.completion_ids) for record in records))
        return records

    def run(self, resume=None, fails_at=None):
        """Train to the end and sync once more; everything that was seen."""
        self.fails_at = fails_at
        self.trainer.train(resume_from_checkpoint=resume)
        self.sync_and_compare()
        logs = [row for row in self.trainer.state.log_history if "loss" in row]
        found = {"checksums": self.checksums, "logs": logs, "samples": self.samples, "longest": self.longest}
        if self.trainer.deepspeed is not None:
            self.trainer.deepspeed.destroy()
        return found | {"restarts": self.trainer.vllm_generation.restarts}


def main(folder, stage, tied):
    faulthandler.dump_traceback_later(HANGS, exit=True)
    rank = int(os.environ["RANK"])
    whole = Training(folder, stage, tied).run()
    fifth = str(Path(folder) / "checkpoints" / f"step-{RESUMED}")
    resumed = Training(folder, stage, tied).run(fifth, FAILING if rank == 1 else None)
    done = Training(folder, stage, tied).run(True)
    torch.save({"whole": whole, "resumed": resumed, "done": done}, Path(folder) / f"rank{rank}.pt")


if __name__ == "__main__":
    main(*sys.argv[1:])
