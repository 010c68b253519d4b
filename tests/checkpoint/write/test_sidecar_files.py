"""A pruned folder's tokenizer is its base model's, whoever loads it."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from grasp_deploy.checkpoint.verify import verify
from grasp_deploy.checkpoint.write.export import export
from grasp_deploy.checkpoint.write.sidecar_files import carried_over
from grasp_deploy.data.tokenizing import SAMPLE
from grasp_deploy.errors import InputError
from tests.checkpoint.test_equivalence import random_plan
from tests.cli.command import edit_json, needs_vllm
from tests.documents import ABSENT
from tests.tiny import STEMS, tiny_model

# Each program that loads the folders below its first argument, and prints what they make of a text.
PRINT_TOKENS = """
text = "<|im_start|> Once upon a time in 2024 <|im_end|>" + Path(sys.argv[2]).read_text()
made = {}
for folder in Path(sys.argv[1]).glob("*/*"):
    tokenizer = load(folder)
    chat = tokenizer.apply_chat_template([{"role": "user", "content": text}], tokenize=False)
    made[f"{folder.parent.name}/{folder.name}"] = [
        type(tokenizer).__name__, tokenizer(text)["input_ids"], tokenizer(chat)["input_ids"]
    ]
print(json.dumps(made))
"""
TRANSFORMERS = """
import json, sys
from functools import partial
from pathlib import Path
from transformers import AutoTokenizer
load = partial(AutoTokenizer.from_pretrained, trust_remote_code={trust})
"""
LOADERS = {
    "transformers and the package": TRANSFORMERS.format(trust=None)
    + "import grasp_deploy\ngrasp_deploy.register()\n",
    "transformers, trusting": TRANSFORMERS.format(trust=True),
    "vLLM": """
import json, sys
from pathlib import Path
from vllm.plugins import load_general_plugins
from vllm.tokenizers import get_tokenizer
load_general_plugins()
load = lambda folder: get_tokenizer(str(folder), tokenizer_mode="hf")
""",
}
CLASSES = ("Qwen2Tokenizer", "LlamaTokenizerFast", "GPT2Tokenizer", "PreTrainedTokenizerFast", None)
SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<unk>"]  # Gemma's class wants the last
TEMPLATE = "{% for m in messages %}<|im_start|>{{ m.role }} {{ m.content }}<|im_end|>{% endfor %}"


def byte_level_tokenizer() -> PreTrainedTokenizerFast:
    """A tokenizer with rules of its own, which none of transformers' classes would guess."""
    bpe = Tokenizer(models.BPE())
    pattern = Regex(r"\p{N}{1,3}| ?\p{L}+| ?[^\s\p{L}\p{N}]+|\s+")
    split = pre_tokenizers.Split(pattern, "isolated")
    letters = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    bpe.pre_tokenizer = pre_tokenizers.Sequence([split, letters])
    bpe.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=600, special_tokens=SPECIALS, initial_alphabet=alphabet, show_progress=False
    )
    bpe.train_from_iterator([SAMPLE, "Once upon a time there was a cat in 2024."] * 9, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe, eos_token=SPECIALS[0], chat_template=TEMPLATE
    )


def prune(base: Path, output: Path) -> Path:
    export(random_plan(base), base, output)
    return output


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Dense models and their pruned ones: `dense/FAMILY-CLASS` and `pruned/FAMILY-CLASS`."""
    root, tokenizer = tmp_path_factory.mktemp("tokenizers"), byte_level_tokenizer()
    for family in STEMS:
        model = tiny_model(family, vocab_size=600, num_hidden_layers=1)
        for name in CLASSES:
            base = root / "dense" / f"{family}-{name}"
            model.save_pretrained(base)
            tokenizer.save_pretrained(base)
            edit_json(base / "tokenizer_config.json", tokenizer_class=name or ABSENT)
            prune(base, root / "pruned" / base.name)
    return root


def made_by(loader: str, folders: Path) -> dict[str, Any]:
    """The class of each folder's tokenizer, and its tokens of a text and of a conversation."""
    (folders / "sample.txt").write_text(SAMPLE)
    alone = loader == "transformers, trusting"
    hidden = "import sys; sys.modules['grasp_deploy'] = None\n" if alone else ""
    ended = subprocess.run(
        [
            *(sys.executable, "-c", hidden + LOADERS[loader] + PRINT_TOKENS),
            *(folders, folders / "sample.txt"),
        ],
        stdin=subprocess.DEVNULL,  # nobody is asked for trust
        stdout=subprocess.PIPE,
        env={**os.environ, "HF_HOME": f"{folders}-hf", "VLLM_CONFIGURE_LOGGING": "0"},
        check=True,
    )
    return dict(json.loads(ended.stdout.splitlines()[-1]))


@pytest.mark.slow
@pytest.mark.parametrize(
    "loader",
    [
        pytest.param(loader, marks=[pytest.mark.vllm, needs_vllm] if loader == "vLLM" else [])
        for loader in LOADERS
    ],
)
def test_a_pruned_folder_makes_the_tokens_of_its_base(loader: str, folders: Path) -> None:
    made = made_by(loader, folders)
    dense = {name: found for name, found in made.items() if name.startswith("dense/")}
    assert len(dense) == len(STEMS) * len(CLASSES) and len(made) == 2 * len(dense)
    for name, found in dense.items():
        if found[0].endswith(("LlamaTokenizer", "GemmaTokenizer")):  # they lose bytes, and spaces
            found = dense[f"{name.rpartition('-')[0]}-PreTrainedTokenizerFast"]
        assert made[name.replace("dense/", "pruned/")] == found, name
    # The classes matter, or the comparison would prove nothing.
    assert len({tuple(ids) for _, ids, _ in dense.values()}) >= 3


def test_named_templates_and_no_code_travel(tmp_path: Path) -> None:
    base = tmp_path / "base"
    tiny_model("llama", vocab_size=600).save_pretrained(base)
    byte_level_tokenizer().save_pretrained(base)
    edit_json(base / "tokenizer_config.json", auto_map={"AutoTokenizer": ["theirs.Own", None]})
    (base / "additional_chat_templates").mkdir()
    (base / "additional_chat_templates/tool_use.jinja").write_text("{{ tools }}")
    pruned = prune(base, tmp_path / "out")
    assert all(check.ok for check in verify(pruned, str(base)))
    expected, found = (AutoTokenizer.from_pretrained(folder) for folder in (base, pruned))
    both = {"default": TEMPLATE, "tool_use": "{{ tools }}"}
    assert found.chat_template == expected.chat_template == both
    assert found.get_chat_template(tools=[{}]) == "{{ tools }}"
    assert "auto_map" not in (pruned / "tokenizer_config.json").read_text()


def test_the_pattern_of_an_older_mistral_is_mended_in_both_or_in_neither(tmp_path: Path) -> None:
    base, vocabulary = tmp_path / "base", 100_001  # transformers looks at large ones alone
    tiny_model("mistral", vocab_size=vocabulary, num_hidden_layers=1).save_pretrained(base)
    content = json.loads(byte_level_tokenizer().backend_tokenizer.to_str())
    known = content["model"]["vocab"]
    known |= {f"unused {number}": number for number in range(len(known), vocabulary)}
    backend = Tokenizer.from_str(json.dumps(content))
    PreTrainedTokenizerFast(tokenizer_object=backend).save_pretrained(base)
    edit_json(base / "tokenizer_config.json", fix_mistral_regex=True)
    edit_json(base / "config.json", transformers_version="4.57.1")
    pruned = prune(base, tmp_path / "out")
    loaded = (AutoTokenizer.from_pretrained(folder).backend_tokenizer for folder in (base, pruned))
    texts = [each.pre_tokenizer.pre_tokenize_str("camelCase 2024") for each in loaded]
    assert texts[0] == texts[1] and len(texts[0]) == 7  # camel, Case, a space, and digits


def test_no_link_out_of_the_folder_is_carried_over_and_no_code(tmp_path: Path) -> None:
    """The hub's cache links to its own blobs; a stranger's folder may link to anything."""
    folder, blob = tmp_path / "snapshots" / "main", tmp_path / "blobs" / "0"
    code = [folder / name for name in ("tokenizer.pkl", "tokenizer.py", "vocab.pkl")]
    for path in (folder / "LICENSE", *code, blob, tmp_path / "secret"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("text")
    (folder / "NOTICE").symlink_to(blob)
    assert carried_over(folder).keys() == {"LICENSE", "NOTICE"}
    (folder / "USE_POLICY.md").symlink_to(tmp_path / "secret")
    with pytest.raises(InputError, match=r"USE_POLICY.md links to a file outside"):
        carried_over(folder)
    (folder / "USE_POLICY.md").unlink()
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates" / "x.jinja").symlink_to(tmp_path / "secret")
    with pytest.raises(InputError, match=r"x.jinja links to a file outside"):
        carried_over(folder)
