"""Time to accuracy: moments, spread, censored runs, the two tests, records and the command."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from perfmodel.base.document import plain
from perfmodel.base.errors import ModelError, ReportError, SchemaError
from perfmodel.models.spread import chi2_quantile, cv_interval, spread, t_quantile
from perfmodel.readers.run_records import Epoch, Training, read_trainings
from perfmodel.render.plot.studies import AccuracyCurve, time_to_accuracy
from perfmodel.studies.analysis.tta import Moment, answer, permutation, ratio, reach, welch
from perfmodel.studies.render.tta import document
from support.cli import fails, perfmodel, succeeds
from support.trainer_runs import flags, run_alone, small

CONFIG = {"batch_size": 100, "learning_rate": 0.1, "hidden_size": 8}
SLEEP = (
    (0.7, -1.6, -0.2, -1.2, -0.1, 3.4, 3.7, 0.8, 0.0, 2.0),
    (1.9, 0.8, 1.1, 0.1, -0.1, 4.4, 5.5, 1.6, 4.6, 3.4),
)
"""Hours of sleep of Student's ten patients (Biometrika 6, 1908)."""


def record(precisions: Sequence[float | None], seconds: float = 2.0, **changes: Any) -> dict:
    """Return a run record whose epochs all take so many seconds."""
    epochs = [
        {"epoch": i, "loss": 1.0, "precision_train": p, "precision_test": p, "seconds": seconds}
        for i, p in enumerate(precisions, 1)
    ]
    config = {**CONFIG, "seed": 1, **changes}
    return {"status": "finished", "ranks": 1, "config": config, "versions": {}, "epochs": epochs}


def file_of(path: Path, *records: Any) -> Path:
    path.write_text(json.dumps({"runs": list(records)}), encoding="utf-8")
    return path


def repeated(path: Path, seconds: Sequence[float], last: float = 0.97, **changes: Any) -> Path:
    """Write a run for each time of an epoch; all reach `last` in their third epoch."""
    runs = [
        record([0.5, 0.9, last], each, **{"seed": i, **changes}) for i, each in enumerate(seconds)
    ]
    return file_of(path, *runs)


def training(*precisions: float | None, seconds: float = 2.0) -> Training:
    epochs = tuple(Epoch(i, seconds * i, p, None) for i, p in enumerate(precisions, 1))
    return Training("run", 1, {}, epochs, True)


# --- moments


def test_the_first_epoch_at_the_target_counts_even_if_it_falls_again() -> None:
    found = reach(training(0.8, 0.9, 0.96, 0.94, 0.97), 0.95)
    assert (found.reached, found.epoch, found.time_s) == (True, 3, 6.0)
    assert found.epochs_between == pytest.approx(2 + 5 / 6)  # 0.90 to 0.96: 0.95 is 5/6 on
    assert found.time_between_s == pytest.approx(4 + 2 * 5 / 6)


def test_the_first_evaluation_has_nothing_to_interpolate_from() -> None:
    found = reach(training(0.96, 0.97), 0.95)
    assert (found.epoch, found.epochs_between, found.time_between_s) == (1, 1.0, 2.0)


def test_epochs_without_an_evaluation_are_passed_over() -> None:
    found = reach(training(None, 0.90, None, 0.96), 0.93)
    assert (found.epoch, found.time_s) == (4, 8.0)
    assert found.epochs_between == pytest.approx(3.0)


def test_a_run_that_never_gets_there_is_censored_where_it_ended() -> None:
    found = reach(training(0.8, 0.9, None), 0.95)
    assert (found.reached, found.epoch, found.time_s) == (False, 3, 6.0)


@given(st.lists(st.floats(0.01, 1.0), min_size=1, max_size=12), st.floats(0.01, 1.0))
def test_interpolation_lies_in_the_epoch(precisions: list[float], target: float) -> None:
    found = reach(training(*precisions), target)
    assert found.reached == (max(precisions) >= target)
    if found.reached:
        assert found.epoch - 1 <= found.epochs_between <= found.epoch + 1e-9
        assert found.time_between_s == pytest.approx(2.0 * found.epochs_between)


# --- spread


@pytest.mark.parametrize(
    ("p", "df", "wanted"),
    [(0.95, 4, 9.4877), (0.975, 4, 11.1433), (0.025, 4, 0.484419), (0.05, 9, 3.32511),
     (0.99, 1, 6.63490), (0.5, 30, 29.3360)],
)  # fmt: skip
def test_chi_square_is_that_of_the_tables(p: float, df: int, wanted: float) -> None:
    """Abramowitz & Stegun, table 26.8."""
    assert chi2_quantile(p, df) == pytest.approx(wanted, rel=1e-5)


@given(st.floats(0.001, 0.999))
def test_chi_square_with_four_degrees_of_freedom_has_a_closed_form(p: float) -> None:
    x = chi2_quantile(p, 4)
    assert 1 - math.exp(-x / 2) * (1 + x / 2) == pytest.approx(p, abs=1e-9)


def test_mean_and_variation_of_five_runs() -> None:
    found = spread([10.0, 11.0, 9.0, 10.5, 9.5])
    assert found is not None
    assert (found.n, found.mean, found.least, found.most) == (5, 10.0, 9.0, 11.0)
    assert found.std == pytest.approx(math.sqrt(2.5 / 4))
    assert found.cv == pytest.approx(0.0790569)
    assert found.high == pytest.approx(10 + 2.776445 * math.sqrt(2.5 / 4 / 5))
    assert found.low == pytest.approx(20 - found.high)


def test_the_interval_of_the_variation_by_hand() -> None:
    """K = 0.1, n = 5: u = 11.1433 and 0.484419 in Vangel's equation."""
    low, high = cv_interval(0.1, 5)
    assert low == pytest.approx(0.1 / math.sqrt((13.1433 / 5 - 1) * 0.01 + 11.1433 / 4), rel=1e-5)
    wanted = 0.1 / math.sqrt((2.484419 / 5 - 1) * 0.01 + 0.484419 / 4)
    assert high == pytest.approx(wanted, rel=1e-5)
    assert cv_interval(2.0, 5)[1] is None  # open


def test_the_interval_of_the_variation_covers_what_it_says() -> None:
    """Five normal values with a coefficient of variation of 0.1, three thousand times."""
    rng = np.random.default_rng(1)
    inside = 0
    for values in rng.normal(10.0, 1.0, (3000, 5)):
        low, high = cv_interval(values.std(ddof=1) / values.mean(), 5)
        inside += low <= 0.1 <= (high or math.inf)
    assert 0.935 < inside / 3000 < 0.965


@given(st.lists(st.floats(0.1, 10.0), min_size=2, max_size=8), st.floats(1e-3, 1e3))
def test_variation_does_not_depend_on_the_unit(values: list[float], unit: float) -> None:
    one, other = spread(values), spread([unit * v for v in values])
    assert one is not None
    assert other is not None
    assert one.cv is not None
    assert other.cv == pytest.approx(one.cv, rel=1e-6, abs=1e-12)
    assert other.cv_low == pytest.approx(one.cv_low, rel=1e-6, abs=1e-12)
    assert one.cv_low is not None
    assert one.cv_low <= one.cv <= (one.cv_high or math.inf)


def test_too_few_values_have_no_spread() -> None:
    assert spread([]) is None
    alone = spread([3.0])
    assert alone is not None
    assert (alone.mean, alone.std, alone.cv, alone.low) == (3.0, None, None, None)


# --- against


def test_welch_is_that_of_student_s_sleepers() -> None:
    """R, t.test(extra ~ group, data = sleep): t = -1.8608, df = 17.776, p-value = 0.07939."""
    found = welch(*reversed(SLEEP))
    assert found is not None
    assert found.value == pytest.approx(-1.58)
    assert found.df == pytest.approx(17.776, abs=5e-4)
    assert found.p == pytest.approx(0.07939, abs=5e-6)
    assert (found.low, found.high) == pytest.approx((-3.3654832, 0.2054832), abs=1e-6)
    assert t_quantile(found.p, found.df) == pytest.approx(1.8608, abs=5e-5)


@given(
    st.lists(st.floats(0.1, 10.0), min_size=3, max_size=6),
    st.lists(st.floats(0.1, 10.0), min_size=3, max_size=6),
    st.floats(1e-3, 1e3),
)
def test_ratios_do_not_depend_on_the_unit_and_turn_over(
    before: list[float], after: list[float], unit: float
) -> None:
    found = ratio(before, after)
    assume(found is not None and np.std(np.log(before)) + np.std(np.log(after)) > 1e-3)
    assert found is not None
    scaled = ratio([unit * v for v in before], [unit * v for v in after])
    turned = ratio(after, before)
    assert scaled is not None
    assert turned is not None
    assert scaled.value == pytest.approx(found.value, rel=1e-6)
    assert scaled.p == pytest.approx(found.p, rel=1e-4, abs=1e-9)
    assert turned.low == pytest.approx(1 / found.high, rel=1e-6)
    assert found.low <= found.value <= found.high


def test_too_few_runs_or_no_spread_give_no_interval() -> None:
    assert welch([1.0, 2.0], [3.0, 4.0, 5.0]) is None
    assert welch([1.0] * 3, [2.0] * 3) is None
    assert ratio([0.0, 1.0, 2.0], [1.0, 2.0, 3.0]) is None
    assert ratio([], []) is None


def test_permutations_by_hand() -> None:
    """Scores -3, -1 against +2, +2: 2 of the 6 ways to deal them are as far apart."""
    before = [Moment(1.0), Moment(2.0)]
    after = [Moment(3.0), Moment(2.5, reached=False)]
    assert permutation(before, after) == pytest.approx(2 / 6)


def test_sides_that_do_not_overlap_have_the_least_p() -> None:
    fast = [Moment(float(i)) for i in range(5)]
    slow = [Moment(10.0 + i) for i in range(5)]
    never = [Moment(9.0, reached=False)] * 5
    assert permutation(fast, slow) == pytest.approx(2 / 252)
    assert permutation(fast, never) == pytest.approx(2 / 252)
    assert permutation(never, never) == 1.0
    assert permutation(never, slow) == 1.0  # ended before: nobody knows
    assert permutation([Moment(1.0)] * 12, [Moment(2.0)] * 12) is None


moments = st.lists(
    st.builds(Moment, st.integers(1, 9).map(float), st.booleans()), min_size=1, max_size=4
)


@given(moments, moments)
def test_permutation_is_a_probability_that_knows_no_order(
    before: list[Moment], after: list[Moment]
) -> None:
    p = permutation(before, after)
    assert p is not None
    assert 0 < p <= 1
    assert permutation(after, before) == pytest.approx(p)


# --- records


def test_a_record_of_the_trainer_is_read(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    done = run_alone(*flags(small(epochs=3, warmup_epochs=1)), "--record", str(path))
    assert done.returncode == 0, done.stderr
    (found,) = read_trainings([path])
    said = json.loads(path.read_text())
    assert [e.precision for e in found.epochs] == [e["precision_test"] for e in said["epochs"]]
    assert found.epochs[-1].time_s == pytest.approx(sum(e["seconds"] for e in said["epochs"]))
    assert found.settings["warmup_epochs"] == 1
    assert (found.seed, found.finished) == (1, True)
    assert "seed" not in found.settings


def test_mixed_configurations_are_refused(tmp_path: Path) -> None:
    path = file_of(tmp_path / "a.json", record([0.9]), record([0.9], seed=2, batch_size=200))
    with pytest.raises(SchemaError, match=r"batch_size 100 and 200; give the others behind --ag"):
        read_trainings([path])


@pytest.mark.parametrize(
    ("content", "error", "words"),
    [
        ("{", ReportError, "expected JSON"),
        ('{"runs": [{"config": {"learning_rate": NaN}}]}', ReportError, "NaN is not finite"),
        ('{"runs": [{"config": {"learning_rate": 1e999}}]}', ReportError, "1e999 is not finite"),
        ("[]", SchemaError, "expected a run record"),
        ('{"runs": []}', SchemaError, "got none in a.json"),
        ('{"runs": 3}', SchemaError, "expected a list of run records"),
        (json.dumps(record([None, None])), SchemaError, "--evaluate-every 1"),
        (json.dumps(record([1.5])), SchemaError, "an accuracy of 1.5"),
        (json.dumps(record([0.5], -1.0)), SchemaError, "with -1 s"),
    ],
)
def test_what_is_no_record_is_refused(
    tmp_path: Path, content: str, error: type[Exception], words: str
) -> None:
    path = tmp_path / "a.json"
    path.write_text(content)
    with pytest.raises(error, match=words):
        read_trainings([path])


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ReportError, match="No such file"):
        read_trainings([tmp_path / "none.json"])


# --- the answer


def test_two_sides(tmp_path: Path) -> None:
    slow = repeated(tmp_path / "slow.json", [2.0, 2.2, 1.8, 2.1, 1.9])
    fast = repeated(tmp_path / "fast.json", [1.0, 1.1, 0.9, 1.05, 0.95], batch_size=200)
    found = answer([fast], [slow], 0.95)
    assert found.differences == {"batch_size": (100, 200)}
    assert found.warnings == ()
    times, epochs, last = found.compared
    assert times.effect is not None
    assert times.effect.value == pytest.approx(0.5)
    assert times.effect.low < 0.5 < times.effect.high
    assert times.effect.p < 1e-4
    assert (times.test, times.p, times.differs) == ("Welch", times.effect.p, True)
    assert times.level == pytest.approx(0.05 / 3)  # the smallest p of three
    for same in (epochs, last):  # all alike: no spread
        assert (same.test, same.effect, same.p, same.differs) == ("permutation", None, 1.0, False)
    assert found.sides[0].spreads["time_s"].mean == pytest.approx(3.0)


def test_times_are_compared_as_they_are_shown_between_evaluations(tmp_path: Path) -> None:
    """0.5 and 0.96 after seconds 2 and 4 cross 0.95 at 2 + 2 * 0.45 / 0.46."""
    slow = [record([0.5, 0.9 + x], seed=i) for i, x in enumerate((0.07, 0.06, 0.08))]
    fast = [record([0.5, 0.9 + x], 1.0, seed=i) for i, x in enumerate((0.07, 0.06, 0.08))]
    paths = [file_of(tmp_path / f"{i}.json", *runs) for i, runs in enumerate((fast, slow))]
    found = answer([paths[0]], [paths[1]], 0.95)
    assert found.sides[1].spreads["time_s"].mean == pytest.approx(4.0)
    between = found.sides[1].spreads["time_between_s"]
    assert between.most == pytest.approx(2 + 2 * 0.45 / 0.46)
    times = found.compared[0]
    assert times.quantity == "time_between_s"
    assert times.test == "Welch"  # evaluated times have no spread and no interval
    assert times.effect is not None
    assert times.effect.value == pytest.approx(0.5)


@pytest.mark.parametrize("shift", [0.0, 0.02, 0.1, 0.2, 0.5])
def test_the_interval_agrees_with_the_verdict(tmp_path: Path, shift: float) -> None:
    """One test for each quantity, and an interval at the level at which Holm's method tests it."""
    times = [2.0, 2.2, 1.8, 2.1, 1.9]
    slow = repeated(tmp_path / "slow.json", times)
    fast = repeated(tmp_path / "fast.json", [t * (1 - shift) for t in times], batch_size=200)
    for one in answer([fast], [slow], 0.95).compared:
        assert one.p is not None
        assert one.level is not None
        assert one.differs is (one.p <= one.level)
        if one.effect is not None:
            assert one.p == one.effect.p
            assert one.differs is not (one.effect.low <= 1.0 <= one.effect.high)


def test_censored_runs_are_counted_and_said(tmp_path: Path) -> None:
    runs = [record([0.5, 0.97], seed=i) for i in range(3)]
    runs += [record([0.5, 0.6, 0.7], seed=i) for i in (3, 4)]
    found = answer([file_of(tmp_path / "a.json", *runs)], [], 0.95)
    (side,) = found.sides
    assert side.censored == 2
    assert side.spreads["epoch"].n == 3
    assert side.spreads["accuracy_final"].n == 5
    assert any("2 of 5 runs never reached 0.95" in text for text in found.warnings)


def test_warnings_of_few_runs_equal_seeds_and_stopped_ones(tmp_path: Path) -> None:
    runs = [record([0.97]), {**record([0.97]), "status": "stopped"}]
    said = " ".join(answer([file_of(tmp_path / "a.json", *runs)], [], 0.95).warnings)
    for words in ("2 of 5 runs or more", "several runs of seed 1", "1 of 2 runs were stopped"):
        assert words in said


def test_a_wide_spread_is_said_to_have_a_rough_interval(tmp_path: Path) -> None:
    path = repeated(tmp_path / "a.json", [1.0, 5.0, 1.0, 9.0, 2.0])
    assert any("interval is rough" in text for text in answer([path], [], 0.95).warnings)


def test_a_target_must_be_a_share(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="got 95"):
        answer([repeated(tmp_path / "a.json", [1.0])], [], 95.0)


# --- the command


def test_the_command_says_json_and_text(tmp_path: Path) -> None:
    slow = repeated(tmp_path / "slow.json", [2.0, 2.2, 1.8, 2.1, 1.9])
    fast = repeated(tmp_path / "fast.json", [1.0, 1.1, 0.9, 1.05, 0.95], batch_size=200)
    said = json.loads(succeeds("study", "tta", fast, "--against", slow, "--json"))
    assert said == plain(document(answer([fast], [slow], 0.95)))
    assert set(said) == {"target", "level", "sides", "differences", "compared", "warnings"}
    text = succeeds("study", "tta", fast, "--against", slow, "--target", "0.9")
    assert "batch_size: 100 -> 200" in text
    assert "time, interpolated: x 0.500" in text
    assert "Welch p = below 0.0001, differs at 1.7 %" in text
    picture = tmp_path / "tta.png"
    succeeds("study", "tta", fast, "--against", slow, "-o", picture)
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_several_files_a_side(tmp_path: Path) -> None:
    files = [file_of(tmp_path / f"{i}.json", record([0.97], seed=i)) for i in range(4)]
    said = json.loads(succeeds("study", "tta", *files[:2], "--against", *files[2:], "--json"))
    assert [len(side["runs"]) for side in said["sides"]] == [2, 2]
    assert [side["name"] for side in said["sides"]] == ["0 and 1 more", "2 and 1 more"]


def test_files_of_one_name_from_two_folders_are_two_sides(tmp_path: Path) -> None:
    for folder in ("cpu", "gpu"):
        (tmp_path / folder).mkdir()
    files = [
        file_of(tmp_path / folder / "base.json", {**record([0.97]), "versions": {"gpu": gpu}})
        for folder, gpu in (("gpu", "\x1b[31mH200"), ("cpu", None))
    ]
    found = answer(files[:1], files[1:], 0.95)
    assert [side.name for side in found.sides] == ["RUNS", "OTHER"]
    assert found.differences == {"gpu": (None, "\x1b[31mH200")}
    assert "\x1b" not in succeeds("study", "tta", files[0], "--against", files[1])


def test_wrong_usage(tmp_path: Path) -> None:
    path = repeated(tmp_path / "a.json", [1.0])
    assert "--against" in perfmodel("study", "tta", path, "--against").output
    assert perfmodel("study", "tta", path, "--target", "0").exit_code == 2
    assert "expected JSON" in fails(3, "study", "tta", file_of_text(tmp_path / "b.json", "no"))


def file_of_text(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_every_run_has_a_dot_of_its_own() -> None:
    """As the five on the H200: two pairs are closer than a dot is wide."""
    at = [7.57, 7.62, 8.43, 9.74, 9.75]
    curves = [AccuracyCurve("a", [1, 18], [0.5, 0.97], moment, True) for moment in at]
    strip = time_to_accuracy(curves, 0.92).axes[1]
    shown = [
        (float(line.get_xdata()[0]), float(line.get_ydata()[0]))
        for line in strip.lines if line.get_linestyle() == "None" and len(line.get_xdata())
    ]  # fmt: skip
    assert [x for x, _ in shown] == at
    y = [round(y, 2) for _, y in shown]
    assert y[0] == -y[1] != 0
    assert y[2] == 0
    assert y[3] == -y[4] != 0


def test_the_picture_marks_runs_that_ended_without() -> None:
    curves = [
        AccuracyCurve("a", [1, 2], [0.5, 0.97], 1.9, True),
        AccuracyCurve("b", [1, 2], [0.5, 0.6], 2.0, False),
    ]
    figure = time_to_accuracy(curves, 0.95)
    above, strip = figure.axes
    dots = [
        line for line in strip.lines if line.get_linestyle() == "None" and len(line.get_xdata())
    ]
    assert [line.get_markerfacecolor() == "white" for line in dots] == [False, True]
    assert [t.get_text() for t in strip.get_yticklabels()] == ["a", "b"]
    labels = [t.get_text() for t in above.get_legend().get_texts()]
    assert labels == ["a", "b", "target 0.95", "ended without it"]
    with pytest.raises(ModelError, match="train first"):
        time_to_accuracy([], 0.95)
