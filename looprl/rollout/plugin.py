"""Registers looprl's models with vLLM; the `vllm.general_plugins` entry point, called in every vLLM process."""

TWINS = {"LoopLMForCausalLM": "looprl.rollout.vllm_looplm:LoopLMForCausalLM"}


def register() -> None:
    """Make vLLM know the looped architectures and their configurations."""
    from vllm import ModelRegistry

    import looprl.models  # noqa: F401  registers the configurations with transformers

    for architecture, path in TWINS.items():
        if architecture not in ModelRegistry.get_supported_archs():
            ModelRegistry.register_model(architecture, path)
