"""Puts the plugin into vLLM: the only module here that imports it, and that only when vLLM calls.

What is touched
    SchedulerConfig.get_scheduler_cls   returns the class that it would return, with our hooks mixed in
    EngineCore.sleep, wake_up, ...      are told of, before they do their work
    EngineArgs.create_engine_config     in mode control alone: speculation is configured for K that changes
Each is wrapped once in a process, whichever distribution of the plugin comes first.
"""

from __future__ import annotations

import importlib.metadata
import os
import socket
import sys
import time
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

import msgspec

from tltsched.errors import InputError
from tltsched.policies import parse_policy

from .drafting import batches_up_to, chains_of, depths, graph_tokens, k_table, own_policy
from .facts import EngineFacts
from .graphs import CompileWatch, repair
from .hooks import EngineStep, EngineStepHooks, Row
from .observer import Observer
from .settings import Settings, read_settings
from .versions import device_words, engine_version, installed_version
from .writer import Writer

TABLE = "num_speculative_tokens_per_batch_size"
OURS = "tlt"  # key in vLLM's additional_config under which the API process tells the engine what it did
MOST_GRAPH_BATCH = 256  # requests of the largest batch that has graphs, where the engine allows more
WRAPPED = "_tlt_wrapped"
INSPECTION = "vllm.model_executor.models.registry"  # vLLM's child process that looks at a model class
CHANGES = ("weight", "param")  # in names of methods of workers that change weights


def say(text: str) -> None:
    """Tell the user one line, on the engine's standard error."""
    sys.stderr.write(f"tlt: {' '.join(text.split())}\n")
    sys.stderr.flush()


def install(path: Path) -> None:
    """Wrap what the settings ask for; raises InputError for settings or a version that cannot be."""
    main = getattr(sys.modules.get("__main__"), "__spec__", None)
    if main is not None and main.name == INSPECTION:
        return
    settings = read_settings(path)
    version = engine_version(installed_version())
    from vllm.config import SchedulerConfig

    _wrap(SchedulerConfig, "get_scheduler_cls", lambda original: _scheduler_cls(original, settings))
    if settings.mode != "control":
        return
    arguments = sys.modules.get("vllm.engine.arg_utils")  # of processes that configure an engine
    if arguments is not None:
        _wrap(arguments.EngineArgs, "create_engine_config", lambda original: _configured(original, settings))
    if _is_cuda() and settings.graphs == "every_k" and version.v2_drafts_what_is_planned:
        repair()


def _is_cuda() -> bool:
    from vllm.platforms import current_platform

    return bool(current_platform.is_cuda())


def _wrap(owner: Any, name: str, make: Callable[[Any], Any]) -> None:
    """Replace a method once; it keeps its own name, and a mark."""
    original = owner.__dict__[name]
    if not getattr(original, WRAPPED, False):
        wrapped = wraps(original)(make(original))
        setattr(wrapped, WRAPPED, True)
        setattr(owner, name, wrapped)


# --- the scheduler ------------------------------------------------------------------------------------------


def _scheduler_cls(original: Any, settings: Settings) -> Any:
    def get_scheduler_cls(config: Any) -> Any:
        base = original(config)
        try:
            core = sys.modules.get("vllm.v1.engine.core")
            if core is not None:
                _watch_core(core.EngineCore)
            return _mixed(base, settings)
        except Exception as error:
            say(f"not used, the engine decides for itself: {type(error).__name__}: {error}")
            return base

    return get_scheduler_cls


_MIXED: dict[type, type] = {}


def _mixed(base: type, settings: Settings) -> type:
    if base not in _MIXED:
        _MIXED[base] = type(f"Observed{base.__name__}", (ObservedHooks, base), {"_tlt_settings": settings})
    return _MIXED[base]


class ObservedHooks(EngineStepHooks):
    """The scheduler of an engine that somebody else runs: no fault of ours may reach it."""

    _tlt_settings: Settings
    _tlt: Observer | None = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        try:
            self._tlt = observe(self, self._tlt_settings)
        except Exception as error:
            say(f"not used, the engine decides for itself: {type(error).__name__}: {error}")

    def _guarded(self, call: Callable[..., None], *args: Any) -> None:
        """Do it unless something has failed before; the first failure is said, and is the last."""
        if self._tlt is None:
            return
        try:
            call(*args)
        except Exception as error:
            observer, self._tlt = self._tlt, None
            text = f"{type(error).__name__}: {error}"
            say(f"stopped after {observer.now_s():.1f} s, the engine decides for itself from here on: {text}")
            try:
                observer.stop(text)
            except Exception as second:
                del second

    def _on_plan(self, plan: Any, rows: list[Row]) -> None:
        if self._tlt is not None:
            self._tlt.planned(plan, rows)

    def _on_output(self, output: Any, engine_step: EngineStep) -> None:
        if self._tlt is not None:
            self._tlt.came(output, engine_step)

    def update_from_output(self, plan: Any, output: Any) -> Any:
        """Let vLLM apply the outputs of an engine step, and take its facts."""
        outputs = super().update_from_output(plan, output)
        self._guarded(self._applied)
        return outputs

    def shutdown(self) -> Any:
        """Write what is left, before vLLM frees the engine."""
        self._guarded(self._stop)
        self._tlt = None
        return super().shutdown()  # type: ignore[misc]

    def _applied(self) -> None:
        if self._tlt is not None:
            self._tlt.applied(self.running, self.requests)

    def _stop(self) -> None:
        if self._tlt is not None:
            self._tlt.stop()


def observe(scheduler: Any, settings: Settings) -> Observer:
    """Return the observer of a new engine; in charge, if that cannot be, it watches alone and says why."""
    writer = Writer(Path(settings.out))
    config = scheduler.vllm_config
    ours: dict[str, Any] = (config.additional_config or {}).get(OURS, {})
    own_k = int(ours.get("own_k", scheduler.num_spec_tokens))
    if ours.get("table"):  # the table is there for its graphs: what counts if we fail is the engine's own K
        scheduler.dynamic_sd_lookup[:] = [own_k] * len(scheduler.dynamic_sd_lookup)
    engine = _engine_facts(scheduler, settings, writer.number, ours)
    compilations = _compilations()
    if settings.mode != "watch":
        try:
            if settings.mode == "control" and config.parallel_config.data_parallel_size > 1:
                raise InputError(
                    "mode", "control with data parallelism", "watch or advise: ranks must draft alike",
                    "run one engine a GPU, or a fixed K",
                )  # fmt: skip
            return Observer(settings, writer, engine, compilations)
        except InputError as error:
            say(f"{settings.mode} is not possible, the engine decides for itself and is watched: {error}")
    watching = {"mode": "watch", "advised_policy": "", "policy": _own(scheduler, ours)}
    return Observer(settings, writer, msgspec.structs.replace(engine, **watching), compilations)


def _own(scheduler: Any, ours: dict[str, Any]) -> str:
    """Return how the engine drafts if we do not, as a policy."""
    if "own_k" in ours and (ours.get("table") or ours.get("configured")):
        return own_policy(int(ours["own_k"]), None) if ours["own_k"] else "static:off"
    drafts = scheduler.vllm_config.speculative_config
    return own_policy(int(scheduler.num_spec_tokens), getattr(drafts, TABLE, None))


def _engine_facts(scheduler: Any, settings: Settings, number: int, ours: dict[str, Any]) -> EngineFacts:
    config = scheduler.vllm_config
    parallel, cache_config, drafts = config.parallel_config, config.cache_config, config.speculative_config
    own = _own(scheduler, ours)
    return EngineFacts(
        number=number,
        name=settings.name,
        mode=settings.mode,
        policy=settings.policy if settings.mode == "control" else own,
        advised_policy=settings.policy if settings.mode == "advise" else "",
        engine="vLLM",
        engine_version=installed_version(),
        plugin_version=_plugin_version(),
        model=str(config.model_config.model),
        device=_device(int(parallel.world_size), int(parallel.tensor_parallel_size)),
        gpus=int(parallel.world_size),
        rank=str(parallel.data_parallel_rank) if parallel.data_parallel_size > 1 else "",
        host=socket.gethostname(),
        pid=os.getpid(),
        started_unix_s=time.time(),
        max_running=int(config.scheduler_config.max_num_seqs),
        kv_tokens=int(cache_config.num_gpu_blocks or 0) * int(cache_config.block_size or 0),
        method=str(drafts.method) if drafts is not None else "",
        max_drafts=int(scheduler.num_spec_tokens),
        configured=bool(ours.get("configured")),
        graphs=str(getattr(config.compilation_config.cudagraph_mode, "name", "")),
        asynchronous=bool(config.scheduler_config.async_scheduling),
        prefix_caching=bool(cache_config.enable_prefix_caching),
    )


def _device(gpus: int, tp: int) -> str:
    from vllm.platforms import current_platform

    if current_platform.is_cpu():
        return device_words("", int(os.environ.get("OMP_NUM_THREADS") or os.cpu_count() or 1) * gpus, tp)
    return device_words(str(current_platform.get_device_name()), gpus, tp)


def _plugin_version() -> str:
    for name in ("tlt-vllm", "tlt-sim"):
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return "source"


def _compilations() -> Callable[[], int]:
    """Return what counts compilations; without the counters of this version, nothing is told of them."""
    try:
        return CompileWatch().count
    except (ImportError, AttributeError):
        return lambda: 0


# --- weights, sleep -----------------------------------------------------------------------------------------


def _watch_core(core: Any) -> None:
    """Be told when an engine sleeps, wakes, takes new weights or drops its caches."""

    def told(note: Callable[..., None]) -> Callable[[Any], Any]:
        def make(original: Any) -> Any:
            def method(self: Any, *args: Any, **kwargs: Any) -> Any:
                scheduler = getattr(self, "scheduler", None)
                if isinstance(scheduler, ObservedHooks):
                    scheduler._guarded(_noted, scheduler, note, args, kwargs)
                return original(self, *args, **kwargs)

            return method

        return make

    _wrap(core, "sleep", told(_slept))
    _wrap(core, "wake_up", told(lambda observer, *_args, **_kwargs: observer.woke()))
    _wrap(core, "reset_prefix_cache", told(lambda observer, *_args, **_kwargs: observer.updated("caches")))
    _wrap(core, "collective_rpc", told(_called))


def _noted(scheduler: Any, note: Callable[..., None], args: Any, kwargs: Any) -> None:
    if scheduler._tlt is not None:
        note(scheduler._tlt, *args, **kwargs)


def _slept(observer: Observer, level: int = 1, *_args: Any, **_kwargs: Any) -> None:
    observer.slept(int(level))


def _called(observer: Observer, method: Any = "", *_args: Any, **_kwargs: Any) -> None:
    """Take in a call to the workers: by its name it changed weights or it did not."""
    name = str(getattr(method, "__name__", method)).lower()
    if any(word in name for word in CHANGES) and not name.startswith(("init", "get")):
        observer.updated("drafter" if "draft" in name else "policy")


# --- speculation --------------------------------------------------------------------------------------------


def _configured(original: Any, settings: Settings) -> Any:
    def create_engine_config(self: Any, *args: Any, **kwargs: Any) -> Any:
        before = {name: getattr(self, name, None) for name in CONFIGURED}
        try:
            changed = configure(self, settings)
        except Exception as error:
            changed = False
            say(f"the engine is configured as it was asked for: {type(error).__name__}: {error}")
        if not changed:
            _restore(self, before)
            return original(self, *args, **kwargs)
        try:
            return original(self, *args, **kwargs)
        except Exception as error:
            _restore(self, before)
            config = original(self, *args, **kwargs)
            say(f"speculation of the settings is left out, vLLM refuses it: {type(error).__name__}: {error}")
            return config

    return create_engine_config


CONFIGURED = ("speculative_config", "additional_config", "cudagraph_capture_sizes")


def _restore(arguments: Any, before: dict[str, Any]) -> None:
    for name, value in before.items():
        setattr(arguments, name, value)


def configure(arguments: Any, settings: Settings) -> bool:
    """Configure an engine for K that changes; returns False if there is nothing to configure.

    `arguments` are vLLM's EngineArgs. Raises InputError for a policy that vLLM cannot follow.
    """
    if OURS in (arguments.additional_config or {}):
        return False  # a server configures its engine more than once
    given = arguments.speculative_config
    if given is None and (getattr(arguments, "spec_method", None) or getattr(arguments, "spec_model", None)):
        return False
    drafts = dict(given if given is not None else settings.speculation)
    if not drafts or getattr(arguments, "data_parallel_size", 1) > 1:
        return False
    policy = chains_of("policy", settings.policy, parse_policy(settings.policy))
    most = int(drafts.get("num_speculative_tokens") or 0)
    ks = sorted({0, *(k for k in depths(policy) if k <= most), most})
    own_k = most if given is not None else 0
    table = TABLE not in drafts and most > 0
    if table:
        drafts[TABLE] = k_table(ks, max(arguments.max_num_seqs or MOST_GRAPH_BATCH, len(ks)))
    arguments.speculative_config = drafts
    told = {"own_k": own_k, "configured": given is None, "table": table}
    arguments.additional_config = {**(arguments.additional_config or {}), OURS: told}
    _capture(arguments, settings, ks)
    return True


def _capture(arguments: Any, settings: Settings, ks: list[int]) -> None:
    """Have graphs captured for each K, unless sizes were given or the engine runs without graphs."""
    given = (
        arguments.cudagraph_capture_sizes
        or getattr(arguments, "max_cudagraph_capture_size", None)
        or arguments.compilation_config.cudagraph_capture_sizes
    )
    if settings.graphs == "stock" or arguments.enforce_eager or given or not _is_cuda():
        return
    largest = min(arguments.max_num_seqs or MOST_GRAPH_BATCH, MOST_GRAPH_BATCH)
    arguments.cudagraph_capture_sizes = graph_tokens(batches_up_to(largest), ks)
