"""`import grasp_deploy` teaches transformers the pruned families, in any order of imports."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.tiny import random_kept, slice_by_hand, tiny_model

pytestmark = pytest.mark.slow  # each starts an interpreter that imports transformers


def run(*arguments: object) -> None:
    """Run a fresh interpreter; it fails if the code does."""
    subprocess.run([sys.executable, *map(str, arguments)], check=True, stdin=subprocess.DEVNULL)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("pruned")
    dense = tiny_model("qwen3")
    slice_by_hand(dense, random_kept(dense.config)).save_pretrained(path)
    return path


LOAD = """
import sys
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM
assert AutoConfig.from_pretrained(sys.argv[1]).model_type == "grasp_qwen3"
for auto, name in ((AutoModel, "GraspQwen3Model"), (AutoModelForCausalLM, "GraspQwen3ForCausalLM")):
    model = type(auto.from_pretrained(sys.argv[1]))
    place = "grasp_deploy.checkpoint.format.modeling_grasp"
    assert (model.__module__, model.__name__) == (place, name)
loader = sys.modules["transformers.models.auto.modeling_auto"].__spec__.loader
assert type(loader).__name__ == "SourceFileLoader", "inspect and reload find the real one"
"""


@pytest.mark.parametrize(
    "imports",
    [
        # This one loads the Auto modules while the module of Qwen3 is half loaded.
        "import grasp_deploy; from transformers import Qwen3ForCausalLM",
        "import grasp_deploy.checkpoint.format.modeling_grasp",
        "from transformers.models.auto import configuration_auto; import grasp_deploy",
    ],
)
def test_checkpoints_load_in_any_order_of_imports(imports: str, folder: Path) -> None:
    run("-c", imports + LOAD, folder)


SPAWN = """
import multiprocessing, sys
from importlib.abc import MetaPathFinder

class Asking(MetaPathFinder):
    # A hook that, like ours, asks the other finders, ours among them.
    busy = False

    def find_spec(self, name, path, target=None):
        if self.busy:
            return None
        self.busy = True
        try:
            for finder in sys.meta_path:
                if finder is not self and (spec := finder.find_spec(name, path, target)):
                    return spec
        finally:
            self.busy = False

def load(config):
    from transformers import AutoModel
    return type(AutoModel.from_config(config)).__name__

if __name__ == "__main__":
    import grasp_deploy
    sys.meta_path.insert(0, Asking())
    grasp_deploy.register_with_transformers()
    from transformers import AutoConfig
    config = AutoConfig.from_pretrained(sys.argv[1])
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.map(load, [config]) == ["GraspQwen3Model"] == [load(config)]
"""


def test_other_import_hooks_and_spawned_processes_go_on_working(folder: Path) -> None:
    script = folder.parent / "spawn.py"
    script.write_text(SPAWN)
    run(script, folder)


ADAPT = """
import sys
from transformers import AutoModelForCausalLM
from peft import IA3Config, LoraConfig, get_peft_model
for config in (LoraConfig(), IA3Config()):
    adapted = get_peft_model(AutoModelForCausalLM.from_pretrained(sys.argv[1]), config)
    assert adapted.get_nb_trainable_parameters()[0] > 0
"""


@pytest.mark.parametrize("imports", ["import grasp_deploy", "import peft, grasp_deploy"])
def test_peft_knows_the_default_modules_of_pruned_families(imports: str, folder: Path) -> None:
    pytest.importorskip("peft")
    run("-c", imports + ADAPT, folder)
