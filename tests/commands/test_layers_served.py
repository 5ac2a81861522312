"""`perfmodel study layers` of language models as they are served."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from perfmodel.workloads.decoder import Batch, published
from support.cli import perfmodel, succeeds

CONFIG = {
    "model_type": "llama", "torch_dtype": "bfloat16", "hidden_size": 4, "intermediate_size": 6,
    "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1, "vocab_size": 10,
}  # fmt: skip


def document(*words: str) -> dict[str, object]:
    found: dict[str, object] = json.loads(succeeds("study", "layers", *words, "--format", "json"))
    return found


def test_a_decode_is_bound_by_its_bytes() -> None:
    found = document("qwen3-8b", "--batch-size", "32", "--context", "1024", "--machine", "mi300x")
    model, batch = published()["qwen3-8b"], Batch.decode(32, 1024)
    least_s = (model.read_bytes(batch) + model.cache_bytes(batch)) / 5.3e12
    floors = found["floors"]
    assert isinstance(floors, dict)
    assert floors["decode"] == {"floor_s": pytest.approx(least_s), "floor_by": "memory"}
    assert floors["prefill"]["floor_by"] == "compute"
    assert found["kv_bytes_per_token"] == 147_456


@pytest.mark.parametrize(
    ("model", "context"), [("qwen3-8b", 64), ("deepseek-v3", 1024), ("gpt-oss-120b", 1024)]
)
def test_sequences_from_which_a_decode_is_bound_by_computing(model: str, context: int) -> None:
    words = model, "--context", str(context), "--machine", "h200"
    count = document(*words)["compute_bound_from"]
    assert isinstance(count, int)
    bounds = [
        document(*words, "--batch-size", str(n))["floors"]["decode"]["floor_by"]  # type: ignore[index]
        for n in (count - 1, count)
    ]
    assert bounds == ["memory", "compute"]


def test_a_long_cache_is_bound_by_memory_in_any_batch() -> None:
    """Of 16,384 tokens Qwen3-8B reads 2.4 GB a sequence, for 26 GFLOP."""
    words = "qwen3-8b", "--context", "16384", "--machine", "h200"
    assert document(*words)["compute_bound_from"] is None
    assert "by memory in batches of any size" in succeeds("study", "layers", *words)
    assert document("qwen3-8b")["compute_bound_from"] is None  # without a machine nothing is


def test_parts_add_up() -> None:
    found = document("gpt-oss-20b", "--batch-size", "4")
    rows = found["parts"]
    assert isinstance(rows, list)
    whole = next(row for row in rows if row["part"] == "all")
    for key in ("decode_flops", "decode_bytes", "prefill_flops", "prefill_bytes"):
        assert sum(row[key] for row in rows if row["part"] != "all") == pytest.approx(whole[key])


def test_a_configuration_with_a_context(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps(CONFIG))
    assert document(str(file), "--context", "5")["context"] == 5


def test_flags_of_training_are_refused() -> None:
    refused = perfmodel("study", "layers", "qwen3-8b", "--set", "seq=4")
    assert refused.exit_code == 2
    assert "training" in refused.stderr
