"""Validates the calibrated model: freezes it on a quarter of the campaign, predicts the rest.

    python benchmarks/predict.py --freeze     # fit the design's runs, write the frozen model
    python benchmarks/predict.py              # predict every other run, leave-one-out studies
    python benchmarks/predict.py --document   # the table of docs/predict.md

Every profile of every index is used (profiles/campaign, profiles/ladder, and others named with
--index); launches of one configuration are grouped. An index may name the median batch without
Nsight Systems: that is a launch, too, after the frozen model's time of recording is added. Commit
the frozen model before collecting what it is to predict: results name its commit.
"""

from __future__ import annotations

import argparse
import json
import subprocess
from pathlib import Path

from predict_launches import Launches
from predict_score import noise_floor, predict_rows, ranking, summary
from predict_studies import other_designs, studies

from perfmodel.predict import calibrate, load, save

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
FROZEN = RESULTS / "predict_model.json"
TARGETS = {
    "mean": 0.025, "mean_high": 0.03, "p90": 0.05, "max": 0.08, "phase": 0.05, "beyond": 0.05,
    "ranking": 0.95, "coverage": (0.85, 0.95),
}  # fmt: skip


def commit_of(path: Path) -> str | None:
    """The commit that last changed a file, None if it is not committed as it is."""
    git = ["git", "-C", str(ROOT)]
    clean = subprocess.run(
        [*git, "status", "--porcelain", "--", str(path)], capture_output=True, text=True
    )
    if clean.returncode or clean.stdout.strip():
        return None
    said = subprocess.run(
        [*git, "log", "-1", "--format=%H", "--", str(path)], capture_output=True, text=True
    )
    return said.stdout.strip() or None


def main() -> None:
    """Freeze, validate or document."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--freeze", action="store_true")
    parser.add_argument("--document", action="store_true")
    parser.add_argument("--index", action="append", type=Path, default=[])
    parser.add_argument("--out", type=Path, default=RESULTS / "predict.json")
    args = parser.parse_args()
    if args.document:
        import predict_report

        predict_report.write(json.loads(args.out.read_text(encoding="utf-8")))
        return
    usual = [ROOT / "profiles" / name / "index.json" for name in ("campaign", "ladder")]
    launches = Launches([*usual, *args.index])
    designed = launches.designed()
    if args.freeze:
        save(calibrate(designed, machine="NVIDIA H200", untraced=launches.untraced), FROZEN)
        print(f"frozen on {len(designed)} runs: {FROZEN}")
        return
    model = load(FROZEN)
    used = {str(run["source"]) for run in model.runs}
    seen = {o.case.key for o in launches.observations if o.source in used}
    unseen = [o for o in launches.observations if o.case.key not in seen]
    floor = noise_floor(launches, model)
    training = [o for o in launches.observations if o.source in used]
    rows = predict_rows(model, training, unseen, launches)
    result = {
        "frozen": {"model": FROZEN.name, "commit": commit_of(FROZEN), "runs": sorted(used)},
        "targets": TARGETS, "noise_floor": floor, "summary": summary(rows, floor["launch_sd"]),
        "ranking": ranking(rows + predict_rows(model, training, training, launches)),
        "other_designs": other_designs(launches, floor["launch_sd"]),
        "rows": rows, "studies": studies(launches, floor["launch_sd"]),
    }  # fmt: skip
    args.out.write_text(json.dumps(result, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    print(json.dumps({k: result[k] for k in ("noise_floor", "summary", "ranking")}, indent=1))


if __name__ == "__main__":
    main()
