"""Turns a GGUF file into a Hugging Face folder. Run as a program of its own: `python gguf_conversion.py FILE FOLDER`.

A process apart, because transformers is heavy and reads its settings from the environment when it is imported: no
serving process loads it. What goes wrong is one line on stderr and exit status 1. Imports nothing of Footplate.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

_ARCHITECTURES = ("llama", "mistral", "qwen2", "qwen3")
_KEPT_FILE_MODE = 0o644

_PRE_TOKENIZERS: dict[str, dict[str, Any]] = {
    # Digits apart before anything else, as llama.cpp's `smollm` does; transformers converts it as plain GPT-2.
    "smollm": {
        "type": "Sequence",
        "pretokenizers": [
            {"type": "Digits", "individual_digits": True},
            {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
        ],
    }
}


def convert(source: Path, target: Path) -> None:
    """Write `config.json`, `generation_config.json`, `model.safetensors` (bf16) and tokenizer files into `target`.

    Raises `ValueError` for a file whose architecture or rotary scaling cannot be taken over.
    """
    pre_tokenizer = _check(source)

    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    local: dict[str, Any] = {"gguf_file": source.name, "local_files_only": True}
    plain = GgufConfig(dequantize=True)
    model = AutoModelForCausalLM.from_pretrained(
        source.parent, dtype=torch.bfloat16, quantization_config=plain, **local
    )
    tokenizer = AutoTokenizer.from_pretrained(source.parent, **local)
    model.save_pretrained(target, max_shard_size="1000GB")
    tokenizer.save_pretrained(target)
    _edit_json(target / "config.json", removed=("_model_name_or_path", "quantization_config"))
    _edit_json(target / "tokenizer_config.json", removed=("is_local", "local_files_only", "gguf_file"))
    if pre_tokenizer in _PRE_TOKENIZERS:
        _edit_json(target / "tokenizer.json", pre_tokenizer=_PRE_TOKENIZERS[pre_tokenizer])
    for path in target.iterdir():
        path.chmod(_KEPT_FILE_MODE)


def _check(source: Path) -> str:
    """The name of the file's pre-tokenizer."""
    import gguf

    reader = gguf.GGUFReader(source)
    architecture = _text(reader, "general.architecture")
    if architecture not in _ARCHITECTURES:
        raise ValueError(f"architecture {architecture!r} is not supported; supported are {', '.join(_ARCHITECTURES)}")
    if any(tensor.name == "rope_freqs.weight" for tensor in reader.tensors):
        raise ValueError("rotary scaling kept as rope_freqs.weight is not supported; import the Hugging Face folder")
    return _text(reader, "tokenizer.ggml.pre")


def _text(reader: Any, key: str) -> str:
    field = reader.get_field(key)
    return "" if field is None else str(field.contents())


def _edit_json(path: Path, *, removed: tuple[str, ...] = (), **replaced: Any) -> None:
    values = json.loads(path.read_text(encoding="utf-8"))
    for name in removed:
        values.pop(name, None)
    values.update(replaced)
    path.write_text(json.dumps(values, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")


def _main() -> int:
    source, target = map(Path, sys.argv[1:])
    try:
        convert(source, target)
    except Exception as error:  # whatever it was, its reader wants one line
        first_line = (str(error).splitlines() or [""])[0]
        print(f"{type(error).__name__}: {first_line}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(_main())
