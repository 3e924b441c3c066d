"""What a run survives: updates that are not finite, an engine that fails, one that hangs."""

import logging
import os
import signal
from functools import partial

import psutil
import pytest
import torch

from looprl.errors import UserError
from looprl.measure.meter import StepMeter
from looprl.rollout.engine import RolloutEngine
from looprl.rollout.sampling import RolloutError, Sampling
from looprl.training.colocated_rollouts import ColocatedRollouts
from looprl.training.faults import SKIPPED
from tests.training.conftest import make_model, make_trainer


def length(completions, **kwargs):
    return [float(len(text)) for text in completions]


def poison(trainer, steps, value):
    """Have one gradient be the value in updates after these numbers of steps."""
    parameter = trainer.model.get_parameter("model.norm.weight")
    parameter.register_hook(lambda gradient: gradient * value if trainer.state.global_step in steps else gradient)


def weights_of(trainer):
    return {name: parameter.detach().clone() for name, parameter in trainer.model.named_parameters()}


def same(first, second):
    return all(torch.equal(first[name], second[name]) for name in first)


class Weights:
    """The weights after each step."""

    def __init__(self, trainer):
        from transformers import TrainerCallback

        self.after, outer = [weights_of(trainer)], self

        class Note(TrainerCallback):
            def on_step_end(self, *args, **kwargs):
                outer.after.append(weights_of(trainer))

        trainer.add_callback(Note())


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_an_update_that_is_not_finite_changes_nothing_and_is_counted(tmp_path, value):
    trainer = make_trainer(tmp_path, length, max_steps=5, save_strategy="no", weight_decay=0.1)
    poison(trainer, {1, 3}, value)
    weights = Weights(trainer)
    trainer.train()
    trainer.engine.close()
    changed = [not same(before, after) for before, after in zip(weights.after, weights.after[1:], strict=False)]
    assert changed == [True, False, True, False, True]
    assert [row[SKIPPED] for row in trainer.state.log_history if "loss" in row] == [0, 1, 0, 1, 0]
    moments = trainer.optimizer.state_dict()["state"].values()
    assert {float(state["step"]) for state in moments} == {3}
    assert all(torch.isfinite(state["exp_avg"]).all() for state in moments)


def test_too_many_in_a_row_end_the_run_with_weights_kept_and_the_rollouts_saved(tmp_path):
    trainer = make_trainer(tmp_path, length, max_steps=9, save_strategy="no", max_nonfinite_updates=2)
    poison(trainer, {1, 3, 4, 5}, float("nan"))
    weights = Weights(trainer)
    with pytest.raises(UserError, match=r"2 updates in a row.*max_nonfinite_updates") as caught:
        trainer.train()
    trainer.engine.close()
    file = tmp_path / "nonfinite" / "step-5.pt"
    assert str(file) in str(caught.value)
    saved = torch.load(file, weights_only=True)
    assert saved["step"] == 5 and saved["rollouts"][0]["completion_ids"].shape[0] == 16
    assert same(weights.after[-1], weights_of(trainer))


def test_a_loss_that_is_not_finite_is_enough(tmp_path):
    trainer = make_trainer(tmp_path, length, max_steps=2, save_strategy="no")
    finish = trainer.finish_loss
    weights = Weights(trainer)
    # a constant: an infinite loss with a finite gradient
    trainer.finish_loss = lambda loss: finish(loss + (-torch.inf if trainer.state.global_step else 0))
    trainer.train()
    trainer.engine.close()
    assert not same(weights.after[0], weights.after[1]) and same(weights.after[1], weights.after[2])


def test_an_engine_that_fails_is_replaced_and_the_run_is_as_if_it_had_not(tmp_path, caplog):
    ends = []
    for failing in (False, True):
        trainer = make_trainer(tmp_path / str(failing), length, max_steps=3, save_strategy="no")
        first = trainer.engine
        if failing:
            generate = first.llm.generate

            def fails_at_the_second_step(*args, trainer=trainer, generate=generate, **kwargs):
                if trainer.state.global_step == 1:
                    raise RuntimeError("the worker is gone")
                return generate(*args, **kwargs)

            first.llm.generate = fails_at_the_second_step
        with caplog.at_level(logging.WARNING):
            trainer.train()
        assert (trainer.engine is first) != failing
        ends.append(weights_of(trainer))
        restarts = [row["dropped/engine_restarts"] for row in trainer.state.log_history if "loss" in row]
        assert restarts == ([0, 1, 0] if failing else [0, 0, 0])
        trainer.engine.close()
    assert "the worker is gone" in caplog.text
    assert same(*ends)


def test_what_an_engine_refuses_is_no_failure_of_it(setting):
    rollouts = setting.trainer.vllm_generation
    rollouts.sync_weights()
    with pytest.raises(RolloutError, match="leaves room"):
        rollouts.generate([[5] * 500], None, 1)
    assert rollouts.restarts == 0 and not rollouts.engine.closed


@pytest.mark.slow
@pytest.mark.parametrize("sent", [signal.SIGSTOP, signal.SIGKILL], ids=["hangs", "is killed"])
def test_an_engine_process_that_does_not_answer_is_replaced(sent):
    from looprl.data.tokenizer import build_tokenizer

    tokenizer = build_tokenizer()
    model = make_model(tokenizer)
    start = partial(RolloutEngine, model.config, max_model_len=64, max_num_seqs=8, own_process=True, timeout=20)
    sampling = Sampling(8, (tokenizer.eos_token_id,))
    rollouts = ColocatedRollouts(
        start,
        model,
        sampling,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
        seed=0,
        rank=0,
        step=lambda: 4,
        meter=StepMeter(),
    )
    rollouts.sync_weights()
    (engine_process,) = [child for child in psutil.Process().children(True) if "EngineCore" in child.name()]
    os.kill(engine_process.pid, sent)
    rollouts.generate([[5, 6, 7]] * 4, None, 4)
    assert len(rollouts.peek()) == 4 and rollouts.restarts == 1
    assert {record.policy_version for record in rollouts.peek()} == {4}
    assert not engine_process.is_running()
    rollouts.engine.close()
