"""Steps of serving engines: tokens, graph replays, formulas worked by hand, floors."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from test_findings import QUIET, find

from benchmarks.common.folders import PROGRAMS
from perfmodel.analysis.analyze import analyze
from perfmodel.analysis.result import RunAnalysis
from perfmodel.analysis.serving import usual_rows
from perfmodel.base.errors import PerfmodelError
from perfmodel.base.files import opened_unpacked
from perfmodel.base.kernels import kernel, kernel_types
from perfmodel.machines.devices import named
from perfmodel.programs.facts import Facts, ServingRow
from perfmodel.programs.program import Options
from perfmodel.programs.pytorch.operators import Call, Inference, formula_of, work_of
from perfmodel.programs.pytorch.replays import captures
from perfmodel.programs.serving.steps import engine_step
from perfmodel.programs.serving.times import _work, recognized
from perfmodel.readers import read
from perfmodel.render.analysis_json import analysis_document
from perfmodel.render.first_screen import screen
from perfmodel.timing.engine_steps import EngineStep
from perfmodel.workloads.decoder import Batch, published
from support import build_serving
from support.build_report import ReportBuilder
from support.once import run_of
from support.public_recordings import NAMES, larger, small

VLLM, SGLANG = ("vllm decode", "vllm capture"), ("sglang decode", "sglang capture")
"""Built: a replay, and its capture."""
RECORDED_VLLM = "vllm_decode_rocm.json.xz", "vllm_capture_rocm.json.xz"
RECORDED_SGLANG = "sglang_decode_mi300x.json.xz", "sglang_capture_mi300x.json.xz"


@cache
def folder_of_built() -> TemporaryDirectory[str]:
    """A folder that is removed at the end."""
    return TemporaryDirectory()


@cache
def path_of(name: str) -> Path:
    """Path of a built or of a public recording."""
    if name in NAMES:
        return small(name)
    engine, what = name.split()
    document = build_serving.capture(engine) if what == "capture" else build_serving.decode(engine)
    return build_serving.write(Path(folder_of_built().name), name.replace(" ", "_"), document)


@cache
def analyzed(report: str, capture: str | None = None) -> RunAnalysis:
    shapes = path_of(capture) if capture else None
    return analyze([read(path_of(report))], Options(shapes=shapes)).fitted


@pytest.mark.parametrize(
    ("name", "stage", "numbers"),
    [
        (
            "execute_32_context_0(sq0sk0sqsq0sqsk0)_generation_32(sq32sk55086sqsq32sqsk55086)",
            "decode", (0, 0, 32, 32, 55086, 55086, True),
        ),
        # 9 prompts: sum of sq sk - (sq^2 - sq) / 2, and one key a cached token of 37 answers
        (
            "execute_8192_context_9(sq8155sk8430sqsq7475785sqsk7671310)"
            "_generation_37(sq37sk34489sqsq37sqsk34489)",
            "mixed",
            (9, 8155, 37, 37, 8430 + 34489, 7671310 - (7475785 - 8155) // 2 + 34489, True),
        ),
        ("execute_context_1(888_788544)_generation_0(0)", "prefill",
         (1, 888, 0, 0, 888, 888 * 889 // 2, True)),
        ("execute_context_2(10)_generation_3(3)", "mixed", (2, 10, 3, 3, 13, 30 + 3, False)),
        ("step[DECODE bs=32]", "decode", (0, 0, 32, 32, 32, 32, False)),
        ("step[EXTEND bs=15 toks=15360]", "prefill",
         (15, 15360, 0, 0, 15360, (15360 * 1024 + 15360) // 2, False)),
        ("[Executor] _forward_step 7: 2 ctx reqs, 10 ctx tokens, 3 gen reqs", "mixed",
         (2, 10, 3, 3, 13, 33, False)),
        ("[Executor] _forward_step 7: 0 ctx reqs, 32 gen reqs", "decode",
         (0, 0, 32, 32, 32, 32, False)),
        # impossible sums: as if there were none
        ("step[DECODE bs=32 g_sqsq=0 g_sqsk=0 g_sk=0]", "decode", (0, 0, 32, 32, 32, 32, False)),
        ("execute_context_1(888_7844)_generation_0(0)", "prefill",
         (1, 888, 0, 0, 888, 888 * 889 // 2, False)),
        # 3 guessed tokens a sequence: sum of sq sk - (sq^2 - sq) / 2
        ("execute_128_context_0(sq0sk0sqsq0sqsk0)_generation_32(sq128sk65536sqsq512sqsk262144)",
         "decode", (0, 0, 32, 128, 65536, 262144 - (512 - 128) // 2, True)),
        ("step[DECODE bs=64 g_sqsq=64 g_sqsk=131072 g_sk=131072]", "decode",
         (0, 0, 64, 64, 131072, 131072, True)),
        # a chunk of two prompts that have 1,500 tokens before it
        ("step[EXTEND bs=2 toks=14721 c_sqsq=108745533 c_sqsk=120007533 c_sk=16221]", "prefill",
         (2, 14721, 0, 0, 16221, 120007533 - (108745533 - 14721) // 2, True)),
        ("step[MIXED bs=5 c=2 g=3 c_sq=6144 c_sk=7144 c_sqsq=20971520 c_sqsk=23019520 "
         "g_sq=3 g_sk=6144 g_sqsq=3 g_sqsk=6144]", "mixed",
         (2, 6144, 3, 3, 7144 + 6144, 23019520 - (20971520 - 6144) // 2 + 6144, True)),
        ("prefill[bs=2 tok=14721 ctx=[7803, 6918]]", "prefill",
         (2, 14721, 0, 0, 14721, (14721 * 14721 // 2 + 14721) // 2, False)),
        ("decode[bs=117/128 tok=117 d=117 sqsq=117 sqsk=239616 sk=239616]", "decode",
         (0, 0, 117, 117, 239616, 239616, True)),
        ("decode[bs=32 tok=128 d=32 spec=3 sqsq=512 sqsk=262144 sk=65536]", "decode",
         (0, 0, 32, 128, 65536, 261952, True)),
        ("decode[bs=128 tok=384 p=2 d=126 sqsq=132612 sqsk=1114112 sk=258048 tbo=1]", "mixed",
         (2, 258, 126, 126, 258048, 1114112 - (132612 - 384) // 2, True)),
    ],
)  # fmt: skip
def test_names_of_ranges_say_sequences_and_tokens(
    name: str, stage: str, numbers: tuple[Any, ...]
) -> None:
    found = engine_step(name)
    assert found is not None
    assert found.stage == stage
    assert numbers == (
        found.contexts, found.context_tokens, found.generations, found.generation_tokens,
        found.cached, found.pairs, found.exact,
    )  # fmt: skip


@pytest.mark.parametrize(
    "name",
    [
        "aten::mm", "step 3", "execute", "step[IDLE_OTHER bs=1]",
        # ranks without requests, draft models, and names that do not say how many tokens
        "step[IDLE bs=0]", "step[IDLE bs=4]", "step[DECODE bs=0]", "step[DRAFT_EXTEND bs=4]",
        "execute_context_0(0)_generation_0(0)", "execute_context_1(0)_generation_0(0)",
        "execute_0_context_0(sq0sk0sqsq0sqsk0)_generation_0(sq0sk0sqsq0sqsk0)",
        "step[MIXED bs=2]", "step[EXTEND bs=2]", "step[EXTEND bs=3 toks=2]",
        "[Executor] _forward_step 7: 2 ctx reqs, 3 gen reqs", "execute_new_2_cached_32",
        "decode[bs=1 tok=384 p=2]", f"step[DECODE bs={10**26}]",
    ],
)  # fmt: skip
def test_other_ranges_are_no_engine_steps(name: str) -> None:
    assert engine_step(name) is None


@pytest.mark.parametrize(
    ("pair", "calls"),
    [
        (VLLM, 24 * 13), (SGLANG, 36 * 13 + 2), (RECORDED_VLLM, 421), (RECORDED_SGLANG, 544),
    ],
    ids=["vllm", "sglang", "recorded-vllm", "recorded-sglang"],
)  # fmt: skip
def test_a_capture_has_the_calls_that_a_replay_runs(pair: tuple[str, str], calls: int) -> None:
    assert [len(one.call) for one in captures(read(path_of(pair[1])))] == [calls]


@pytest.mark.parametrize(
    "pair",
    [VLLM, SGLANG, RECORDED_VLLM, RECORDED_SGLANG],
    ids=["vllm", "sglang", "recorded-vllm", "recorded-sglang"],
)
def test_replayed_kernels_have_the_operators_of_their_capture(pair: tuple[str, str]) -> None:
    with_capture, without = analyzed(*pair), analyzed(pair[0])
    assert with_capture.work is not None
    assert without.work is not None
    assert with_capture.work.modelled > 0.99
    assert without.work.modelled < 0.05
    assert any("replayed by CUDA graphs" in text for text in without.warnings)
    assert not any("replayed by CUDA graphs" in text for text in with_capture.warnings)


def test_a_graph_of_any_program_that_is_captured_in_the_recording(tmp_path: Path) -> None:
    """As torch.compile(mode="reduce-overhead") captures in the first steps."""
    events = []
    for report in VLLM[::-1]:
        with opened_unpacked(path_of(report)) as stream:
            document = json.load(stream)
        events += [e for e in document["traceEvents"] if e.get("ph") == "X"]
    kept = []
    for event in events:
        if event["cat"] == "user_annotation":
            if not event["name"].startswith("execute_"):
                continue
            event["name"] = "ProfilerStep#1"
        kept.append(event)
    file = tmp_path / "both.json"
    file.write_text(json.dumps({**document, "traceEvents": kept}))
    run = analyze([read(file)], Options()).fitted
    assert run.program.name == "pytorch"
    assert run.work is not None
    calls = {row.name: row.count for row in run.work.operators if row.flops}
    assert calls["aten::addmm"] == 72
    assert "vllm::moe_forward" not in calls  # its weights are those of a model


def test_a_capture_of_another_program_is_not_joined() -> None:
    found = analyzed(VLLM[0], SGLANG[1])
    assert any("312 of 312 kernels are replayed" in text for text in found.warnings)


@pytest.mark.parametrize("lost", [-1, 200])
def test_a_replay_may_lack_its_last_kernel_alone(lost: int, tmp_path: Path) -> None:
    """A kernel that lacks in the middle shifts all others to other operators."""
    with opened_unpacked(path_of(SGLANG[0])) as stream:
        document = json.load(stream)
    events = document["traceEvents"]
    (launch,) = (e for e in events if e["name"] == "hipGraphLaunch")
    same = launch["args"]["correlation"]
    mine = [e for e in events if e["cat"] == "kernel" and e["args"].get("correlation") == same]
    left_out = sorted(mine, key=lambda e: e["ts"])[lost]
    document["traceEvents"] = [e for e in events if e is not left_out]
    file = tmp_path / "decode.json"
    file.write_text(json.dumps(document))
    capture = path_of(SGLANG[1])
    run = analyze([read(file)], Options(shapes=capture)).fitted
    assert run.work is not None
    assert (run.work.modelled > 0.99) == (lost == -1)
    assert any("replayed by CUDA graphs" in text for text in run.warnings) == (lost != -1)


@pytest.mark.parametrize(
    ("pair", "engine", "model", "cached"),
    [
        (VLLM, "vllm", "gpt-oss-20b", 40064),
        (SGLANG, "sglang", "qwen3-8b", 19232),
        (RECORDED_VLLM, "vllm", "gpt-oss-20b", 55086),
        (RECORDED_SGLANG, "sglang", "qwen3-8b", 32785),
    ],
    ids=["vllm", "sglang", "recorded-vllm", "recorded-sglang"],
)
def test_a_decode_reads_the_weights_of_the_configuration(
    pair: tuple[str, str], engine: str, model: str, cached: int
) -> None:
    (row,) = analyzed(*pair).serving
    said = (row.engine, row.phase, row.model, row.shards, row.sequences, row.generation_tokens)
    assert said == (engine, "decode", model, 1, 32, 32)
    assert row.cached_tokens == cached
    assert row.exact
    batch, known = Batch(32, 32, cached, cached), published()[model]
    assert row.weight_bytes == pytest.approx(known.read_bytes(batch), rel=0.01)
    assert row.cache_bytes == pytest.approx(known.cache_bytes(batch), rel=0.01)
    assert row.floor_by == "memory"
    assert row.floor_s == pytest.approx((row.weight_bytes + row.cache_bytes) / 5.3e12)  # type: ignore[operator]
    assert 0.2 < (row.of_floor or 0) < 0.4


def test_analysis_json_has_the_contract() -> None:
    from perfmodel.analysis.result import Analysis

    found = analysis_document(Analysis((analyzed(*SGLANG),)))["serving"]
    assert found["engine"] == "sglang"
    assert found["phase"] == "decode"
    assert (found["context_tokens"], found["generation_tokens"], found["sequences"]) == (0, 32, 32)
    assert found["floor_by"] == "memory"
    # 15.1 GB of weights; 19,232 tokens of 36 layers, 8 heads of 128 numbers for K and V: 2.84 GB
    assert found["floor_s"] == pytest.approx((15.14e9 + 2.84e9) / 5.3e12, rel=0.01)
    assert len(found["phases"]) == 1


def test_of_another_program_nothing_serves() -> None:
    from perfmodel.analysis.result import Analysis

    run = run_of(PROGRAMS / "gpt_shapes.sqlite.xz")
    assert run.serving == ()
    assert analysis_document(Analysis((run,)))["serving"] is None


def test_decoding_in_16_bits_is_a_finding() -> None:
    found = [f for f in analyzed(*SGLANG).findings if f.kind == "weights_not_quantized"]
    # half of the 15.1 GB of weights, at 5.3 TB/s
    assert [f.saving_s for f in found] == [pytest.approx(15.3e9 / 2 / 5.3e12, rel=0.02)]


def decode(**facts: Any) -> Facts:
    unknown = dict.fromkeys((
        "cache_bytes", "memory_s", "compute_s", "exchange_s", "floor_by",
        "compute_bound_sequences", "gap_s",
    ))  # fmt: skip
    nothing = dict.fromkeys((
        "context_tokens", "generation_tokens", "cached_tokens", "exchanges", "exchange_kernels_s",
        "experts_late_s", "read_bytes", "read_s", "wide_bytes", "replayed", "hidden",
    ), 0.0)  # fmt: skip
    serving: Any = {
        **unknown, **nothing, "engine": "sglang", "phase": "decode", "model": "", "shards": 1,
        "steps": 1, "sequences": 32, "generations": 32.0, "exact": True, "step_s": 10e-3,
        "busy_s": 9e-3, "weight_bytes": 15e9, "floor_s": 3e-3, "experts_s": (), "guesses": False,
    }  # fmt: skip
    row = ServingRow(**serving | facts)
    return replace(QUIET, serving=(row,), serving_shares={"decode": 0.5})


def kinds(facts: Facts) -> dict[str, float | None]:
    return {found.kind: found.saving_s for found in find(facts)}


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ({"exchanges": 64, "exchange_kernels_s": 400e-6, "exchange_s": 100e-6},
         {"small_exchanges": 150e-6}),  # half of the time is decoding
        ({"exchanges": 64, "exchange_kernels_s": 190e-6, "exchange_s": 100e-6}, {}),
        ({"exchanges": 64, "exchange_kernels_s": 190e-6}, {}),  # unknown link
        ({"experts_s": (4e-3, 6e-3), "experts_late_s": 1e-3}, {"unequal_experts": 0.5e-3}),
        ({"experts_s": (5e-3, 6e-3), "experts_late_s": 0.5e-3}, {}),
        ({"experts_s": (6e-3,)}, {}),
        ({"read_bytes": 32 * 256_000, "read_s": 300e-6}, {"host_sampling": 150e-6}),
        ({"read_bytes": 32 * 8, "read_s": 300e-6}, {}),
    ],
)  # fmt: skip
def test_findings_of_serving(facts: dict[str, Any], expected: dict[str, float]) -> None:
    assert kinds(decode(**facts)) == pytest.approx(expected)


def changed(tmp_path: Path, report: str, change: Callable[[dict[str, Any]], None]) -> Path:
    """Write a report of which an event after the other is changed."""
    with opened_unpacked(path_of(report)) as stream:
        document = json.load(stream)
    for event in document["traceEvents"]:
        change(event)
    file = tmp_path / f"{report}.json"
    file.write_text(json.dumps(document))
    return file


def test_token_ids_are_copied_to_the_host_and_logits_are_sampled_there(tmp_path: Path) -> None:
    (row,) = analyzed(*SGLANG).serving
    assert row.read_bytes == 32 * 8

    def logits(event: dict[str, Any]) -> None:
        if event.get("cat") == "gpu_memcpy" and event["args"]["bytes"] == 32 * 8:
            event["args"]["bytes"] = 32 * 151_936 * 2
            event["dur"] = 400

    run = analyze([read(changed(tmp_path, SGLANG[0], logits))], Options()).fitted
    found = [f for f in run.findings if f.kind == "host_sampling"]
    assert [f.saving_s for f in found] == [run.serving[0].read_s] == [pytest.approx(400e-6)]
    assert "304 kB a sequence" in found[0].evidence


def test_ranks_with_unequal_experts(tmp_path: Path) -> None:
    """Two ranks of one engine; the experts of the first take half of the recorded time."""
    capture = path_of(VLLM[1])
    spent = analyzed(*VLLM).serving[0].experts_s[0]
    files = []
    for rank in range(2):
        (tmp_path / f"{rank}").mkdir()

        def shorter(event: dict[str, Any], rank: int = rank) -> None:
            if (
                event.get("name", "").startswith("_matmul_ogs")
                and event.get("cat") == "kernel"
                and not rank
            ):
                event["dur"] /= 2

        file = changed(tmp_path / f"{rank}", VLLM[0], shorter)
        document = json.loads(file.read_text())
        document["distributedInfo"] = {"backend": "nccl", "rank": rank, "world_size": 2}
        file.write_text(json.dumps(document))
        files.append(file)
    run = analyze([*map(read, files)], Options(shapes=capture)).fitted
    (row,) = run.serving
    assert row.steps == 1
    assert len(row.experts_s) == 2
    assert row.experts_s[1] == pytest.approx(spent)
    assert row.experts_s[0] < row.experts_s[1]
    late = (row.experts_s[1] - row.experts_s[0]) / 2
    assert row.experts_late_s == pytest.approx(late)
    assert [f.saving_s for f in run.findings if f.kind == "unequal_experts"] == [late]


def test_times_to_tokens() -> None:
    (row,) = analyzed(*SGLANG).serving
    assert row.ttft_s is None
    assert (row.tpot_s, row.tpot_gpu_s) == (row.step_s, row.busy_s)
    assert row.tpot_floor_s == row.floor_s
    guessed = replace(row, generation_tokens=64.0)  # two tokens a sequence, one of them guessed
    assert guessed.tpot_s == row.step_s / 2
    prompt = replace(row, phase="prefill", context_tokens=100.0, generation_tokens=0.0)
    assert (prompt.ttft_s, prompt.ttft_gpu_s, prompt.tpot_s) == (row.step_s, row.busy_s, None)


@pytest.mark.parametrize(
    ("report", "capture", "step", "times", "busy", "floor"),
    [
        (*VLLM, "9.20 ms", "3.6", "8.86 ms", "2.55 ms"),
        (VLLM[0], None, "9.20 ms", "", "", ""),
        (*RECORDED_VLLM, "10.7 ms", "4.1", "10.7 ms", "2.62 ms"),
        (RECORDED_VLLM[0], None, "10.7 ms", "", "", ""),
    ],
    ids=["capture", "hidden", "recorded-capture", "recorded-hidden"],
)
def test_the_verdict_is_the_step_beside_its_floor(
    report: str, capture: str | None, step: str, times: str, busy: str, floor: str
) -> None:
    run = analyzed(report, capture)
    said = run.summary.verdict.text
    assert said.startswith(f"A decode of 32 sequences takes {step}")
    lines = "\n".join(screen(run))
    if capture:
        assert f"{times} times its floor: memory needs {floor} for weights and KV cache" in said
        assert f"decode   TPOT {step} · busy {busy} · floor {floor}" in lines
        assert "serving gpt-oss-20b" in lines
    else:
        assert "floor" not in said
        assert "CUDA graphs hide the floor: give --shapes CAPTURE, or --decoder MODEL" in lines
        assert not any("record every operator's sizes" in text for text in run.warnings)
    assert run.summary.mfu is None  # a decode is bound by the memory
    assert "--section idle|kernels|operators|serving|" in lines


@pytest.mark.parametrize(
    ("pair", "model"),
    [
        (VLLM, "gpt-oss-20b"), (SGLANG, "qwen3-8b"), (RECORDED_VLLM, "gpt-oss-20b"),
        (RECORDED_SGLANG, "qwen3-8b"),
    ],
)  # fmt: skip
def test_the_floor_of_a_hidden_decode_by_its_model(pair: tuple[str, str], model: str) -> None:
    """The configuration and the operators of the capture say the same within 1 %."""
    options = Options(decoder=published()[model])
    (by_model,) = analyze([read(path_of(pair[0]))], options).fitted.serving
    (by_capture,) = analyzed(*pair).serving
    assert (by_model.model, by_model.shards, by_model.floor_by) == (model, 1, "memory")
    assert by_model.floor_s == pytest.approx(by_capture.floor_s, rel=0.01)
    assert by_model.weight_bytes == pytest.approx(by_capture.weight_bytes, rel=0.01)
    assert (by_model.hidden, by_capture.hidden) == (by_model.replayed, 0)
    assert by_model.replayed > 0.9


@pytest.mark.parametrize(
    ("name", "sequences", "cached", "times"),
    [("hidden decode", 32, 16416, "1.2"), ("sglang_decode_b300.json.xz", 16, 8193, "1.3")],
)
def test_a_hidden_decode_near_its_floor_reads_wide_weights(
    name: str, sequences: int, cached: int, times: str
) -> None:
    """Qwen3-30B-A3B on a B300: 16 sequences reach 82 of 128 experts a layer, if evenly."""
    model = published()["qwen3-30b-a3b"]
    report = path_of(name)
    run = analyze([read(report)], Options(decoder=model)).fitted
    (row,) = run.serving
    assert (row.sequences, row.cached_tokens, row.exact) == (sequences, cached, True)
    batch = Batch(sequences, sequences, cached, cached)
    assert row.weight_bytes == pytest.approx(model.read_bytes(batch))
    assert row.floor_s == pytest.approx((row.weight_bytes + model.cache_bytes(batch)) / 8e12)
    assert row.floor_s < row.busy_s < row.step_s
    assert f"{times} times its floor" in run.summary.verdict.text
    (wide,) = [f for f in run.findings if f.kind == "weights_not_quantized"]
    parts = {part.name: model.part_bytes(part, batch) for part in model.parts()}
    read_wide = sum(parts[name] for name in ("qkv", "attention output", "experts"))
    assert wide.saving_s == pytest.approx(read_wide / 2 / 8e12)
    assert "by the configuration of qwen3-30b-a3b" in wide.evidence
    (unknown,) = analyze([read(report)], Options()).fitted.serving
    assert (unknown.model, unknown.floor_s, unknown.weight_bytes) == ("", None, None)


def test_weights_that_are_quantized_are_no_finding() -> None:
    """gpt-oss has experts of 4 bits: its matrices of 16 bits are a tenth of what it reads."""
    options = Options(decoder=published()["gpt-oss-20b"])
    run = analyze([read(path_of(VLLM[0]))], options).fitted
    assert not [f for f in run.findings if f.kind == "weights_not_quantized"]


def test_a_quantized_model_has_the_peaks_of_its_types() -> None:
    """DeepSeek-V3 on 8 GPUs that multiply FP8: a floor of BF16 would be twice as high."""
    known = recognized([], published()["deepseek-v3"], 8)
    step = EngineStep("vllm", 1, 4096, 0, 0, 4096, 4096 * 4097 // 2, True)
    work = _work([], [], step, known, covered=False)
    units = dict(work.flops)
    assert set(units) == {"bfloat16_tensor", "float8_tensor"}
    whole = published()["deepseek-v3"].flops(Batch.prefill(1, 4096)) / 8
    assert sum(units.values()) == pytest.approx(whole)
    assert units["float8_tensor"] > 0.8 * whole  # the rest attends, routes and is the head
    assert work.exchange_bytes == 4096 * 7168 * 2 * 2 * 61


def test_operators_say_the_model_whatever_is_given() -> None:
    shapes = path_of(SGLANG[1])
    options = Options(shapes=shapes, decoder=published()["llama-3.1-8b"])
    (row,) = analyze([read(path_of(SGLANG[0]))], options).fitted.serving
    assert row.model == "qwen3-8b"


def test_a_replayed_step_is_not_advised_to_be_replayed() -> None:
    (found,) = [f for f in analyzed(SGLANG[0]).findings if f.kind == "launch_bound"]
    assert "graph replays" in found.title
    assert "cuda-graph" not in found.action
    assert "--async-scheduling" in found.action


def test_kernels_of_unseen_types_are_no_single_precision() -> None:
    """Composable Kernel writes bfloat16 as unsigned short, and its sums are FP32."""
    factors = "RowMajor>, ck::RowMajor, unsigned short, unsigned short, float, float, ck::Tuple<>"
    types = kernel_types(f"void ck::kernel_moe_gemm<ck::GridwiseMoeGemm<ck::{factors}> >(int)")
    assert types.unit == "bfloat16_tensor"
    assert not kernel("void cublasLt::splitKreduce_kernel<32, 16, int, float, float>()").multiplies


def test_findings_of_operators_have_the_lines_of_their_capture(tmp_path: Path) -> None:
    """The line that launches the graph is the same for all kernels, and says nothing."""
    with opened_unpacked(path_of(VLLM[1])) as stream:
        document = json.load(stream)
    events = document["traceEvents"]
    calls = {"vllm::moe_forward": "experts.py(7): run", "aten::addmm": "linear.py(8): apply"}
    functions = [
        {**e, "cat": "python_function", "name": calls[e["name"]], "ts": e["ts"] - 0.01,
         "dur": e["dur"] + 0.02, "args": {"Python id": i}}
        for i, e in enumerate(events) if e.get("name") in calls and "dur" in e
    ]  # fmt: skip
    file = tmp_path / "capture.json"
    file.write_text(json.dumps({**document, "with_stack": 1, "traceEvents": events + functions}))
    run = analyze([read(path_of(VLLM[0]))], Options(shapes=file)).fitted
    lines = {
        f.title.partition(" ")[0]: f.line for f in run.findings if f.kind == "kernel_below_ceiling"
    }
    assert lines["vllm::moe_forward"] == "experts.py:7 in run"
    assert lines["aten::addmm"] == "linear.py:8 in apply"


def eager(tmp_path: Path, tokens: int) -> Path:
    """Write the step of a graph as if its captured calls had launched the kernels one by one."""
    documents = []
    for report in VLLM:
        with opened_unpacked(path_of(report)) as stream:
            documents.append(json.load(stream))
    replay, capture = documents
    (launch,) = (e for e in replay["traceEvents"] if e["name"] == "hipGraphLaunch")
    same = launch["args"]["correlation"]
    mine = [e for e in replay["traceEvents"] if e.get("args", {}).get("correlation") == same]
    kernels = sorted((e for e in mine if e is not launch), key=lambda e: e["ts"])
    kernels = [e for e in kernels if e["cat"] in ("kernel", "gpu_memcpy", "gpu_memset")]
    (begin,) = (e for e in capture["traceEvents"] if "BeginCapture" in e["name"])
    calls = [
        e for e in capture["traceEvents"]
        if e["cat"] == "cuda_runtime" and e["ts"] > begin["ts"] and "Launch" in e["name"]
    ]  # fmt: skip
    calls.sort(key=lambda e: e["ts"])
    assert len(kernels) == len(calls[: len(kernels)])
    events = [e for e in capture["traceEvents"] if "Capture" not in e["name"]]
    events = [e for e in events if not e["name"].startswith("capture_")]
    for i, (kernel_, call_) in enumerate(zip(kernels, calls, strict=False)):
        call_["args"]["correlation"] = 900_000 + i
        at = call_["ts"] + call_["dur"] + 1
        events.append(
            {**kernel_, "ts": at, "args": {**kernel_["args"], "correlation": 900_000 + i}}
        )
    first, last = calls[0]["ts"] - 1, calls[-1]["ts"] + 1000
    name = f"execute_context_0(0)_generation_{tokens}({tokens})"
    events.append({**calls[0], "cat": "user_annotation", "name": name, "ts": first,
                   "dur": last - first, "args": {}})  # fmt: skip
    file = tmp_path / "eager.json"
    file.write_text(json.dumps({**capture, "traceEvents": events}))
    return file


@pytest.mark.parametrize(("tokens", "joined"), [(32, True), (48, True), (16, False), (64, False)])
def test_a_run_without_a_graph_names_the_operators_of_a_replay(
    tokens: int, joined: bool, tmp_path: Path
) -> None:
    """As a warm-up does; one of another batch has other sizes, unless it is padded to it."""
    options = Options(shapes=eager(tmp_path, tokens))
    run = analyze([read(path_of(VLLM[0]))], options).fitted
    assert run.work is not None
    assert (run.work.modelled > 0.99) == joined
    if joined:
        assert run.serving[0].floor_s == pytest.approx(analyzed(*VLLM).serving[0].floor_s)


def several(tmp_path: Path, labels: list[str]) -> Path:
    """Write the recorded decode once for each label, one after the other."""
    with opened_unpacked(path_of(SGLANG[0])) as stream:
        document = json.load(stream)
    events = [e for e in document["traceEvents"] if e.get("ph") == "X"]
    first = min(e["ts"] for e in events)
    lasts = max(e["ts"] + e["dur"] for e in events) - first + 500
    most = max(e.get("args", {}).get("correlation", 0) for e in events) + 1
    written = []
    for i, label in enumerate(labels):
        for event in events:
            annotates = event["cat"] in ("user_annotation", "gpu_user_annotation")
            if annotates and not event["name"].startswith("step["):
                continue
            one = {**event, "ts": event["ts"] + i * lasts, "args": {**event.get("args", {})}}
            one["name"] = label if annotates else event["name"]
            for key in ("correlation", "External id"):
                if one["args"].get(key):
                    one["args"][key] += i * most
            written.append(one)
    file = tmp_path / "several.json"
    file.write_text(json.dumps({**document, "traceEvents": written}))
    return file


def test_batches_that_change_are_steps_of_one_kind(tmp_path: Path) -> None:
    """Equal names repeat for a while in a server's recording, and are not the steps alone."""
    labels = [
        "step[EXTEND bs=1 toks=64]", *["step[DECODE bs=32]"] * 6, "step[EXTEND bs=2 toks=2048]",
        "step[IDLE bs=0]", "step[MIXED bs=5]", *["step[DECODE bs=34]"] * 5,
    ]  # fmt: skip
    run = analyze([read(several(tmp_path, labels))], Options()).fitted
    assert run.batch.label == "step*"
    rows = {(row.phase, row.sequences): row.steps for row in run.serving}
    assert {("decode", 32), ("decode", 34), ("prefill", 2)} <= rows.keys()
    assert rows["decode", 32] == 6
    assert any("1 of 15 steps do not name their tokens" in text for text in run.warnings)
    assert "A decode of 32 sequences (of 32 to 34) takes" in run.summary.verdict.text
    lines = "\n".join(screen(run))
    assert " decode   TPOT" in lines
    assert " prefill  TTFT" in lines


def test_the_median_step_of_a_phase_has_a_median_batch(tmp_path: Path) -> None:
    labels = [f"step[DECODE bs={1 + i % 5}]" for i in range(11)]
    run = analyze([read(several(tmp_path, labels))], Options()).fitted
    assert len(run.serving) == 5
    (usual,) = usual_rows(run.serving)
    times = sorted(row.step_s for row in run.serving)
    assert times[1] <= usual.step_s <= times[3]
    assert len(run.summary.verdict.text) < 350


@pytest.mark.parametrize(
    ("label", "joined"),
    [
        ("step[DECODE bs=32]", True),
        ("step[DECODE bs=20]", True),  # padded
        ("step[DECODE bs=40]", False),  # more than the graph holds
        ("execute_context_0(0)_generation_32(128)", True),  # named by its sequences
        ("execute_context_0(0)_generation_40(160)", False),
    ],
)
def test_a_capture_holds_the_batches_that_replay_it(
    label: str, joined: bool, tmp_path: Path
) -> None:
    options = Options(shapes=path_of(SGLANG[1]))
    run = analyze([read(several(tmp_path, [label] * 4))], options).fitted
    assert run.work is not None
    assert (run.work.modelled > 0.9) == joined
    assert (run.serving[0].floor_s is not None) == joined


def test_a_folder_of_captures_has_one_for_each_batch(tmp_path: Path) -> None:
    """As SGLang writes them, beside a note that is no recording."""
    folder = tmp_path / "captures"
    folder.mkdir()
    with opened_unpacked(path_of(SGLANG[1])) as stream:
        text = stream.read().decode()
    assert "capture_32_" in text
    for batch in (64, 32):
        written = text.replace("capture_32_", f"capture_{batch}_")
        (folder / f"bs_{batch}.json").write_text(written)
    (folder / "execution_details.json").write_text('{"model": "Qwen3-8B"}')
    labels = ["step[DECODE bs=20]"] * 3 + ["step[DECODE bs=40]"] * 3
    report = several(tmp_path, labels)
    for shapes, joined in ((folder, 1.0), (folder / "bs_32.json", 0.5)):
        run = analyze([read(report)], Options(shapes=shapes)).fitted
        (found,) = run.measured.operators
        assert found.hidden == pytest.approx(
            (1 - joined) * build_serving.kernels("sglang") * len(labels)
        )
    notes = tmp_path / "notes"
    notes.mkdir()
    (notes / "a.json").write_text("{}")
    with pytest.raises(PerfmodelError, match="expected"):
        analyze([read(report)], Options(shapes=notes))


@pytest.mark.parametrize(
    ("label", "tpot"),
    [
        ("step[TARGET_VERIFY bs=4]", None),  # of how many tokens the name does not say
        ("execute_context_0(0)_generation_32(128)", 0.25),  # at the least, if all are accepted
    ],
)
def test_speculative_decoding(label: str, tpot: float | None, tmp_path: Path) -> None:
    run = analyze([read(several(tmp_path, [label] * 5))], Options()).fitted
    (row,) = run.serving
    assert row.phase == "decode"
    assert row.tpot_s == (None if tpot is None else pytest.approx(tpot * row.step_s))
    assert f"decode   {'step' if tpot is None else 'TPOT at least'} " in "\n".join(screen(run))


@pytest.mark.parametrize("label", ["step[IDLE bs=0]", f"step[DECODE bs={10**26}]"])
def test_steps_without_requests_and_damaged_names_serve_nothing(label: str, tmp_path: Path) -> None:
    run = analyze([read(several(tmp_path, [label] * 4))], Options()).fitted
    assert run.program.name == "serving"
    assert run.serving == ()
    assert "sequences" not in run.summary.verdict.text


@pytest.mark.parametrize("decoder", [None, "llama-3.1-8b"])
def test_graphs_of_an_engine_in_a_report_of_nsight_systems(
    decoder: str | None, tmp_path: Path
) -> None:
    """As TensorRT-LLM names its steps: 10 ms of replayed kernels, a step every 20 ms."""
    report, ms = ReportBuilder("2025.3.2"), 1_000_000
    report.gpu(0)
    thread = report.thread()
    for i in range(8):
        at = 20 * ms * (i + 1)
        name = f"[Executor] _forward_step {i}: 0 ctx reqs, 0 ctx tokens, 32 gen reqs"
        thread.range(name, at, at + 2 * ms)
        launch = thread.api("cudaGraphLaunch_v10000", at + 100, at + 1_000)
        for k in range(10):
            begin, end = at + k * ms + 2_000, at + (k + 1) * ms
            thread.kernel(
                "nvjet_sm90_tst_128x192_64x5_1x4_h_bz_coopB_NTN", None, (begin, end), device=0,
                stream=7, correlation=launch, graphNodeId=(1 << 32) + k,
            )  # fmt: skip
    model = published()[decoder] if decoder else None
    options = Options(decoder=model, machine=named("h200"))
    run = analyze([read(report.write(tmp_path / "trt.sqlite"))], options).fitted
    (row,) = run.serving
    assert (row.engine, row.phase, row.sequences, row.exact) == (
        "tensorrt_llm",
        "decode",
        32,
        False,
    )
    assert row.tpot_s == pytest.approx(20e-3)
    assert (row.replayed, row.hidden) == (1, 1)
    assert row.compute_bound_sequences is None  # how long the sequences are is not known
    assert not any("recording sizes" in f.evidence for f in run.findings)
    lower = model and (model.read_bytes(Batch(32, 32, 32, 32)) + model.cache_bytes(
        Batch(32, 32, 32, 32))) / 4.8e12  # fmt: skip
    assert row.floor_s == (pytest.approx(lower) if lower else None)


def test_a_decode_without_graphs_is_launch_bound(tmp_path: Path) -> None:
    """The step of a graph, its kernels launched one by one: the CPU is too slow for them."""
    run = analyze([read(eager(tmp_path, 32))], Options()).fitted
    assert run.serving[0].replayed == 0
    (found,) = [f for f in run.findings if f.kind == "launch_bound"]
    assert "launches" in found.title
    assert "--enforce-eager" in found.action
    assert (found.share or 0.0) > 0.5


# --- formulas, by hand

STEP = EngineStep("vllm", 0, 0, 2, 2, 100, 100, True)
PROMPT = EngineStep("vllm", 1, 4, 0, 0, 4, 10, True)


def call(name: str, *sizes: tuple[int, ...], **facts: Any) -> Call:
    items = facts.pop("items", (2,) * len(sizes))
    return Call(name, sizes, items=items, item=2, dtype=facts.pop("dtype", "bfloat16"), **facts)


WORKED = [
    # 4 H D pairs; q in, out, and 100 tokens of K and V of 2 heads of 8
    (call("vllm::unified_attention_with_output", (2, 4, 8), (2, 2, 8), inference=Inference(STEP)),
     (4 * 4 * 8 * 100, 2 * 4 * 8 * 2 + 100 * 2 * 2 * 8 * 2, 2 * 4 * 8 * 2)),
    (call("vllm::unified_attention_with_output", (4, 4, 8), (4, 2, 8), inference=Inference(PROMPT)),
     (4 * 4 * 8 * 10, 4 * 4 * 8 * 2 + 4 * 2 * 2 * 8 * 2, 4 * 4 * 8 * 2)),
    # the number of a line behind the name
    (call("sglang_profiler::attention_paged_attention_ragged_100", (2, 4, 8), (9,), (2, 4, 8),
          (500, 1, 2, 8), inference=Inference(STEP)),
     (4 * 4 * 8 * 100, 2 * 4 * 8 * 2 + 100 * 2 * 2 * 8 * 2, 2 * 4 * 8 * 2)),
    # DeepSeek-V3: 512 + 64 numbers a token for all heads
    (call("vllm::unified_mla_attention_with_output", (2, 128, 192),
          inference=Inference(STEP, published()["deepseek-v3"])),
     (2 * 128 * (2 * 512 + 64) * 100, 2 * 128 * 192 * 2 + 100 * 576 * 2, 2 * 128 * 512 * 2)),
    # 1 token, 2 of 4 experts of 3 x 8 x 16 numbers, two of them read
    (call("vllm::inplace_fused_experts", (1, 8), (4, 32, 8), (4, 8, 16), (1, 2)),
     (2 * 2 * 3 * 8 * 16, 2 * 3 * 8 * 16 * 2 + 16, 16)),
    # gpt-oss-20b, 1 token: 4 of 32 experts in MXFP4
    (call("vllm::moe_forward", (1, 3072), (1, 32),
          inference=Inference(STEP, published()["gpt-oss-20b"])),
     (2 * 4 * 3 * 2880 * 2880, 4 * 3 * 2880 * 2880 * 17 // 32 + 2880 * 2 + 64, 2880 * 2)),
    (call("_C::cutlass_scaled_mm", (2, 5), (2, 3), (3, 5), items=(2, 1, 1), dtype="float8"),
     (60, 6 + 15, 20)),
    (call("_C::cutlass_scaled_fp4_mm", (2, 4), (2, 8), (4, 8), items=(2, 1, 1), dtype="float4"),
     (2 * 2 * 16 * 4, 16 + 32, 16)),
    # 8 numbers of 4 bits in an int32: 16 x 16 numbers are 32 of them
    (call("_C::gptq_marlin_gemm", (2, 16), (), (1, 32), (), (1, 16), items=(2, 2, 4, 2, 2)),
     (2 * 2 * 16 * 16, 64 + 128 + 32, 64)),
    # numbers of 8 bits, 4 in an int32; the scales say that there are 16 columns
    (call("_C::marlin_gemm", (2, 16), (), (1, 64), (), (1, 16), items=(2, 2, 4, 2, 2)),
     (2 * 2 * 16 * 16, 64 + 256 + 32, 64)),
    (call("vllm::w8a8_triton_block_scaled_mm_func", (2, 128), (4, 128), (2, 1), (1, 1),
          items=(1, 1, 4, 4), dtype="float8"), (2 * 2 * 128 * 4, 256 + 512 + 4, 2 * 4 * 2)),
    # 1 row, one of 4 experts of 8 x 16 is read
    (call("_C::cutlass_moe_mm", (1, 16), (1, 8), (4, 16, 8), (1,), (4, 1), items=(2, 1, 1, 4, 4),
          dtype="float8"), (2 * 8 * 16, 8 + 128 + 4, 32)),
    # two numbers of 4 bits a byte, and a scale of 1 byte for 16: rows of all 2 experts
    (call("_C::cutlass_fp4_group_mm", (99, 4), (99, 8), (2, 4, 8), (99, 1), (2, 4, 1),
          items=(2, 1, 1, 1, 1), dtype="float4"), (2 * 99 * 16 * 4, 99 * 8 + 64 + 8, 99 * 4 * 2)),
    # keys are [blocks, heads, d / x, block size, x]: 2 heads of 8
    (call("_C::paged_attention_v1", (2, 4, 8), (2, 4, 8), (500, 2, 1, 16, 8),
          inference=Inference(STEP)),
     (4 * 4 * 8 * 100, 2 * 4 * 8 * 2 + 100 * 2 * 2 * 8 * 2, 2 * 4 * 8 * 2)),
    (call("_rocm_C::paged_attention", (2, 4, 8), (9,), (9,), (9,), (2, 4, 8), (500, 2, 1, 16, 8),
          inference=Inference(STEP)),
     (4 * 4 * 8 * 100, 2 * 4 * 8 * 2 + 100 * 2 * 2 * 8 * 2, 2 * 4 * 8 * 2)),
    (call("_C::per_token_group_fp8_quant", (2, 128), (2, 128), (2, 1), items=(2, 1, 4)),
     (0, 512, 256 + 8)),
    (call("_C::fused_add_rms_norm_static_fp8_quant", (2, 8), (2, 8), (2, 8), (8,),
          items=(1, 2, 2, 2)), (0, 32 + 32 + 16, 16 + 32)),
    (call("_C::rms_norm_per_block_quant", (2, 8), (2, 8), (8,), (2, 1), items=(1, 2, 2, 4)),
     (0, 32 + 16, 16 + 8)),
    (call("_moe_C::topk_softmax", (2, 4), (2, 4), (2, 4), (2, 32), items=(4, 4, 4, 2)),
     (0, 128, 96)),
    (call("_C::rms_norm", (2, 8), (2, 8), (8,)), (0, 48, 32)),
    (call("aiter::rms_norm", (2, 8), (8,)), (0, 48, 32)),
    (call("_C::fused_add_rms_norm", (2, 8), (2, 8), (8,)), (0, 80, 64)),
    (call("aiter::add_rmsnorm", (2, 8), (2, 8), (2, 8), (2, 8), (8,)), (0, 80, 64)),
    (call("_C::rotary_embedding", (2,), (2, 8), (2, 4), (), (99, 4), items=(8, 2, 2, 2, 2)),
     (0, 16 + 32 + 16 + 16, 48)),
    (call("_C_cache_ops::reshape_and_cache_flash", (2, 1, 8), (2, 1, 8), (9, 4, 1, 8),
          (9, 4, 1, 8), (2,), items=(2, 2, 1, 1, 8)), (0, 32 + 32 + 16, 32)),
    (call("_C::silu_and_mul", (2, 8), (2, 16)), (0, 64, 32)),
]  # fmt: skip


@pytest.mark.parametrize(("one", "expected"), WORKED, ids=[one.name for one, _ in WORKED])
def test_formulas_worked_by_hand(one: Call, expected: tuple[int, int, int]) -> None:
    work = work_of(one)
    assert work is not None
    assert work[:3] == pytest.approx(expected, abs=1)


def test_a_formula_that_needs_the_step_counts_nothing_without_it() -> None:
    one = call("vllm::unified_attention_with_output", (2, 4, 8), (2, 2, 8))
    assert formula_of(one.name).by_step
    assert work_of(one) is None


def test_a_windowed_layer_reads_its_window() -> None:
    model = published()["gpt-oss-20b"]
    long = EngineStep("vllm", 0, 0, 2, 2, 10_000, 10_000, True)
    sizes = (2, 64, 64), (2, 8, 64)
    name = "vllm::unified_attention_with_output"
    cached = []
    for layer in (0, 1):
        work = work_of(call(name, *sizes, inference=Inference(long, model, 1, layer)))
        assert work is not None
        cached.append(work.cache_bytes // (2 * 8 * 64 * 2))
    assert cached == [2 * 128, 10_000]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("path", "flops"),
    [  # attention: 57 blocks of 24 heads x 128 numbers, 768 tokens
        ("xdit_flux.1/capture_traces/*.json.gz", 57 * 4 * 768**2 * 24 * 128),
        ("xdit_sd_3.5/*.json.gz", None),
    ],
)
def test_public_traces_of_diffusion(path: str, flops: int | None) -> None:
    """Flux replays the graph that it captures in the same recording."""
    run = analyze([read(larger(f"tests/traces/inference/{path}"))], Options()).fitted
    assert run.work is not None
    assert run.work.modelled > 0.94
    attention = [row.flops for row in run.work.operators if row.name == "aiter::fmha_v3_fwd"]
    assert attention == ([] if flops is None else [flops])


@pytest.mark.slow
def test_a_public_trace_of_diffusion_beside_its_capture() -> None:
    """Four images of FLUX.1 with SageAttention: 228 of 57 blocks."""
    place = "tests/traces/inference/xdit_flux.1_aiter_sage"
    shapes = larger(f"{place}/capture_traces/*.json.gz")
    run = analyze([read(larger(f"{place}/profile_trace*.json.gz"))], Options(shapes=shapes)).fitted
    assert run.work is not None
    assert run.work.modelled > 0.96
    (sage,) = (row for row in run.work.operators if row.name == "sage_fwd_1")
    assert (sage.count, sage.flops) == (228, 228 * 4 * 768**2 * 24 * 128)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("names", "capture", "expected"),
    [
        (("b200_vllm_eager.json.gz", "b200/eager_trace.json.gz"), None,
         ("vllm", "prefill", "gpt-oss-120b", 8, 1, 888, 0)),
        (("sglang_prefilldecode.json.gz", "inference/sglang_prefilldecode/*.json.gz"), None,
         ("sglang", "prefill", "qwen3-8b", 1, 15, 15360, 0)),
        (("vllm_prefilldecode.json.gz", "inference/vllm_prefilldecode_piecewise/*.json.gz"),
         "inference/vllm_prefilldecode_piecewise/capture_traces/*.json.gz",
         ("vllm", "mixed", "gpt-oss-20b", 1, 46, 8155, 37)),
    ],
    ids=["b200", "sglang", "vllm"],
)  # fmt: skip
def test_public_traces(
    names: tuple[str, ...], capture: str | None, expected: tuple[Any, ...]
) -> None:
    shapes = larger(capture) if capture else None
    run = analyze([read(larger(*names))], Options(shapes=shapes)).fitted
    (row,) = run.serving
    assert expected == (
        row.engine, row.phase, row.model, row.shards, row.sequences, row.context_tokens,
        row.generation_tokens,
    )  # fmt: skip
    assert run.work is not None
    assert run.work.modelled > 0.99
    assert row.floor_s is not None
    assert row.floor_s < row.busy_s
    batch = Batch(int(row.sequences), int(row.context_tokens + row.generation_tokens), 0, 0)
    weights = published()[row.model].read_bytes(batch) / row.shards
    # vocabulary rows are a table that a step looks up, and no product
    assert row.weight_bytes == pytest.approx(weights, rel=0.02)
