"""The same prompts from an engine of this rank's own and from one that both ranks share; run by torchrun: FOLDER."""

import faulthandler
import os
import sys
from datetime import timedelta
from pathlib import Path

import torch

from looprl.models import LoopLMConfig, LoopLMForCausalLM
from looprl.rollout.engine import RolloutEngine
from looprl.rollout.sampling import Sampling
from looprl.rollout.shared_engine import SharedEngine
from looprl.training.distributed import join_processes

OPTIONS = {"max_model_len": 64, "max_num_seqs": 16}
GREEDY = Sampling(8, (), temperature=0)
SAMPLED = Sampling(8, ())


def weight_count(engine):
    model = engine.llm.llm_engine.engine_core.engine_core.model_executor.driver_worker.worker.model_runner.model
    return model.model.embed_tokens.weight.numel()


def main(folder):
    faulthandler.dump_traceback_later(120, exit=True)
    join_processes(timedelta(minutes=2))
    rank = int(os.environ["RANK"])
    torch.manual_seed(0)
    config = LoopLMConfig(
        vocab_size=512, hidden_size=64, intermediate_size=128, num_attention_heads=2, num_loops=3, pad_token_id=0
    )
    model = LoopLMForCausalLM(config).eval()
    prompts = [[5 + rank, 9, 40 + length] + [7] * length for length in range(3 + rank)]  # not as many in each rank
    own = RolloutEngine(config, **OPTIONS)
    own.sync_weights(model.named_parameters(), 0)
    found = {"own": own.generate(prompts, GREEDY, seed=0), "own weights": weight_count(own)}
    shared = SharedEngine(config, ranks=2, **OPTIONS)
    shared.sync_weights(model.named_parameters(), 0)
    found |= {"shared": shared.generate(prompts, GREEDY, seed=0), "shared weights": weight_count(shared)}
    found["seeded apart"] = shared.generate(prompts, SAMPLED, seed=rank)
    found["empty"] = shared.generate(prompts if rank else [], GREEDY, seed=0)
    torch.save(found, Path(folder) / f"rank{rank}.pt")


if __name__ == "__main__":
    main(*sys.argv[1:])
