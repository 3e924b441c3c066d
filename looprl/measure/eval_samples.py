"""k completions of every held-out prompt at one number of loops, in a file that an interrupted evaluation goes on from.

They are drawn chunk by chunk, each from its own random stream, and a chunk's completions are written at once: what the
file holds is the same whether it was written in one go or not.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from transformers import PreTrainedTokenizerBase

from looprl.errors import UserError
from looprl.measure.eval_rows import problem_rows
from looprl.measure.evaluate import EvalSet, sample_and_judge
from looprl.rewards import final_answers
from looprl.rollout.engine import RolloutEngine
from looprl.rollout.random_state import rollout_seed
from looprl.rollout.sampling import Sampling
from looprl.runs import RunFolder, read_metrics


@dataclass(frozen=True)
class EvalSamples:
    """What is drawn: k completions of each prompt of `eval_set` at `num_loops` loops, `batch_size` at a time.

    name: of the set, in the names of files. task: what the results call it. stream: which of the random streams of the
    same seed it is drawn from. exit_gate: whether the exit gate is read; exit_threshold: of early exit, None without.
    """

    name: str
    task: str
    eval_set: EvalSet
    num_loops: int
    k: int
    batch_size: int
    sampling: Sampling
    seed: int
    stream: int = 0
    exit_gate: bool = False
    exit_threshold: float | None = None

    @property
    def depth(self) -> str:
        """At which depth tokens are read out: `R6`, or with early exit `R6-q0.5`."""
        return f"R{self.num_loops}" + ("" if self.exit_threshold is None else f"-q{self.exit_threshold}")

    @property
    def read_out(self) -> tuple[int, float | None]:
        """The number of loops and the threshold of early exit, which an engine is started with."""
        return self.num_loops, self.exit_threshold

    @property
    def file(self) -> str:
        """The file's name in `completions/`: `eval-R6`, `transfer-R6`."""
        return f"{self.name}-{self.depth}"

    @property
    def size(self) -> int:
        """How many prompts there are."""
        return len(self.eval_set.prompts)

    def resume(self, folder: RunFolder) -> int:
        """Keep the whole chunks that the file has, drop what follows, and return how many prompts are done.

        UserError where the file's prompts are not those of the set.
        """
        path = folder.completions_path(self.file)
        rows = read_metrics(path) if path.is_file() else []
        whole = len(rows) // self.k
        done = self.size if whole >= self.size else whole - whole % self._prompts_per_chunk
        prompts = self.eval_set.prompts["prompt"][:]
        for place, row in enumerate(rows[: done * self.k]):
            if (row.get("problem"), row.get("prompt")) != (place // self.k, prompts[place // self.k]):
                raise UserError(
                    f"{path}, line {place + 1}: not a completion of the prompt that is evaluated now; start anew with "
                    "--overwrite, or give another --output_dir"
                )
        if done * self.k < len(rows):
            folder.write_completions(self.file, rows[: done * self.k])
        return done

    def draw(
        self, engine: RolloutEngine, tokenizer: PreTrainedTokenizerBase, folder: RunFolder, done: int
    ) -> Iterator[int]:
        """Draw, judge and append the chunks after the first `done` prompts; yields each chunk's number of prompts."""
        for start in range(done, self.size, self._prompts_per_chunk):
            chunk = range(start, min(start + self._prompts_per_chunk, self.size))
            seed = rollout_seed(self.seed, self.num_loops, start // self._prompts_per_chunk, self.stream)
            folder.append_completions(self.file, self._rows(engine, tokenizer, chunk, seed))
            yield len(chunk)

    def problem_rows(self, folder: RunFolder) -> list[dict[str, Any]]:
        """A row for each prompt of the completed file, with the gold `answer` where the prompts have that column."""
        labels = {"task": self.task, "num_loops": self.num_loops}
        labels |= {"exit_threshold": self.exit_threshold} if self.exit_gate else {}
        rows = problem_rows(read_metrics(folder.completions_path(self.file)), self.k, **labels)
        prompts = self.eval_set.prompts
        if "answer" not in prompts.column_names:
            return rows
        return [{**row, "answer": answer} for row, answer in zip(rows, prompts["answer"], strict=True)]

    @property
    def _prompts_per_chunk(self) -> int:
        return max(self.batch_size // self.k, 1)

    def _rows(
        self, engine: RolloutEngine, tokenizer: PreTrainedTokenizerBase, chunk: range, seed: int
    ) -> list[dict[str, Any]]:
        places = [(problem, sample) for problem in chunk for sample in range(self.k)]
        prompts = self.eval_set.prompts.select([problem for problem, _ in places])
        drawn = sample_and_judge(engine, tokenizer, prompts, self.eval_set.reward, self.sampling, seed)
        answers = final_answers(self.eval_set.reward, [each.completion for each in drawn])
        return [
            {
                "problem": problem,
                "sample": sample,
                "prompt": prompt,
                "completion": each.completion,
                **({} if answers is None else {"final_answer": answers[row]}),
                "reward": each.reward,
                "tokens": each.tokens,
                "truncated": each.truncated,
                **({} if each.exits is None else {f"exit_{key}": value for key, value in vars(each.exits).items()}),
            }
            for row, ((problem, sample), prompt, each) in enumerate(zip(places, prompts["prompt"], drawn, strict=True))
        ]
