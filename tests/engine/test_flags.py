"""The flags for vLLM that our checks read, in every spelling that vLLM takes."""

import pytest

from grasp_deploy.engine.flags import read_flags
from grasp_deploy.errors import InputError


@pytest.mark.parametrize(
    "arguments",
    [
        ["--tensor-parallel-size", "2"],
        ["--tensor_parallel_size=2"],
        ["--tensor-parallel", "2"],
        ["-tp=2"],
        ["-tp", "4", "-tp", "2"],
    ],
)
def test_tensor_parallel_size_in_every_spelling(arguments: list[str]) -> None:
    flags = read_flags(["--max-model-len", "64", *arguments, "--enforce-eager"])
    assert (flags.tensor_parallel_size, flags.workers) == (2, 2)
    assert read_flags([*arguments, "-pp", "3"]).workers == 6
    assert read_flags([*arguments, "-dp=3", "-ep"]).workers == 6


def test_flags_unknown_here_and_their_values_are_left_to_vllm() -> None:
    unknown = ["--served-model-name", "a", "b", "--hf-overrides.max", "1", "-x3"]
    assert read_flags(unknown) == read_flags([])
    assert (read_flags([]).workers, read_flags([]).sets_cache_size) == (1, False)


@pytest.mark.parametrize(
    "words", ["-O0", "-O 3", "-O.mode=0", "-cc {}", "--compilation_config.mode=0"]
)
def test_flags_of_compilation(words: str) -> None:
    assert read_flags(words.split()).sets_compilation and not read_flags([]).sets_compilation


def test_secrets_in_every_spelling() -> None:
    token, key = ["--hf_token=a", "--api-key", "b", "c"], ["--watermark-config.key", "d"]
    assert read_flags([*token, *key, "--watermark_config={}"]).secrets == ["b", "c", "a", "d", "{}"]
    assert read_flags(["--watermark", "0.1"]).secrets == [], "a flag of another meaning"


def test_address_tokenizer_and_length() -> None:
    flags = read_flags(["--host", "::1", "--port=81", "--tokenizer", "T", "--skip_tokenizer_init"])
    assert (flags.host, flags.port, flags.tokenizer) == ("::1", 81, "T")
    assert flags.skip_tokenizer_init
    assert read_flags(["--uds", "socket"]).uds == "socket"
    lengths = [read_flags(["--max-model-len", text]).max_model_len for text in ("64", "1k")]
    assert lengths == [64, None]


def test_a_cache_size_is_seen_whichever_flag_sets_it() -> None:
    for name in ("kv-cache-memory-bytes", "gpu_memory_utilization", "num-gpu-blocks-override"):
        for spelled in ([f"--{name}", "9"], [f"--{name}=9"]):
            assert read_flags(spelled).sets_cache_size


@pytest.mark.parametrize(
    ("arguments", "culprit"),
    [
        ("-tp two", "--tensor-parallel-size"),
        ("--dtype int8", "--dtype"),
        ("-pp 0", "parallel size"),
        ("model --port 1", "'model'"),
        ("--model other", "--model other"),
        ("--config flags.yaml", "--config flags.yaml"),
        ("--en", "ambiguous option: --en"),
        ("--hf_config_path other", "--hf-config-path other"),
        ("--host=", "all of this machine's addresses"),
        ("--uds=", "all of this machine's addresses"),
    ],
)
def test_what_cannot_be_read_is_refused(arguments: str, culprit: str) -> None:
    with pytest.raises(InputError, match=culprit) as caught:
        read_flags(arguments.split())
    assert "\n" not in str(caught.value)
