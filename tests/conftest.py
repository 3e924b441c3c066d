"""Environment defaults that every test needs before torch, transformers or vLLM are imported.

Set by default only: a variable that is already set wins.
"""

import os

DEFAULTS = {
    # vLLM inside the test process, not in a worker, and not bound to particular cores.
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    # Models this small gain nothing from threads, which stand in each other's way when the cores are busy.
    "OMP_NUM_THREADS": "1",
    # The tiny models run eagerly: compiling takes longer than any test.
    "TORCH_COMPILE_DISABLE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    # Nothing is fetched and nothing is reported.
    "HF_HUB_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "WANDB_MODE": "disabled",
}

for name, value in DEFAULTS.items():
    os.environ.setdefault(name, value)

_LONG = ("zero", "end_to_end")  # folders whose files take longest


def pytest_collection_modifyitems(items):
    """Long files first, so that of two test processes none is left with one of them at the end."""
    items.sort(key=lambda item: next((n for n, name in enumerate(_LONG) if name in item.path.parts), len(_LONG)))
