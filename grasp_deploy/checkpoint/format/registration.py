"""Registration of pruned checkpoints with transformers and PEFT, without importing either.

Auto classes hold classes, not names, so registering means importing the model code, which means
importing torch. `import grasp_deploy` may do neither, so the registration waits. A finder in front
of `sys.meta_path` watches imports of transformers and of the two files here that import it. It
registers once an import that loaded an Auto module has ended as a whole: transformers imports its
Auto modules in the middle of loading others, when ours could not be loaded yet. PEFT's tables of
default modules wait in the same way.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

from grasp_deploy.checkpoint.format.families import FAMILIES

CONFIG_AUTO_MODULE = "transformers.models.auto.configuration_auto"
MODEL_AUTO_MODULE = "transformers.models.auto.modeling_auto"
PEFT_MODULE = "peft.utils.constants"
REGISTERED_IN = (CONFIG_AUTO_MODULE, MODEL_AUTO_MODULE, PEFT_MODULE)
OWN_MODULES = (
    "grasp_deploy.checkpoint.format.configuration_grasp",
    "grasp_deploy.checkpoint.format.modeling_grasp",
)


def register_with_transformers() -> None:
    """Register the pruned families with transformers and PEFT, now or once those are loaded.

    Imports nothing that is not loaded already. May be called any number of times.
    """
    if not any(isinstance(finder, TransformersWatcher) for finder in sys.meta_path):
        sys.meta_path.insert(0, TransformersWatcher())
    for name in REGISTERED_IN:
        if name in sys.modules:
            register_in(name)


def register_in(module: str) -> None:
    """Register what this module keeps: one of transformers' two Auto modules, or PEFT's."""
    if module == PEFT_MODULE:
        register_in_peft()
        return
    from grasp_deploy.checkpoint.format import configuration_grasp

    configs = [getattr(configuration_grasp, f"Grasp{family.stem}Config") for family in FAMILIES]
    if module == CONFIG_AUTO_MODULE:
        from transformers.models.auto.configuration_auto import AutoConfig

        for config in configs:
            AutoConfig.register(config.model_type, config, exist_ok=True)
        return

    from transformers.models.auto.modeling_auto import AutoModel, AutoModelForCausalLM

    from grasp_deploy.checkpoint.format import modeling_grasp

    for family, config in zip(FAMILIES, configs, strict=True):
        backbone = getattr(modeling_grasp, f"Grasp{family.stem}Model")
        with_head = getattr(modeling_grasp, family.pruned_architecture)
        AutoModel.register(config, backbone, exist_ok=True)
        AutoModelForCausalLM.register(config, with_head, exist_ok=True)


def register_in_peft() -> None:
    """Give the pruned families the default modules of their dense ones, for every adapter."""
    for name, modules_of in vars(sys.modules[PEFT_MODULE]).items():
        if name.startswith("TRANSFORMERS_MODELS_TO_") and isinstance(modules_of, dict):
            for family in FAMILIES:
                if family.model_type in modules_of:
                    modules_of[family.pruned_model_type] = modules_of[family.model_type]


class ImportProgress(threading.local):
    """Imports in progress on this thread."""

    def __init__(self) -> None:
        self.depth = 0  # watched modules whose execution has begun and not ended
        self.searching: set[str] = set()  # modules whose spec the other finders are looking for
        self.executed: list[str] = []  # modules executed and not yet registered in


class TransformersWatcher(MetaPathFinder):
    """A finder that wraps what the other finders find for the modules that it watches."""

    def __init__(self) -> None:
        self.progress = ImportProgress()

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        ours = fullname in (*OWN_MODULES, PEFT_MODULE)
        watched = ours or fullname.partition(".")[0] == "transformers"
        if not watched or fullname in self.progress.searching:
            return None
        self.progress.searching.add(fullname)  # another hook may ask us while we ask it
        try:
            spec = self._find_with_others(fullname, path, target)
        finally:
            self.progress.searching.discard(fullname)
        if spec is not None and spec.loader is not None:
            spec.loader = WatchedLoader(spec.loader, self.progress)
        return spec

    def _find_with_others(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None
    ) -> ModuleSpec | None:
        for finder in list(sys.meta_path):
            if finder is not self:
                spec = finder.find_spec(fullname, path, target)
                if spec is not None:
                    return spec
        return None


class WatchedLoader(Loader):
    """A loader that calls the real one, then registers if no watched import is left open."""

    def __init__(self, loader: Loader, progress: ImportProgress) -> None:
        self.loader = loader
        self.progress = progress

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self.loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        name = module.__name__
        # inspect, reload and resources must find the real loader.
        module.__loader__ = self.loader
        if module.__spec__ is not None:
            module.__spec__.loader = self.loader
        progress = self.progress
        progress.depth += 1
        try:
            self.loader.exec_module(module)
        finally:
            progress.depth -= 1
        if name in REGISTERED_IN:
            progress.executed.append(name)
        while progress.depth == 0 and progress.executed:
            register_in(progress.executed.pop(0))
