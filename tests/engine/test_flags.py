"""The flags for vLLM that our checks read, in every spelling that vLLM takes."""

from pathlib import Path

import pytest

from grasp_deploy.engine.flags import ServerFlags, read_flags
from grasp_deploy.errors import InputError


def test_no_flags_say_nothing() -> None:
    assert read_flags([]) == ServerFlags(None, None, None, 1, 1, None, None, False, False)


@pytest.mark.parametrize(
    "arguments",
    [
        ["--tensor-parallel-size", "2"],
        ["--tensor-parallel-size=2"],
        ["--tensor_parallel_size", "2"],
        ["--tensor_parallel_size=2"],
        ["--tensor-parallel", "2"],
        ["-tp", "2"],
        ["-tp=2"],
        ["-tp", "4", "-tp", "2"],
    ],
)
def test_tensor_parallel_size_in_every_spelling(arguments: list[str]) -> None:
    flags = read_flags(["--max-model-len", "64", *arguments, "--enforce-eager"])
    assert (flags.tensor_parallel_size, flags.workers) == (2, 2)


def test_workers_are_tensor_times_pipeline_parallel() -> None:
    assert read_flags(["-tp", "2", "-pp", "3"]).workers == 6
    assert read_flags(["--pipeline-parallel-size=2"]).workers == 2


def test_flags_unknown_here_and_their_values_are_left_to_vllm() -> None:
    unknown = ["--served-model-name", "a", "b", "--compilation-config", '{"mode": 0}', "-O3"]
    assert read_flags(unknown) == read_flags([])


def test_address_and_tokenizer() -> None:
    flags = read_flags(["--host", "::1", "--port=81", "--tokenizer", "T", "--skip_tokenizer_init"])
    assert (flags.host, flags.port, flags.tokenizer) == ("::1", 81, "T")
    assert flags.skip_tokenizer_init
    assert read_flags(["--uds", "socket"]).uds == "socket"


@pytest.mark.parametrize(
    "arguments",
    [
        ["--kv-cache-memory-bytes", "1G"],
        ["--gpu-memory-utilization=0.5"],
        ["--gpu_memory_utilization", "0.5"],
        ["--num-gpu-blocks-override", "9"],
    ],
)
def test_a_cache_size_is_seen_whichever_flag_sets_it(arguments: list[str]) -> None:
    assert read_flags(arguments).sets_cache_size


def test_a_config_file_is_read_and_the_command_line_wins(tmp_path: Path) -> None:
    config = tmp_path / "vllm.yaml"
    config.write_text(
        "host: 0.0.0.0\nport: 81\ntensor_parallel_size: 2\nskip-tokenizer-init: true\n"
        "trust-remote-code: false\nserved-model-name: [a, b]\n"
    )
    flags = read_flags(["--config", str(config), "--port", "82"])
    assert (flags.host, flags.port, flags.tensor_parallel_size) == ("0.0.0.0", 82, 2)
    assert flags.skip_tokenizer_init


def refusal(arguments: list[str]) -> str:
    with pytest.raises(InputError) as caught:
        read_flags(arguments)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_values_that_cannot_be_read_are_refused() -> None:
    start = "a flag for vLLM cannot be read: argument "
    assert refusal(["-tp", "two"]) == (
        f"{start}--tensor-parallel-size/-tp: invalid int value: 'two'"
    )
    assert refusal(["--port"]) == f"{start}--port: expected one argument"
    assert refusal(["--dtype", "int8"]).startswith(f"{start}--dtype: invalid choice: 'int8'")


def test_config_files_that_cannot_be_read_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "vllm.yaml"
    assert refusal(["--config", str(path)]) == (
        f"vLLM's --config {path} cannot be read ([Errno 2] No such file or directory: '{path}'): "
        "mend it"
    )
    path.write_text("a: [")
    assert refusal(["--config", str(path)]).startswith(f"vLLM's --config {path} cannot be read (")
    path.write_text("- a")
    assert refusal(["--config", str(path)]) == (
        f"vLLM's --config {path} is not a list of flags and values: mend it"
    )
