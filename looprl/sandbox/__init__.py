"""The sandbox for model-written code: a warm pool of shut-off fork servers, and answers that leave it as data."""

from looprl.sandbox.limits import Limits
from looprl.sandbox.programs import Program, Run, run_programs
from looprl.sandbox.worker import SandboxError

__all__ = ["Limits", "Program", "Run", "SandboxError", "run_programs"]
