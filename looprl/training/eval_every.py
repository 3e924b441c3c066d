"""Evaluation on the way: pass@1 on the held-out prompts every N steps, logged with the step's other metrics."""

from dataclasses import replace

from accelerate.utils import gather_object
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from looprl.measure.evaluate import EvalSet, Evaluation, evaluate
from looprl.rollout.random_state import preserved_random_state
from looprl.training.trainer import LoopedGRPOTrainer

EVAL_METRIC = "eval_pass_at_1"


def evaluate_now(trainer: LoopedGRPOTrainer, eval_set: EvalSet) -> Evaluation:
    """Evaluate the trainer's present weights, which the engine then has.

    Each process samples its share of the prompts, and all have the whole result. The training's random states stay as
    they are. The trainer's meter is given `time/sync` and `time/evaluation`.
    """
    trainer.vllm_generation.sync_weights()
    processes, index = trainer.accelerator.num_processes, trainer.accelerator.process_index
    share = eval_set.prompts.shard(processes, index, contiguous=True)
    sampling = trainer.sampling()
    if eval_set.max_completion_length is not None:
        sampling = replace(sampling, max_tokens=eval_set.max_completion_length)
    with preserved_random_state(), trainer.meter.phase("evaluation"):
        ours = trainer.vllm_generation.ask(
            lambda engine: evaluate(
                engine, trainer.processing_class, share, eval_set.reward, sampling, trainer.args.seed + index
            )
        )
        return Evaluation.of(gather_object(ours.rows))


class EvalEvery(TrainerCallback):
    """Evaluates after every N-th step; the step's log gets `eval_pass_at_1`.

    Such a step is logged whatever `logging_steps` says, so that the value stands beside its own step. An evaluation
    without a single judged completion logs no value.
    """

    def __init__(self, every: int, trainer: LoopedGRPOTrainer, held_out: EvalSet):
        self.every, self.trainer, self.held_out = every, trainer, held_out

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> None:
        if state.global_step % self.every:
            return
        evaluation = evaluate_now(self.trainer, self.held_out)
        if evaluation.pass_at_1 is not None:
            self.trainer.meter.mean(EVAL_METRIC, evaluation.pass_at_1, 1)
        control.should_log = True
