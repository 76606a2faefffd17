"""Tells PyTorch its share of the GPU's memory, inside the job; Python loads this file as `sitecustomize`.

With it a program that wants too much gets PyTorch's own out-of-memory error, which says where, instead of being killed.
It is a courtesy, and no barrier: a program can undo it. Nothing is imported or initialised earlier than it would be.
"""

import importlib.util
import os
import sys
from contextlib import suppress


class TorchFinder:
    """The first to be asked for every module: for `torch`, and once, it answers as the others would."""

    def find_spec(self, name, path=None, target=None):
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module

            def load_and_limit(module):
                load(module)
                with suppress(AttributeError):  # a build without CUDA, or of another time
                    module.cuda._lazy_call(lambda: limit(module.cuda))

            spec.loader.exec_module = load_and_limit
        return spec


def limit(cuda) -> None:
    """Called by PyTorch when, and if, it initialises CUDA."""
    share_bytes = int(os.environ["OPENMLE_VRAM_BYTES"])
    for device in range(cuda.device_count()):
        fraction = share_bytes / cuda.get_device_properties(device).total_memory
        cuda.set_per_process_memory_fraction(min(1.0, fraction), device)


sys.meta_path.insert(0, TorchFinder())
