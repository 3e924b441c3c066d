"""Ten steps with a real engine in each rank, whose weights are read back after every sync.

Run by torchrun: synced.py FOLDER STAGE TIED
"""

import faulthandler
import hashlib
import os
import sys
from dataclasses import replace
from pathlib import Path

import torch
from datasets import Dataset
from vllm.model_executor.layers.linear import LinearBase
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead

from looprl.data.tokenizer import build_tokenizer
from looprl.training.callbacks import show_only_progress_line
from looprl.training.config import LoopedGRPOConfig
from looprl.training.trainer import LoopedGRPOTrainer
from looprl.training.zero import gathered
from tests.training.zero.taped import make_model, sharding_everything

HANGS, STEPS = 120, 10


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


def main(folder, stage, tied):
    faulthandler.dump_traceback_later(HANGS, exit=True)
    tokenizer = build_tokenizer()
    args = LoopedGRPOConfig(
        output_dir=folder,
        per_device_train_batch_size=4,
        num_generations=8,  # a group is shared by both ranks
        max_completion_length=12,
        max_steps=STEPS,
        learning_rate=1e-3,
        deepspeed=sharding_everything(int(stage)),
    )
    trainer = LoopedGRPOTrainer(
        make_model(tokenizer, tied == "tied", 64),
        even_tokens,
        args,
        Dataset.from_dict({"prompt": ["Tom has 12 apples.", "Ann has 7 coins."] * 4}),
        processing_class=tokenizer,
    )
    show_only_progress_line(trainer)
    # a third of the vocabulary ends a completion, so that lengths differ
    trainer.vllm_generation.sampling = replace(trainer.sampling(), stop_token_ids=tuple(range(len(tokenizer) // 3)))
    sync_weights = trainer.vllm_generation.sync_weights
    checksums = []

    def sync_and_compare():
        sync_weights()
        ours = dict(gathered(trainer.model))
        if "lm_head.weight" not in ours:
            ours["lm_head.weight"] = ours["model.embed_tokens.weight"]
        theirs = {name: weight[: len(ours[name])] for name, weight in weights_of(trainer.engine).items()}
        checksums.append((checksum(ours), checksum(theirs)))

    trainer.vllm_generation.sync_weights = sync_and_compare
    samples, longest = [], []
    trainer.on_completions = lambda name, rows: samples.append([row["completion"] for row in rows])
    generate = trainer.engine.generate

    def generate_and_measure(*args):
        records = generate(*args)
        longest.append(max(len(record.completion_ids) for record in records))
        return records

    trainer.engine.generate = generate_and_measure
    trainer.train()
    sync_and_compare()
    logs = [row for row in trainer.state.log_history if "loss" in row]
    found = {"checksums": checksums, "logs": logs, "samples": samples, "longest": longest}
    torch.save(found, Path(folder) / f"rank{os.environ['RANK']}.pt")


if __name__ == "__main__":
    main(*sys.argv[1:])
