"""What runs inside the sandbox: the standard library only, and nothing else of looprl."""
