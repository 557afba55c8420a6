"""Writes a language model of 100 kB with seeded random weights, which llama.cpp loads: `python random_model.py FILE`.

Its answers are noise, but its server is the real one: real tokens, real usage, a real grammar. The tokens are the
printable ASCII characters and all bytes, so a prompt of ASCII text has one token for each character.
"""

import sys
from pathlib import Path

import gguf
import numpy

SEED = 13
WIDTH = 32
HEADS = 2
FEED_FORWARD = 64
CONTEXT_TOKENS = 8192

CONTROL = ["<unk>", "<s>", "<|im_end|>", "<|im_start|>"]
BYTES = [f"<0x{value:02X}>" for value in range(256)]
CHARACTERS = ["▁", *(chr(code) for code in range(ord("!"), ord("~") + 1))]
TOKENS = CONTROL + BYTES + CHARACTERS
TYPES = (
    [gguf.TokenType.UNKNOWN]
    + [gguf.TokenType.CONTROL] * (len(CONTROL) - 1)
    + [gguf.TokenType.BYTE] * len(BYTES)
    + [gguf.TokenType.NORMAL] * len(CHARACTERS)
)


def write_model(path: Path) -> None:
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("random")
    writer.add_context_length(CONTEXT_TOKENS)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(1)
    writer.add_feed_forward_length(FEED_FORWARD)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_rope_dimension_count(WIDTH // HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(len(TOKENS))
    _add_tokenizer(writer)
    for name, weights in _weights().items():
        writer.add_tensor(name, weights.astype(numpy.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_tokenizer(writer: gguf.GGUFWriter) -> None:
    writer.add_tokenizer_model("llama")
    writer.add_token_list(TOKENS)
    writer.add_token_scores([0.0] * len(TOKENS))
    writer.add_token_types(TYPES)
    writer.add_unk_token_id(CONTROL.index("<unk>"))
    writer.add_bos_token_id(CONTROL.index("<s>"))
    writer.add_eos_token_id(CONTROL.index("<|im_end|>"))
    writer.add_add_bos_token(True)
    writer.add_add_space_prefix(False)


def _weights() -> dict[str, numpy.ndarray]:
    random = numpy.random.default_rng(SEED)

    def some(*shape: int) -> numpy.ndarray:
        return random.normal(0, 0.3, shape)

    embedding = some(len(TOKENS), WIDTH)
    output = some(len(TOKENS), WIDTH)
    attention = some(WIDTH, WIDTH)
    feed_forward = some(WIDTH, FEED_FORWARD)
    # Dimension 0 is a constant, a bias: bytes and control tokens are improbable, so the noise is ASCII text.
    embedding[:, 0] = 4
    attention[0] = feed_forward[0] = 0
    output[: len(CONTROL) + len(BYTES), 0] = -8
    output[CONTROL.index("<|im_end|>"), 0] = output[len(CONTROL) + len(BYTES) :, 0] = 0
    return {
        "token_embd.weight": embedding,
        "blk.0.attn_norm.weight": numpy.ones(WIDTH),
        "blk.0.attn_q.weight": some(WIDTH, WIDTH),
        "blk.0.attn_k.weight": some(WIDTH, WIDTH),
        "blk.0.attn_v.weight": some(WIDTH, WIDTH),
        "blk.0.attn_output.weight": attention,
        "blk.0.ffn_norm.weight": numpy.ones(WIDTH),
        "blk.0.ffn_gate.weight": some(FEED_FORWARD, WIDTH),
        "blk.0.ffn_up.weight": some(FEED_FORWARD, WIDTH),
        "blk.0.ffn_down.weight": feed_forward,
        "output_norm.weight": numpy.ones(WIDTH),
        "output.weight": output,
    }


if __name__ == "__main__":
    write_model(Path(sys.argv[1]))
