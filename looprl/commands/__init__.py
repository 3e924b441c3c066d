"""The commands of `looprl`, one module each, with `run(argv) -> exit code`."""
