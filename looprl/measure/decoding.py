"""Likelihood and states of given text under cached decoding, as a rollout worker would see them.

The prompt goes in as one chunk, then the text token by token: the reference schedule of both K/V policies.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import DynamicCache

from looprl.data.documents import TokenBatch
from looprl.gradients.estimator import ReplayFrom
from looprl.models.contract import LoopedForCausalLM, at_least_fp32
from looprl.models.kv_bank import make_kv_bank
from looprl.models.loop import run_loops


@dataclass(frozen=True)
class Decoded:
    """logps: [B, C], of each token after the prompt, 0 for padding. states: [B, T - 1, d] of every token that was fed
    (the last one never is), by which state they are.
    """

    logps: Tensor
    states: Mapping[ReplayFrom, Tensor]


@torch.no_grad()
def decode(model: LoopedForCausalLM, batch: TokenBatch, num_loops: int, kv_policy: str) -> Decoded:
    """Feed the batch with R = `num_loops` under `kv_policy`, which the model's own does not influence."""
    base, length = model.model, batch.input_ids.shape[1]
    cache = DynamicCache()
    logps, penultimates, endpoints = [], [], []
    for end in range(batch.prompt_length, length):
        start = cache.get_seq_length()
        ids, mask = batch.input_ids[:, start:end], batch.attention_mask[:, :end]
        bank = make_kv_bank(kv_policy, cache, model.config.num_hidden_layers)
        context = base.context(ids, mask, cache)._replace(bank=bank)
        injected = base.prelude(ids, mask, context)
        penultimates.append(run_loops(base.core, base.initial_state(injected), injected, context, num_loops - 1))
        endpoints.append(base.core(penultimates[-1], injected, *context))
        logits = at_least_fp32(model.lm_head(base.coda(endpoints[-1], context)[:, -1]))
        logps.append(logits.log_softmax(dim=-1).gather(-1, batch.input_ids[:, end : end + 1]))
    states: dict[ReplayFrom, Tensor] = {
        "penultimate": torch.cat(penultimates, dim=1),
        "endpoint": torch.cat(endpoints, dim=1),
    }
    return Decoded(torch.where(batch.follows, torch.cat(logps, dim=1), 0), states)
