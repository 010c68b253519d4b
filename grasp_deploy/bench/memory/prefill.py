"""Memory of one prefill, predicted from config.json alone: weights, KV cache, peak."""

from __future__ import annotations

from grasp_deploy.bench.memory.record import Sizes
from grasp_deploy.checkpoint.format.shapes import LayerShape, ModelShape

FLOAT32_BYTES, INT64_BYTES = 4, 8


def predict_prefill(shape: ModelShape, batch: int, prompt_tokens: int) -> Sizes:
    """Predict one prefill of `batch` prompts through the stock transformers forward.

    The path is the one for serving: KV cache kept, SDPA without a materialised mask, logits of the
    last position only, no gradients, full attention. All tensors that are alive at the worst moment
    are counted, to the byte. Not counted: scratch memory inside kernels (a BLAS workspace, the
    attention kernel's log-sum-exp), and what an allocator rounds up or holds back.

    The peak is the largest of these moments (`w` bytes a value; per token if nothing else is said):

    - in layer i: what `_layer_bytes` says, and the KV cache of the layers up to i;
    - the head: the last hidden states `d·w`, and the logits `V·w` of each prompt.

    Alive through all layers: the embeddings that came in `d·w`, the token ids 8, and for each
    position its number 8 and the rotary tables `2·D·w`.
    """
    tokens, width = batch * prompt_tokens, shape.bytes_per_parameter
    hidden = shape.hidden_size * width
    everywhere = tokens * (hidden + INT64_BYTES)
    everywhere += prompt_tokens * (INT64_BYTES + 2 * shape.head_dim * width)
    moments, kv_bytes = [], 0
    for index, layer in enumerate(shape.layers):
        kv_bytes += tokens * 2 * layer.num_key_value_heads * shape.head_dim * width
        layer_input = hidden if index else 0  # the first layer's is the embeddings
        alive = layer_input + _layer_bytes(shape, layer)
        moments.append(kv_bytes + everywhere + tokens * alive)
    head = tokens * (hidden + INT64_BYTES) + batch * shape.vocab_size * width
    moments.append(kv_bytes + head)
    return Sizes(
        weight_bytes=shape.weight_bytes,
        kv_bytes=kv_bytes,
        peak_bytes=shape.weight_bytes + max(moments),
        other_bytes=max(moments) - kv_bytes,
    )


def _layer_bytes(shape: ModelShape, layer: LayerShape) -> int:
    """Bytes per token that a layer makes at its worst moment, beside its input and its KV cache.

    With `h = d·w`, `q = H·D·w`, `k = K·D·w` (a value is as wide) and `f = F·w`:

    - q-norm (Qwen3): the layer's normed input h, q, and what RMSNorm makes of q's H rows; k and v
      are not there yet;
    - rotary of q: h, q, three temporaries of q, k and v; these two are not in the cache yet, where
      they are counted, and so left out here;
    - rotary of k: the same with the rotated q and three temporaries of k;
    - RMSNorm after attention: the residual h, and what RMSNorm makes of it;
    - MLP: the residual h, its input h, and gate, up and their product, `3·f`;
    - down_proj: the residual h, its input h, the product f, and what it returns, h.

    RMSNorm makes two float32 copies of its input, and a variance and its root for each row. What
    is never the most, because another of these always takes more, is left out (such as o_proj).
    """
    width = shape.bytes_per_parameter
    heads = layer.num_attention_heads
    hidden, ffn = shape.hidden_size * width, layer.intermediate_size * width
    queries = heads * shape.head_dim * width
    keys = layer.num_key_value_heads * shape.head_dim * width
    attention = hidden + queries + max(3 * queries, queries + 3 * keys)
    if shape.family.qk_norm:
        q_norm = heads * _norm_bytes(shape.head_dim)
        attention = max(attention, hidden + queries + q_norm - 2 * keys)
    norm = hidden + _norm_bytes(shape.hidden_size)
    mlp = 2 * hidden + max(3 * ffn, ffn + hidden)
    return max(attention, norm, mlp)


def _norm_bytes(row: int) -> int:
    return 2 * FLOAT32_BYTES * (row + 1)
