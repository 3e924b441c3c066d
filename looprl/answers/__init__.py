"""Judging the final answer of a worked solution: find it, read it, compare it with the gold answer."""

from looprl.answers.judge import final_answer, number_scores, solution_scores

__all__ = ["final_answer", "number_scores", "solution_scores"]
