"""The page: an analysis -> one HTML text, every name in it escaped, always the same bytes."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from typing import Any, Final

import perfmodel
from perfmodel.analysis import sweeps
from perfmodel.analysis.result import Analysis, RunAnalysis
from perfmodel.analysis.whatif import WhatIf, what_if_of
from perfmodel.base.errors import PerfmodelError
from perfmodel.base.escape import printable
from perfmodel.models.model import Model
from perfmodel.models.predict import Prediction, predict
from perfmodel.programs.mlp.case import MLP
from perfmodel.programs.own import own_case
from perfmodel.render import tables
from perfmodel.render.html import pictures, sections
from perfmodel.render.html.blocks import CLOCKS, Block, Section, Words, grid
from perfmodel.render.html.lead import lead
from perfmodel.render.summary import what_ran

_NO_MODEL: Final = (
    "give what perfmodel calibrate wrote with --model; without it savings are bounds, not "
    "predictions"
)

_LONGEST: Final = 1000
"""Letters of a text that are shown."""
_NAMES: Final = 11
"""Letters that the lines of a summary leave for their names."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What the page says beyond the analysis: of changes, and of a calibrated model.

    Each is a text where it cannot be said: why.
    """

    what_if: WhatIf | str
    prediction: Prediction | str

    @classmethod
    def of(cls, run: RunAnalysis, model: Model | None) -> Asked:
        """Ask about one run."""
        said: WhatIf | str
        of_trainer = model if model is not None and model.workload == MLP else None
        try:
            said = what_if_of(run.measured, of_trainer)
        except PerfmodelError as error:
            said = str(error).removeprefix(f"{run.label}: ")
        try:
            return cls(said, _predicted(run, said, model))
        except PerfmodelError as error:
            return cls(said, str(error))


def _predicted(run: RunAnalysis, said: WhatIf | str, model: Model | None) -> Prediction | str:
    """Predict the batch of the trainer, or of the program that the model was calibrated on."""
    if model is None:
        return _NO_MODEL
    if isinstance(said, WhatIf) and model.workload == MLP:
        return predict(model, said.case)
    if model.workload != run.workload.name:
        return (
            f"the model is of the workload {model.workload!r}, and the report does not say that it "
            f"ran that"
        )
    values = {s: v for s, v in run.identity.values.items() if s in run.workload.symbols}
    return predict(model, own_case(run.workload, values))


def page(analysis: Analysis, model: Model | None = None) -> str:
    """Return the report of an analysis as one HTML text.

    Parameters
    ----------
    analysis : Analysis
        Of one run, or of several: details are those of the one that fits the roofline.
    model : Model, optional
        Calibrated; the changes of the trainer are then predicted, else bounded.

    Raises
    ------
    PerfmodelError
        If jinja2 is not installed.
    """
    run = analysis.fitted
    asked = Asked.of(run, model)
    said = asked.what_if if isinstance(asked.what_if, WhatIf) else None
    style, script = _asset("style.css"), _asset("sort.js")
    text: str = (
        _environment()
        .get_template("page.html.j2")
        .render(
            title=run.label,
            facts=list(_facts(run)),
            lead=lead(run, said),
            warnings=sections.warnings(run),
            sections=list(_sections(analysis, asked)),
            clocks=CLOCKS,
            version=perfmodel.__version__,
            style=style,
            script=script,
            style_hash=_hash(style),
            script_hash=_hash(script),
        )
    )
    return text


def _facts(run: RunAnalysis) -> Iterator[tuple[str, str]]:
    """What ran, as names and values."""
    first, *others = what_ran(run)
    yield "report", first
    for line in others:
        yield line[:_NAMES].strip(), line[_NAMES:].strip()


def _sections(analysis: Analysis, asked: Asked) -> Iterator[Section]:
    run = analysis.fitted
    measured = run.measured

    def section(key: str, title: str, intro: str, blocks: Iterator[Block]) -> Section:
        return Section(key, title, intro, tuple(blocks))

    if len(analysis.runs) > 1:
        yield section("runs", "All runs", f"Details below are of {run.label}.", _runs(analysis))
    yield section("time", "Where the time goes", _CLOCKS, sections.breakdown(run, measured))
    yield section(
        "timeline", "Timeline of one batch", "", pictures.timeline(measured, run.batch.warmup)
    )
    roof = _ROOF if run.roofline is not None else ""
    yield section("roofline", "Roofline", roof, _roofline(analysis))
    yield section("model", "Model", _MODEL, sections.model(run, asked.prediction))
    yield section("whatif", "What if", _WHAT_IF, sections.what_if(asked.what_if))
    yield section("findings", "Findings and warnings", _FINDINGS, sections.findings(run))
    yield section("machine", "Configuration and machine", "", sections.machine(run))
    yield section("provenance", "Provenance", "", sections.provenance(run))


_CLOCKS: Final = (
    "Medians over ranks and batches after the warm-up, on three clocks: host time; GPU projection, "
    "from the first operation's start to the last one's end; GPU busy, the time in which any "
    "operation ran."
)
_ROOF: Final = (
    "Effective throughputs of this run make the roof: what is below it loses to what the roof "
    "leaves out, such as launches, small kernels and waiting."
)
_MODEL: Final = (
    "FLOPs and bytes by formula, rates fitted to the median times, and what they predict together."
)
_WHAT_IF: Final = "What each change would save of this batch. Savings overlap; they do not add up."
_FINDINGS: Final = "Ranked by potential saving per step. Savings overlap; they do not add up."


def _roofline(analysis: Analysis) -> Iterator[Block]:
    yield from pictures.roofline(analysis)
    if analysis.points:
        found = tables.points_text(analysis)
        left_out = ["predicted_s", "measured_s", "model_error"]  # the model section has them
        if analysis.fitted.roofline is None:
            left_out += ["roof_flops_per_s", "of_roof"]
        made = grid(found, caption="Measured points", drop=left_out)
        yield replace(made, notes=found.notes[:-1])


def _runs(analysis: Analysis) -> Iterator[Block]:
    yield grid(tables.sweep_text(analysis))
    trends = tuple(sweeps.trends(analysis.runs))
    if trends:
        yield Words("What moved them", trends, listed=True)


def _environment() -> Any:
    """Templates that escape everything, and show control characters as such."""
    try:
        from jinja2 import Environment, PackageLoader, StrictUndefined
        from markupsafe import Markup
    except ImportError as error:
        raise PerfmodelError(
            "expected jinja2 to write an HTML report; got no such package; pip install jinja2"
        ) from error

    def shown(value: Any) -> Any:
        if not isinstance(value, str) or isinstance(value, Markup):
            return value
        return printable(value if len(value) <= _LONGEST else f"{value[:_LONGEST]}…")

    made = Environment(
        loader=PackageLoader("perfmodel.render", "html"),
        autoescape=True,
        finalize=shown,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    made.filters["made"] = Markup  # only for what no report has a say in, or svg.inline escaped
    made.filters["percent"] = lambda share: f"{100 * share:.6g}"
    return made


@cache
def _asset(name: str) -> str:
    return resources.files("perfmodel").joinpath("render", "html", name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    """Hash of an inline style sheet or script as a content security policy names it."""
    digest = hashlib.sha256(text.encode("utf-8")).digest()
    return f"sha256-{base64.b64encode(digest).decode('ascii')}"
