"""Registers looprl's models with vLLM; the `vllm.general_plugins` entry point, called in every vLLM process."""

TWINS = {
    "LoopLMForCausalLM": "looprl.rollout.vllm_looplm:LoopLMForCausalLM",
    "LoopedForCausalLM": "looprl.rollout.vllm_published:PublishedForCausalLM",
}


def architecture(model_type: str) -> str:
    """What vLLM is told to run for a looped family: LoopLM has a twin of its own, the published families share one.

    These names are looprl's, so that they meet no architecture of vLLM's own.
    """
    return "LoopLMForCausalLM" if model_type == "looplm" else "LoopedForCausalLM"


def register() -> None:
    """Make vLLM know the looped architectures and their configurations."""
    from vllm import ModelRegistry

    import looprl.models  # noqa: F401  registers the configurations with transformers

    for name, path in TWINS.items():
        if name not in ModelRegistry.get_supported_archs():
            ModelRegistry.register_model(name, path)
