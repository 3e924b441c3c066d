"""The rollout engine: prompts in, validated rollout records out, weights synced from the trainer.

Wraps a vLLM 0.32 engine, in this process or in one of its own. It starts without weights: until the first
`sync_weights` there is no policy to sample from, and every record names the policy version that sampled it.
"""

import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, ClassVar

import torch
from torch import Tensor
from transformers import PretrainedConfig

from looprl.models.initial_state import InitialState, check_drawable
from looprl.models.registry import FAMILIES, check_exit_gate
from looprl.rollout.plugin import architecture
from looprl.rollout.random_state import initial_state_seed, preserved_random_state
from looprl.rollout.record import KVPolicy, RolloutRecord, StateKind
from looprl.rollout.safetensors_bytes import pack, unpack
from looprl.rollout.sampling import RolloutError, Sampling, check_prompts
from looprl.rollout.token_bytes import kv_bytes_per_token, state_bytes_per_token
from looprl.rollout.vllm_process import contained_start, kept_process_group
from looprl.rollout.watchdog import watched

MAX_TRIES = 3
DEADLINE = 60.0  # seconds that an engine in its own process may take to copy states


class RolloutEngine:
    """Samples completions and keeps each token's recurrent state.

    vLLM has one state connector per process, so starting an engine closes the one before. A call that vLLM does
    not finish (an error inside it, Ctrl-C) closes the engine too: it would wait for that call's requests forever.
    """

    ranks = 1  # of the trainer that share it
    _open: ClassVar["RolloutEngine | None"] = None

    def __init__(
        self,
        config: PretrainedConfig,
        *,
        num_loops: int | None = None,
        state_kind: StateKind = "penultimate",
        kv_policy: KVPolicy = "terminal",
        initial_state: InitialState = "zero",
        seed: int = 0,
        exit_threshold: float | None = None,
        max_model_len: int = 1024,
        max_num_seqs: int = 256,
        dtype: torch.dtype = torch.float32,
        own_process: bool = False,
        timeout: float = 1800.0,
        **vllm_options: Any,
    ):
        """Start vLLM on the architecture of `config`, with `num_loops` loops (default: the configuration's).

        initial_state: where the loops start: zero, or drawn with each sync, from the run's `seed` and the policy
        version. exit_threshold: read each token out at the loop where the exit gate's cumulated probability reaches
        it. max_model_len: prompt and completion tokens together. max_num_seqs: sequences at a time. own_process:
        run the engine in a process of its own, which schedules while prompts still arrive, so that a draw of several
        prompts does not repeat. timeout: seconds after which a call to an engine in its own process gives it up for
        dead. vllm_options go to `vllm.LLM` and win over what is chosen here. RolloutError when the window exceeds the
        model's; UserError when the family has no distribution of initial states or no gate, and one is asked for.
        """
        from vllm import LLM

        self.config = config
        self.num_loops = config.num_loops if num_loops is None else num_loops
        self.state_kind: StateKind = state_kind
        self.kv_policy: KVPolicy = kv_policy
        self.seed = seed
        self.initial_state: InitialState = initial_state
        self.initial_state_seed: int | None = None
        self.exit_threshold = exit_threshold
        self.max_model_len = max_model_len
        self.kv_bytes_per_token = kv_bytes_per_token(config, self.num_loops, kv_policy, dtype)
        self.state_bytes_per_token = state_bytes_per_token(config, dtype)
        self.own_process = own_process
        self.timeout = timeout
        self.policy_version: int | None = None
        self.preempted = 0
        if initial_state == "drawn":
            check_drawable(config)
        if max_model_len > config.max_position_embeddings:
            raise RolloutError(
                f"a window of {max_model_len} tokens (prompt and completion) exceeds the model's "
                f"max_position_embeddings, {config.max_position_embeddings}"
            )
        if state_kind == "gate" or exit_threshold is not None:
            check_exit_gate(FAMILIES[config.model_type], "reading the gate")
            if self.num_loops > config.hidden_size:
                raise RolloutError(f"{self.num_loops} loops do not fit into a state of width {config.hidden_size}")
        if RolloutEngine._open is not None:
            RolloutEngine._open.close()
        self._process_group_was_there = torch.distributed.is_initialized()
        with tempfile.TemporaryDirectory(prefix="looprl-engine-") as folder:
            config.save_pretrained(folder)
            options: dict[str, Any] = dict(
                model=folder,
                load_format="dummy",
                skip_tokenizer_init=True,
                hf_overrides=dict(
                    architectures=[architecture(config.model_type)],
                    num_loops=self.num_loops,
                    exported_state=state_kind,
                    exit_threshold=exit_threshold,
                    kv_policy=kv_policy,
                    initial_state=initial_state,
                ),
                seed=seed,
                dtype=str(dtype).removeprefix("torch."),
                max_model_len=max_model_len,
                max_num_seqs=max_num_seqs,
                logprobs_mode="processed_logprobs",
                enable_prefix_caching=True,
                disable_log_stats=True,
                kv_transfer_config=dict(
                    kv_connector="StateConnector",
                    kv_connector_module_path="looprl.rollout.connector",
                    kv_role="kv_producer",
                ),
                worker_extension_cls="looprl.rollout.worker_calls.WorkerCalls",
            )
            if not torch.cuda.is_available():
                options |= dict(enforce_eager=True, block_size=32)
                options["kv_cache_memory_bytes"] = self._cache_bytes(max_num_seqs)
            with preserved_random_state(), self._compile_stance(), contained_start(own_process) as self._processes:
                self.llm = LLM(**(options | vllm_options))
        RolloutEngine._open = self

    def _cache_bytes(self, max_num_seqs: int, block_size: int = 32) -> int:
        """Twice the room for every sequence at full length, so that none is ever preempted.

        Finished sequences hold theirs until their states are copied.
        """
        blocks = max_num_seqs * -(-self.max_model_len // block_size) + 1
        return max(2 * blocks * block_size * (self.kv_bytes_per_token + self.state_bytes_per_token), 64 << 20)

    def sync_weights(self, named_tensors: Iterable[tuple[str, Tensor]], policy_version: int) -> None:
        """Load the trainer's weights (transformers names) and forget every cached key, value and state.

        Where initial states are drawn, they are drawn anew. ValueError when a tensor of the model is missing or unknown
        to it.
        """
        weights = ((name, tensor.detach()) for name, tensor in named_tensors)
        handed_over = pack(dict(weights)) if self.own_process else weights
        with self._all_or_nothing():
            self._drain()
            self.llm.collective_rpc("load_named_tensors", args=(handed_over,))
            if self.initial_state == "drawn":
                self.initial_state_seed = initial_state_seed(self.seed, policy_version)
                self.llm.collective_rpc("draw_initial_states", args=(self.initial_state_seed,))
        self.reset_prefix_cache()
        self.policy_version = policy_version

    def reset_prefix_cache(self) -> None:
        """Forget every cached key, value and state, so that the next rollout depends on its prompts and seed only."""
        with self._all_or_nothing():
            self._drain()
            done = self._before_deadline(self.llm.reset_prefix_cache)
        if not done:
            raise RolloutError("vLLM did not reset its prefix cache, so the next rollout would read stale keys")

    def generate(self, prompts: Sequence[Sequence[int]], sampling: Sampling, seed: int) -> list[RolloutRecord]:
        """Sample one completion for each prompt of token ids, in order.

        In this process the draw depends on `seed` alone. A preempted request recomputed its tokens, so its states
        would not match its log-probs: it is counted in `preempted` and sampled again. RolloutError on a prompt that
        does not fit the window or the vocabulary, before the first sync, or when a request fails `MAX_TRIES` times.
        """
        if self.policy_version is None:
            raise RolloutError("the engine has no weights yet: call sync_weights first")
        check_prompts(prompts, sampling, self.max_model_len, self.config.vocab_size)
        records: dict[int, RolloutRecord] = {}
        with preserved_random_state(), self._compile_stance(), self._all_or_nothing():
            self.llm.collective_rpc("seed_sampler", args=(seed,))
            for _ in range(MAX_TRIES):
                waiting = [index for index in range(len(prompts)) if index not in records]
                if not waiting:
                    break
                records |= self._sample(waiting, prompts, sampling)
        if len(records) < len(prompts):
            raise RolloutError(
                f"{len(prompts) - len(records)} of {len(prompts)} requests failed or were preempted {MAX_TRIES} times: "
                "give the engine a larger cache (kv_cache_memory_bytes) or fewer sequences at a time (max_num_seqs)"
            )
        return [records[index] for index in range(len(prompts))]

    def _sample(
        self, indices: list[int], prompts: Sequence[Sequence[int]], sampling: Sampling
    ) -> dict[int, RolloutRecord]:
        from vllm import SamplingParams
        from vllm.inputs import TokensPrompt

        params = SamplingParams(
            temperature=sampling.temperature,
            max_tokens=sampling.max_tokens,
            stop_token_ids=list(sampling.stop_token_ids),
            ignore_eos=True,  # the configuration's own, that is: `stop_token_ids` alone end a completion
            logprobs=0,
            detokenize=False,
        )
        requests = [TokensPrompt(prompt_token_ids=list(prompts[index])) for index in indices]
        outputs = self.llm.generate(requests, params, use_tqdm=False)
        self._drain()
        keys = [(output.kv_transfer_params or {}).get("states_of", "") for output in outputs]
        states = self._take_states([key for key in keys if key])
        records = {}
        for index, key, output in zip(indices, keys, outputs, strict=True):
            if output.kv_transfer_params is None or output.kv_transfer_params["preemptions"]:
                self.preempted += 1
                continue
            records[index] = self._record(output, states[key])
        return records

    def _record(self, output: Any, states: Tensor) -> RolloutRecord:
        completion = output.outputs[0]
        logprobs = [step[token].logprob for step, token in zip(completion.logprobs, completion.token_ids, strict=True)]
        assert self.policy_version is not None
        return RolloutRecord(
            prompt_ids=tuple(output.prompt_token_ids),
            completion_ids=tuple(completion.token_ids),
            logprobs=torch.tensor(logprobs, dtype=torch.float32),
            states=states,
            state_kind=self.state_kind,
            num_loops=self.num_loops,
            kv_policy=self.kv_policy,
            policy_version=self.policy_version,
            initial_state_seed=self.initial_state_seed,
            finish_reason=completion.finish_reason,
        )

    def _take_states(self, request_ids: list[str]) -> dict[str, Tensor]:
        states: dict[str, Tensor] = {}

        def complete() -> bool:
            waiting = [request_id for request_id in request_ids if request_id not in states]
            taken = self.llm.collective_rpc("take_states", args=(waiting, self.own_process))[0]
            states.update(unpack(taken) if self.own_process else taken)
            return len(states) == len(request_ids)

        if not self._before_deadline(complete):
            raise RolloutError(f"vLLM kept the states of {len(request_ids) - len(states)} finished requests")
        return states

    def _before_deadline(self, attempt: Callable[[], bool]) -> bool:
        """Whether the attempt succeeds: at once, or, as an engine of its own steps by itself, within `DEADLINE`."""
        deadline = time.monotonic() + (DEADLINE if self.own_process else 0)
        while not attempt():
            if time.monotonic() >= deadline:
                return False
            time.sleep(0.002)
        return True

    @staticmethod
    def _compile_stance() -> AbstractContextManager[Any]:
        """On a CPU, run eagerly: compiling vLLM's sampler takes 15 s and gains nothing at the sizes that fit one."""
        return nullcontext() if torch.cuda.is_available() else torch.compiler.set_stance("force_eager")

    def _drain(self) -> None:
        """Step until the scheduler is empty: finished requests still hold blocks until their states are copied.

        An engine in its own process does so by itself.
        """
        if self.own_process:
            return
        engine = self.llm.llm_engine
        while engine.engine_core.engine_core.scheduler.has_requests():
            engine.step()

    @contextmanager
    def _all_or_nothing(self) -> Iterator[None]:
        """Around a call into vLLM: RolloutError when the engine is closed; close it when the call fails."""
        if self.closed:
            raise RolloutError(
                "this rollout engine is closed: close() was called, another engine was started in this process, or "
                "an earlier call to it did not finish. Start a new one"
            )
        try:
            with watched(self.llm.llm_engine.engine_core, self._processes, self.timeout):
                yield
        except BaseException:
            self.close()
            raise

    @property
    def closed(self) -> bool:
        """Whether the engine has been stopped."""
        return not hasattr(self, "llm")

    def close(self) -> None:
        """Stop the engine and free its memory. It cannot be used any more."""
        if RolloutEngine._open is self:
            RolloutEngine._open = None
        if not self.closed:
            with kept_process_group(self._process_group_was_there):
                self.llm.llm_engine.engine_core.shutdown()
            del self.llm
