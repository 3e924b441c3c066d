"""What one process in the sandbox may use."""

from dataclasses import dataclass

MIB = 1 << 20


@dataclass(frozen=True)
class Limits:
    """Limits of one process. `seconds` is wall-clock time, and the processor time is limited to one second more."""

    seconds: float = 10.0
    memory_bytes: int = 1024 * MIB
    output_bytes: int = 8 * MIB
    file_bytes: int = 1 * MIB
    open_files: int = 64
    processes: int = 16
