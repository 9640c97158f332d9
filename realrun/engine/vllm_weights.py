"""New weights for a running vLLM engine in the same process, through vLLM's own update path.

vLLM calls a backend between the start and the end of an update. Ours takes tensors of this process. On CPU
the linear layers are packed when they are loaded, so the model is reloaded layer by layer and packed again.
vLLM leaves out an output layer that shares its weight with the embedding, so that one is packed here. On CUDA
the tensors are copied into those that the captured graphs read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

BACKEND = "in_process"


def register() -> None:
    """Make the backend known to vLLM, once a process."""
    from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory

    if BACKEND not in WeightTransferEngineFactory._registry:
        WeightTransferEngineFactory.register_engine(BACKEND, _backend())


def _backend() -> type:
    """Return the class; its base can be imported only after the environment is prepared."""
    from vllm.distributed.weight_transfer import base
    from vllm.model_executor.model_loader import reload

    @dataclass
    class Nothing(base.WeightTransferInitInfo):
        """There is nobody to connect to."""

    @dataclass
    class Tensors(base.WeightTransferUpdateInfo):
        """Tensors by the names of a checkpoint."""

        weights: Mapping[str, Any] = field(default_factory=dict)

    class InProcess(base.WeightTransferEngine):
        """Loads tensors that are here already."""

        init_info_cls = Nothing
        update_info_cls = Tensors
        supports_draft_weight_update = True

        def init_transfer_engine(self, init_info: Any) -> None:
            """There is nobody to connect to."""

        def start_weight_update(self) -> None:
            if not self._in_place():
                reload.initialize_layerwise_reload(self.model)

        def receive_weights(self, update_info: Any) -> None:
            self.model.load_weights(iter(update_info.weights.items()))

        def finish_weight_update(self) -> None:
            if not self._in_place():
                reload.finalize_layerwise_reload(self.model, self.model_config)
                pack_tied(self.model)

        def shutdown(self) -> None:
            """Nothing is held."""

        def _in_place(self) -> bool:
            return bool(next(self.model.parameters()).is_cuda)

    return InProcess


def pack_tied(model: Any) -> None:
    """Pack output layers again whose weight is that of the embedding; without it they keep the old one.

    A checkpoint holds such a weight once, under the embedding's name, so the reload skips the output layer.
    """
    from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead, VocabParallelEmbedding

    tables = [layer for layer in model.modules() if isinstance(layer, VocabParallelEmbedding)]
    for layer in tables:
        shared = any(other is not layer and other.weight is layer.weight for other in tables)
        if isinstance(layer, ParallelLMHead) and shared:
            layer.quant_method.process_weights_after_loading(layer)
