"""Write a plain model, pruned or dense, as one GGUF file, which llama.cpp runs.

Two architectures of llama.cpp hold heads and FFN channels by layer: `deci`, and `openelm` where
queries and keys are normed. Tensors are read, converted and written one by one.
"""

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from errno import ENOSPC
from pathlib import Path
from typing import Any, NamedTuple

import numpy
import torch
from torch import Tensor
from transformers import PreTrainedConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from grasp_deploy.checkpoint.format.shapes import ModelShape
from grasp_deploy.checkpoint.read.loading import building, class_config, load_tokenizer
from grasp_deploy.checkpoint.read.source import unchanged, weight_states
from grasp_deploy.checkpoint.read.validate import read_stored_model
from grasp_deploy.checkpoint.write.gguf_tokenizer import add_tokenizer
from grasp_deploy.checkpoint.write.shards import read_tensor
from grasp_deploy.errors import InputError
from grasp_deploy.files.disk import readable_disk_errors, staged_at, sync
from grasp_deploy.files.outputs import check_file_place, check_room, lock_of, locked
from grasp_deploy.files.progress import OnCount

PARTS = {
    **{f"self_attn.{of}_proj": f"attn_{of}" for of in "qkv"},
    **{f"self_attn.{of}_norm": f"attn_{of}_norm" for of in "qk"},
    **{f"mlp.{of}_proj": f"ffn_{of}" for of in ("gate", "up", "down")},
    "self_attn.o_proj": "attn_output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}
WHOLE = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
KEPT_WIDER = ("token_embd.weight", "output.weight")  # 8 bits where the others have 4


class Entry(NamedTuple):
    """A tensor of the GGUF file, and the checkpoint's tensors that it holds, row below row."""

    name: str
    shape: tuple[int, ...]
    sources: tuple[str, ...] = ()
    heads: int = 0  # if not 0, rows are reordered within each of these heads


def check_place(output: Path, *, overwrite: bool) -> None:
    """Raise InputError if no file can be written there, or the package gguf is absent."""
    _refuse_existing(output, overwrite)
    try:
        import gguf  # noqa: F401
    except ImportError:
        raise InputError(
            "GGUF files need the package gguf: pip install 'grasp-deploy[gguf]'"
        ) from None


def write_gguf(
    directory: Path,
    output: Path,
    kind: str,
    *,
    name: str | None = None,
    overwrite: bool = False,
    on_progress: OnCount = lambda done, total: None,
) -> None:
    """Write a folder's model with its tokenizer and chat template.

    `kind` is f32, f16, bf16, q8_0 or q4_0; rows that blocks of 32 do not divide stay in float16.
    The file calls the model `name`, by default as its folder. Raises InputError for a model that
    llama.cpp cannot hold, for one that is damaged or quantised, and where the package gguf is
    absent.
    """
    check_place(output, overwrite=overwrite)
    from gguf import GGUFWriter

    states = weight_states(directory)
    model = read_stored_model(directory)
    with building(directory):
        config = class_config(model.config)
    _refuse_what_it_cannot_hold(config, model.shape)
    with building(directory):
        factors, stretch = _rope(config, model.shape.head_dim)
    writer = GGUFWriter(None, "openelm" if model.shape.family.qk_norm else "deci")
    _add_sizes(writer, config, model.shape, stretch, kind)
    writer.add_name(name or directory.resolve().name)
    add_tokenizer(writer, load_tokenizer(directory), model.shape.vocab_size, config.eos_token_id)
    made = {} if factors is None else {"rope_freqs.weight": factors}
    entries = [*_entries(model.shape), *(Entry(n, tuple(t.shape)) for n, t in made.items())]
    typed = [(entry, _type_of(entry, kind)) for entry in entries]
    check_room(output, sum(_size_bytes(*each) for each in typed))
    for entry, packed in typed:
        plain = numpy.dtype("float32")  # else gguf would take the shape for one of packed bytes
        writer.add_tensor_info(entry.name, entry.shape, plain, _size_bytes(entry, packed), packed)
    with _appearing(output, overwrite) as staged, unchanged(states):
        writer.write_header_to_file(staged)
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        for done, (entry, packed) in enumerate(typed, start=1):
            tensor = _joined(entry, model.files) if entry.sources else made[entry.name]
            writer.write_tensor_data(_packed(entry.name, tensor, packed))
            on_progress(done, len(entries))
        writer.close()


def _refuse_what_it_cannot_hold(config: PreTrainedConfig, shape: ModelShape) -> None:
    family, spread = shape.family, config.rope_parameters.get("rope_type", "default")
    window = getattr(config, "sliding_window", None) or math.inf
    has = {
        "a sliding window": window < config.max_position_embeddings,
        "experts": shape.experts_per_token,
        "queries scaled by position": shape.scales_queries,
        "linear attention": family.is_hybrid,
        f"what {family.stem} multiplies by": family.own,
        "normed queries and biases": family.qk_norm and shape.qkv_bias,
        "normed queries and a head of its own (lm_head)": family.qk_norm
        and not shape.tied_embeddings,
        f"positions spread as {spread} rope_parameters ask": family.qk_norm and spread != "default",
    }
    for found in (what for what, is_there in has.items() if is_there):
        raise InputError(
            f"llama.cpp has no architecture with heads by layer that holds {found}: serve this "
            "model with grasp-deploy serve instead"
        )


def _rope(config: PreTrainedConfig, width: int) -> tuple[Tensor | None, float]:
    """The `(D/2,)` divisors of frequencies, or None for all 1; and the factor on attention."""
    rope = config.rope_parameters
    kind = rope.get("rope_type", "default")
    if kind == "default":
        return None, 1.0
    scaled, stretch = ROPE_INIT_FUNCTIONS[kind](config, torch.device("cpu"))
    return rope["rope_theta"] ** -(torch.arange(0, width, 2) / width) / scaled, stretch


def _add_sizes(
    writer: Any, config: PreTrainedConfig, shape: ModelShape, stretch: float, kind: str
) -> None:
    from gguf import GGML_QUANT_VERSION, LlamaFileType

    writer.add_file_type(LlamaFileType[f"{'ALL' if kind == 'f32' else 'MOSTLY'}_{kind.upper()}"])
    writer.add_quantization_version(GGML_QUANT_VERSION)
    writer.add_block_count(len(shape.layers))
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(shape.hidden_size)
    writer.add_vocab_size(shape.vocab_size)
    writer.add_head_count([layer.num_attention_heads for layer in shape.layers])
    writer.add_head_count_kv([layer.num_key_value_heads for layer in shape.layers])
    writer.add_feed_forward_length([layer.intermediate_size for layer in shape.layers])
    for add in (writer.add_key_length, writer.add_value_length, writer.add_rope_dimension_count):
        add(shape.head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_rope_scaling_attn_factors(stretch)


def _entries(shape: ModelShape) -> Iterator[Entry]:
    """The tensors of the file in the order of the checkpoint's."""
    fused, sizes = shape.family.qk_norm, shape.tensor_shapes()
    for name, size in sizes.items():
        module, _, last = name.rpartition(".")
        if module in WHOLE:
            yield Entry(f"{WHOLE[module]}.{last}", size, (name,))
            continue
        _, _, layer, module = module.split(".", 3)
        part = PARTS[module]
        heads = {
            "attn_q": shape.layers[int(layer)].num_attention_heads,
            "attn_k": shape.layers[int(layer)].num_key_value_heads,
        }
        if not fused:  # deci rotates neighbouring rows together, transformers row i and i + D/2
            yield Entry(f"blk.{layer}.{part}.{last}", size, (name,), heads.get(part, 0))
        elif part == "attn_q":
            sources = tuple(name.replace("q_proj", f"{of}_proj") for of in "qkv")
            rows = sum(sizes[source][0] for source in sources)
            yield Entry(f"blk.{layer}.attn_qkv.{last}", (rows, *size[1:]), sources)
        elif part not in ("attn_k", "attn_v"):
            yield Entry(f"blk.{layer}.{part}.{last}", size, (name,))


def _type_of(entry: Entry, kind: str) -> Any:
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

    if len(entry.shape) == 1:
        return GGMLQuantizationType.F32
    wider = kind == "q4_0" and entry.name in KEPT_WIDER
    packed = GGMLQuantizationType["Q8_0" if wider else kind.upper()]
    divides = entry.shape[-1] % GGML_QUANT_SIZES[packed][0] == 0
    return packed if divides else GGMLQuantizationType.F16


def _size_bytes(entry: Entry, packed: Any) -> int:
    from gguf import GGML_QUANT_SIZES

    numbers, block_bytes = GGML_QUANT_SIZES[packed]
    return math.prod(entry.shape) // numbers * block_bytes


def _joined(entry: Entry, files: Mapping[str, Path]) -> Tensor:
    tensor = torch.cat([read_tensor(files[name], name) for name in entry.sources])
    if entry.heads:  # interleave the first and second half of each head's rows
        tensor = tensor.unflatten(0, (entry.heads, 2, -1)).transpose(1, 2).flatten(0, 2)
    return tensor


def _packed(name: str, tensor: Tensor, packed: Any) -> Any:
    from gguf import quants

    # Blocks have scales in float16, so their numbers have to be within its range.
    is_wide = packed.name in ("F32", "BF16")
    if not all(map(math.isfinite, (tensor if is_wide else tensor.half()).aminmax())):
        wider = "" if is_wide else ", or too large for float16: write --type bf16 or f32"
        raise InputError(f"{name} holds numbers that are not finite{wider}; fetch the model again")
    return quants.quantize(tensor.float().numpy(), packed)


def _refuse_existing(output: Path, overwrite: bool) -> None:
    """Raise InputError if no file may be written there; only a GGUF file may be overwritten."""
    if not check_file_place(output, "--output"):
        return
    with output.open("rb") as file:
        is_gguf = file.read(4) == b"GGUF"
    if not (overwrite and is_gguf):
        raise InputError(
            f"--output {output} exists: name another file, or replace a GGUF file with --overwrite"
        )


@contextmanager
def _appearing(output: Path, overwrite: bool) -> Iterator[Path]:
    """Yield a temporary path; its file becomes `output` when the block ends without an error."""
    staged = staged_at(output)
    with readable_disk_errors(output), locked(lock_of(output), output):
        try:
            staged.unlink(missing_ok=True)  # what a killed run left
            yield staged
            sync(staged)
            _refuse_existing(output, overwrite)  # again: somebody may have made it meanwhile
            staged.replace(output)
        except BaseException as error:
            staged.unlink(missing_ok=True)
            if isinstance(error, OSError) and error.errno is None:  # numpy's, of a full disk
                raise OSError(ENOSPC, "no room is left") from error
            raise
