"""The trainer on rollouts from a tape, so that any number of processes and any ZeRO stage see the same ones.

Run by torchrun: taped.py JOBS.json FOLDER
"""

import faulthandler
import json
import os
import sys
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
from accelerate.state import AcceleratorState, GradientState
from datasets import Dataset
from deepspeed.utils import safe_get_full_grad
from transformers import TrainerCallback

from looprl.data.tokenizer import build_tokenizer
from looprl.errors import UserError
from looprl.models import LoopLMConfig, LoopLMForCausalLM
from looprl.rollout.record import RolloutRecord
from looprl.training.callbacks import show_only_progress_line
from looprl.training.config import LoopedGRPOConfig
from looprl.training.trainer import LoopedGRPOTrainer
from looprl.training.zero import gathered, zero_settings

GROUP, ROWS, LENGTH, LOOPS = 4, 16, 6, 4
PROMPTS = [f"Tom has {number} apples." for number in range(20)]  # of five steps
HANGS = 60  # seconds after which a training is taken to hang


@dataclass(frozen=True)
class Job:
    """One training. stage: of ZeRO, 0 for none. processes: the launcher's. tape: which rollouts are on it."""

    stage: int = 0
    accumulation: int = 1
    neumann_steps: int | str = 4
    tied: bool = True
    checkpointing: bool = False
    tape: str = "mixed"
    width: int = 32
    steps: int = 5
    estimator: str = "reuse"
    offload: bool = False
    control: bool = False
    nonfinite: str = ""  # steps before which the last rank's loss is infinite
    processes: int = 2

    @property
    def name(self):
        return "-".join(str(value) for value in asdict(self).values())


class Tape:
    """Rollouts of random tokens and of random lengths, with the states that the untrained model gives them.

    `mixed` has an empty completion and a group of equal rewards too. `idle_rank`: the first half of each batch has
    nothing to learn from, all rewards being equal. `empty_rank`: it has no tokens at all.
    """

    def __init__(self, model, tokenizer, trainer, kind):
        self.trainer, self.index, self.drawn = trainer, 0, {}
        self.records = {}
        generator = torch.Generator().manual_seed(0)
        prompts = PROMPTS[: trainer.args.max_steps * ROWS // GROUP]
        for number, prompt in enumerate(tokenizer(prompts)["input_ids"]):
            first_half = number % (ROWS // GROUP) < ROWS // GROUP // 2
            for _ in range(GROUP):
                length = int(torch.randint(1, LENGTH + 1, (), generator=generator))
                tokens = torch.randint(4, len(tokenizer), (length,), generator=generator).tolist()
                if (kind == "mixed" and number == 1) or (kind == "idle_rank" and first_half):
                    tokens[0] = 4  # which decides the reward
                if kind == "empty_rank" and first_half:
                    tokens = []
                self.records.setdefault(tuple(prompt), []).append(self.record(model, prompt, tokens))
        if kind == "mixed":
            first = next(iter(self.records.values()))
            first[0] = self.record(model, first[0].prompt_ids, [])

    @staticmethod
    @torch.no_grad()
    def record(model, prompt, tokens):
        ids = torch.tensor([[*prompt, *tokens]])
        fed = ids[:, : len(prompt) + max(len(tokens), 1) - 1]
        logps = model(fed, num_loops=LOOPS).logits.log_softmax(-1)[0, len(prompt) - 1 :]
        logps = logps[: len(tokens)].gather(-1, ids[0, len(prompt) :, None])[:, 0]
        states = model(fed, num_loops=LOOPS - 1).state[0]
        return RolloutRecord(tuple(prompt), tuple(tokens), logps, states, "penultimate", LOOPS, "terminal", 0, "length")

    def sync_weights(self):
        """The tape's policy does not change."""

    def generate(self, prompts, images, num_generations, profiler=None):
        self.drawn = {}
        self.last = []
        for prompt in map(tuple, prompts):
            number = self.drawn[prompt] = self.drawn.get(prompt, -1) + 1
            self.last.append(replace(self.records[prompt][number], policy_version=self.trainer.state.global_step))
        completions = [list(record.completion_ids) or [0] for record in self.last]
        logprobs = [[[value] for value in record.logprobs.tolist()] or [[0.0]] for record in self.last]
        return prompts, completions, logprobs, None

    def peek(self):
        return self.last

    def forget(self):
        self.last = []


class TapedTrainer(LoopedGRPOTrainer):
    def __init__(self, *args, tape, nonfinite_steps, **kwargs):
        self.tape, self.nonfinite_steps = tape, nonfinite_steps
        super().__init__(*args, **kwargs)

    def finish_loss(self, loss):
        last = self.accelerator.process_index == self.accelerator.num_processes - 1
        fails = last and str(self.state.global_step) in self.nonfinite_steps
        return super().finish_loss(loss - torch.inf if fails else loss)  # its own gradient stays finite

    def make_rollouts(self, **trl_settings):
        config = self.model.config
        model = make_model(trl_settings["processing_class"], config.tie_word_embeddings, config.hidden_size)
        return Tape(model, trl_settings["processing_class"], self, self.tape)


def make_model(tokenizer, tied, width):
    torch.manual_seed(1)
    config = LoopLMConfig(
        vocab_size=len(tokenizer),
        hidden_size=width,
        intermediate_size=2 * width,
        num_attention_heads=width // 32,
        num_loops=LOOPS,
        tie_word_embeddings=tied,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    return LoopLMForCausalLM(config)


def sharding_everything(stage, offload=False):
    """DeepSpeed's settings, under which ZeRO-3 holds no tensor whole, however small."""
    settings = zero_settings(stage, offload)
    if stage == 3:
        settings["zero_optimization"]["stage3_param_persistence_threshold"] = 0
    return settings


def parity_of_first(completion_ids, **columns):
    """Whether the first token is even; an empty completion is shown as one padding token."""
    return [float(ids[0] % 2 == 0) for ids in completion_ids]


class Gradients(TrainerCallback):
    """What the optimizer is given in each step, by parameter; whole in every process."""

    def __init__(self, trainer):
        self.trainer, self.steps = trainer, []
        self.moved = []  # whether the step has changed the weights
        self.weights = self.weights_now()
        self.products, self.log = [], trainer.estimator.on_solved  # of this process, by micro-batch
        trainer.estimator = replace(trainer.estimator, on_solved=self.solved)

    def weights_now(self):
        return {name: weight.clone() for name, weight in gathered(self.trainer.model)}

    def on_step_end(self, *args, **kwargs):
        before, self.weights = self.weights, self.weights_now()
        self.moved.append(any(not torch.equal(before[name], self.weights[name]) for name in before))

    def solved(self, solution):
        self.products.append(int(solution.steps.max()))
        self.log(solution)

    def read(self):
        named = self.trainer.model.named_parameters()
        if self.trainer.deepspeed is None:
            self.steps.append({name: p.grad.clone() for name, p in named})
        else:
            self.steps.append({name: safe_get_full_grad(p).clone() for name, p in named})

    def on_train_begin(self, *args, **kwargs):
        if self.trainer.deepspeed is not None:
            step = self.trainer.deepspeed.step

            def read_and_step(*args, **kwargs):
                self.read()
                return step(*args, **kwargs)

            self.trainer.deepspeed.step = read_and_step

    def on_pre_optimizer_step(self, *args, **kwargs):
        if self.trainer.deepspeed is None:
            self.read()


def train(job, folder):
    """Gradients by step, losses by step, and the logs of one training."""
    AcceleratorState._reset_state()
    GradientState._reset_state()
    tokenizer = build_tokenizer()
    settings = {"deepspeed": sharding_everything(job.stage, job.offload)} if job.stage else {}
    args = LoopedGRPOConfig(
        output_dir=str(folder),
        per_device_train_batch_size=ROWS // job.processes // job.accumulation,
        gradient_accumulation_steps=job.accumulation,
        num_generations=GROUP,
        max_completion_length=LENGTH,
        neumann_steps=job.neumann_steps,
        neumann_tolerance=1e-3,
        estimator=job.estimator,
        control_every=1 if job.control else None,
        loops_recorded=2 if job.estimator == "truncated" else None,
        gradient_checkpointing=job.checkpointing,
        max_steps=job.steps,
        shuffle_dataset=False,
        max_grad_norm=0.0,
        learning_rate=1e-3,
        **settings,
    )
    trainer = TapedTrainer(
        make_model(tokenizer, job.tied, job.width),
        parity_of_first,
        args,
        Dataset.from_dict({"prompt": PROMPTS}),
        processing_class=tokenizer,
        tape=job.tape,
        nonfinite_steps=job.nonfinite.split(),
    )
    gradients = Gradients(trainer)
    trainer.add_callback(gradients)
    show_only_progress_line(trainer)
    error = None
    try:
        trainer.train()
    except UserError as raised:
        error = str(raised)
    logs = [row for row in trainer.state.log_history if "loss" in row]
    weights = gradients.weights_now()
    if trainer.deepspeed is not None:
        trainer.deepspeed.destroy()
    found = {"gradients": gradients.steps, "products": gradients.products, "moved": gradients.moved}
    return found | {"logs": logs, "weights": weights, "error": error}


def main(jobs, folder):
    for settings in json.loads(Path(jobs).read_text()):
        job = Job(**settings)
        start = time.perf_counter()
        faulthandler.dump_traceback_later(HANGS, exit=True)
        found = train(job, folder) | {"seconds": time.perf_counter() - start}
        torch.save(found, Path(folder) / f"{job.name}.rank{os.environ['RANK']}.pt")


if __name__ == "__main__":
    main(*sys.argv[1:])
