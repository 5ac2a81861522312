"""The API for notebooks: reports and results as objects, tables as pandas data frames."""

from __future__ import annotations

import itertools
import operator
import os
import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from html import escape
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Protocol

from perfmodel.analysis.analyze import analyze as analyze_traces
from perfmodel.analysis.compare.compare import LEAST, CompareOptions, Comparison, compare_traces
from perfmodel.analysis.events import documented, events
from perfmodel.analysis.result import Analysis, RunAnalysis
from perfmodel.base.errors import PerfmodelError, WorkloadError
from perfmodel.base.files import write_text
from perfmodel.base.table import to_frame
from perfmodel.machines.machine import Machine
from perfmodel.models.launches import LAUNCH_NOISE
from perfmodel.programs import Counting
from perfmodel.programs.program import Options
from perfmodel.readers import read as read_trace
from perfmodel.readers.trace import NULL, Trace
from perfmodel.render import compare as comparisons
from perfmodel.render import operators, outputs, summary, tables
from perfmodel.render.analysis_json import analysis_document
from perfmodel.timing.nsys_stats.collect import compute
from perfmodel.timing.spans import Level
from perfmodel.workloads.decoder import decoder as model_of
from perfmodel.workloads.layers import Net
from perfmodel.workloads.work import Workload

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes


def _preformatted(text: str) -> str:
    """Return a text as a notebook shows it under a cell."""
    return f"<pre>{escape(text)}</pre>"


class Screen(str):
    """A text that notebooks and prompts show as it is printed."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        return _preformatted(self)


@dataclass(frozen=True)
class Timeline:
    """The timeline of a step, which zooms, pans and searches in a notebook.

    Attributes
    ----------
    html : str
        The page, which loads no other file.
    label : str
        Label of the run.
    """

    html: str
    label: str

    def __repr__(self) -> str:
        return f"<Timeline of {self.label}: show it in a notebook, or save it as HTML>"

    def _repr_html_(self) -> str:
        return (
            f'<iframe srcdoc="{escape(self.html)}" sandbox="allow-scripts" title="Timeline" '
            f'style="width: 100%; height: 640px; border: 0"></iframe>'
        )

    def save(self, path: str | Path) -> Path:
        """Write the page to a file, whole or not at all."""
        write_text(path, self.html)
        return Path(path)


@dataclass(frozen=True)
class Report:
    """One report that has been read."""

    trace: Trace

    @cached_property
    def results(self) -> Results:
        """Analyze the report with default options, on first access."""
        return analyze(self)

    @property
    def summary(self) -> Screen:
        """The summary that `perfmodel analyze` prints; see `Results.summary`."""
        return self.results.summary

    def timeline(self) -> Timeline:
        """Return the timeline of the median step; see `Results.timeline`."""
        return self.results.timeline()

    @property
    def steps(self) -> pd.DataFrame:
        """A row per rank and step; see `Results.steps`."""
        return self.results.steps

    @property
    def spans(self) -> pd.DataFrame:
        """A row per span; see `Results.spans`."""
        return self.results.spans

    @property
    def operations(self) -> pd.DataFrame:
        """A row per GPU operation; see `Results.operations`."""
        return self.results.operations

    @property
    def exchanges(self) -> pd.DataFrame:
        """A row per collective or message and rank; see `Results.exchanges`."""
        return self.results.exchanges

    @property
    def gaps(self) -> pd.DataFrame:
        """A row per time in which a GPU idles; see `Results.gaps`."""
        return self.results.gaps

    @property
    def operators(self) -> pd.DataFrame:
        """A row per operator of PyTorch; see `Results.operators`."""
        return self.results.operators

    @property
    def findings(self) -> pd.DataFrame:
        """A row per finding; see `Results.findings`."""
        return self.results.findings

    def stats(self, name: str) -> pd.DataFrame:
        """Return one of the summaries of `nsys stats`, with its column names.

        Parameters
        ----------
        name : str
            Name of a summary, such as 'nvtx_gpu_proj_sum'; see
            `perfmodel.timing.nsys_stats.collect.REPORTS`.

        Raises
        ------
        SchemaError
            If the report lacks the events, or there is no such summary.
        """
        return to_frame(compute(name, self.trace))

    def analyze(self, **options: Any) -> Results:
        """Analyze the report; the options are those of `perfmodel.analyze`."""
        return analyze(self, **options)

    def __repr__(self) -> str:
        return repr(self.trace).replace("<Trace", "<Report", 1)

    def _repr_html_(self) -> str:
        return _preformatted(repr(self))


def read(path: str | Path) -> Report:
    """Read a report of Nsight Systems or a trace of torch.profiler; see `perfmodel.readers.read`.

    Raises
    ------
    ReportError
        If the file cannot be read whole.
    SchemaError
        If it is neither an export nor a trace.
    """
    return Report(read_trace(path))


def analyze(
    *reports: Report | str | Path,
    workload: Workload | Net | None = None,
    counting: Counting = "document",
    batch_range: str | None = None,
    level: Level | None = None,
    warmup: int | None = None,
    attribute: str = "time",
    fit: str | int | None = None,
    dtype: str | None = None,
    shapes: str | Path | None = None,
    attention: str = "full",
    counters: str | Path | None = None,
    decoder: str | None = None,
    machine: Machine | None = None,
    host_names: bool = False,
    **symbols: int,
) -> Results:
    """Analyze one or more reports, as `perfmodel analyze` does.

    Parameters
    ----------
    *reports : Report, str or Path
    workload : Workload or Net, optional
        Such as `perfmodel.workloads.spec.load("mine.toml")`; the MLP by default. A network, such as
        `perfmodel.workloads.networks.network("gpt2")`, counts steps of B samples of all ranks.
    counting : {'document', 'full'}
    batch_range : str, optional
        Name of the NVTX range that is one step.
    level : {'epoch', 'micro_batch', 'phase', 'layer'}, optional
        Level to analyze in place of the step.
    warmup : int, optional
        Number of steps at the start to exclude; detected by default.
    attribute : {'thread', 'time'}
        Whether GPU work of other threads belongs to the range open at its launch.
    fit : str or int, optional
        Label or index of the run that fits the roofline; by default the first suitable run.
    dtype : str, optional
        Data type of operators' tensors whose type the report does not give.
    shapes : str or Path, optional
        Another recording of the same PyTorch program, which names the sizes of its operators.
    attention : {'full', 'causal'}
        Whether FLOPs of attention count all scores, or only the scores that a causal mask leaves.
    counters : str or Path, optional
        Table of Nsight Compute of the same PyTorch program, with its operators' ranges.
    decoder : str, optional
        Language model that an engine serves: a name such as 'qwen3-8b', or a config.json.
    machine : Machine, optional
        Ceilings, such as `perfmodel.machines.devices.named("h100")`; by default those of the
        datasheet of the GPU in the report.
    host_names : bool
        Whether to show the hosts' names from the reports; else hosts are numbered.
    **symbols : int
        Values of symbols (D, H, C, B, p, b) that the reports do not hold, or that override them.

    Raises
    ------
    PerfmodelError
        As the command line does, with the same message.
    """
    _check(attribute, warmup)
    if attention not in ("full", "causal"):
        raise WorkloadError(f"expected attention='full' or 'causal'; got {attention!r}; take one")
    read_ones = [r if isinstance(r, Report) else read(r) for r in reports]
    layers = None
    if isinstance(workload, Net):
        from perfmodel.programs.layers import LayeredStep

        if set(symbols) != {"B"}:
            raise WorkloadError(
                f"expected B, the samples of a step of all ranks; got "
                f"{', '.join(symbols) or 'none'}: give it, and the network's sizes to network()"
            )
        layers, workload, symbols = LayeredStep(workload, symbols["B"]), None, {}
    options = Options(
        values=symbols,
        counting=counting,
        workload=workload,
        layers=layers,
        batch_label=batch_range,
        level=level,
        warmup=None if warmup is None else operator.index(warmup),
        by_time=attribute == "time",
        fit=fit,
        dtype=dtype,
        shapes=None if shapes is None else Path(shapes),
        causal=attention == "causal",
        counters=None if counters is None else Path(counters),
        decoder=None if decoder is None else model_of(decoder),
        machine=machine,
        host_names=host_names,
    )
    return Results(analyze_traces([r.trace for r in read_ones], options))


def compare(
    before: Report | str | Path | Sequence[Report | str | Path],
    after: Report | str | Path | Sequence[Report | str | Path],
    *,
    batch_range: str | None = None,
    level: Level | None = None,
    warmup: int | None = None,
    attribute: str = "time",
    least: float = LEAST,
    launch_noise: float = LAUNCH_NOISE,
) -> Compared:
    """Compare the reports of two sides, as `perfmodel compare` does.

    Parameters
    ----------
    before, after : Report, str or Path, or a sequence of them
        Runs of one configuration; three or more per side show the difference between runs.
    batch_range, level, warmup, attribute
        As in `analyze`.
    least : float
        Relative change that a verdict must exceed.
    launch_noise : float
        Relative standard deviation of host times between runs, assumed below three per side.

    Raises
    ------
    PerfmodelError
        As the command line does, with the same message.
    """
    _check(attribute, warmup)
    options = CompareOptions(
        batch_label=batch_range,
        level=level,
        warmup=None if warmup is None else operator.index(warmup),
        by_time=attribute == "time",
        least=least,
        noise=launch_noise,
    )
    sides = []
    for side in (before, after):
        several = [side] if isinstance(side, (Report, str, Path)) else side
        sides.append([(r if isinstance(r, Report) else read(r)).trace for r in several])
    return Compared(compare_traces(sides[0], sides[1], options))


class _Profiler(Protocol):
    """The part of `torch.profiler.profile` that is used."""

    def export_chrome_trace(self, path: str) -> object: ...


def on_trace_ready(
    folder: str | Path | None = None, *, show: Callable[[str], object] = print
) -> Callable[[_Profiler], None]:
    """Return a handler for `torch.profiler.profile(on_trace_ready=...)` that explains the trace.

    When the profiler has recorded its steps, every rank writes its trace, and rank 0 shows the
    output of `perfmodel analyze` for all traces. An error becomes a warning, so that training
    continues.

    Parameters
    ----------
    folder : str or Path, optional
        Folder for the traces `rank0_0.json.gz` and so on; by default traces are temporary. All
        ranks must see the folder if their traces are to be read together.
    show : callable, optional
        Function that takes the text, such as a logger's `info`.
    """
    made = itertools.count()

    def ready(profiler: _Profiler) -> None:
        rank, ranks = (int(os.environ.get(name, n)) for name, n in (("RANK", 0), ("WORLD_SIZE", 1)))
        number = next(made)
        try:
            with TemporaryDirectory(prefix="perfmodel-") as temporary:
                place = Path(temporary if folder is None else folder)
                place.mkdir(parents=True, exist_ok=True)
                profiler.export_chrome_trace(str(place / f"rank{rank}_{number}.json.gz"))
                if folder is not None:
                    _meet()
                if rank == 0:
                    written = [place / f"rank{one}_{number}.json.gz" for one in range(ranks)]
                    show(str(analyze(*(path for path in written if path.exists()))))
        except (PerfmodelError, OSError) as error:
            warnings.warn(f"perfmodel: the trace is not explained: {error}", stacklevel=2)

    return ready


def _meet() -> None:
    """Wait for the other ranks of a program that has initialized torch.distributed."""
    distributed = getattr(sys.modules.get("torch"), "distributed", None)
    if distributed and distributed.is_available() and distributed.is_initialized():
        distributed.barrier()


def _check(attribute: str, warmup: int | None) -> None:
    if attribute not in ("thread", "time"):
        raise WorkloadError(f"expected attribute='thread' or 'time'; got {attribute!r}; take one")
    if warmup is not None and warmup < 0:
        raise WorkloadError(f"expected warmup of at least 0 batches; got {warmup}; give more")


@dataclass(frozen=True)
class Compared:
    """A comparison; tables are data frames in base units, named in the columns."""

    comparison: Comparison

    @property
    def rows(self) -> pd.DataFrame:
        """All compared ranges, links and kernels, a row each, with the verdict."""
        return to_frame(comparisons.rows(self.comparison))

    @property
    def ranges(self) -> pd.DataFrame:
        """Host time per step of every range."""
        return to_frame(comparisons.rows(self.comparison, "range"))

    @property
    def links(self) -> pd.DataFrame:
        """Copies by direction and memory kind, collectives' transfer and waiting, the GPU."""
        return to_frame(comparisons.rows(self.comparison, "link"))

    @property
    def kernels(self) -> pd.DataFrame:
        """GPU time per step of every kernel."""
        return to_frame(comparisons.rows(self.comparison, "kernel"))

    @property
    def idle(self) -> pd.DataFrame:
        """Idle time of every rank's GPU in a median step, by cause."""
        return to_frame(comparisons.rows(self.comparison, "idle"))

    @property
    def work(self) -> pd.DataFrame:
        """Changes in the work of a step: FLOPs, bytes, GPU operations, tokens."""
        return to_frame(comparisons.work(self.comparison))

    @property
    def differences(self) -> Sequence[str]:
        """Return the differences between the sides' configurations."""
        return tuple(map(str, self.comparison.differences))

    @property
    def warnings(self) -> Sequence[str]:
        """Return the limits of the comparison."""
        return self.comparison.warnings

    def to_dict(self) -> dict[str, Any]:
        """Return the document that `perfmodel compare --json` prints."""
        return comparisons.compare_document(self.comparison)

    def __repr__(self) -> str:
        return repr(self.comparison).replace("<Comparison", "<Compared", 1)

    def __str__(self) -> str:
        return comparisons.result(self.comparison).render()

    def _repr_html_(self) -> str:
        return _preformatted(str(self))


@dataclass(frozen=True)
class Results:
    """An analysis; tables are data frames in base units, named in the columns."""

    analysis: Analysis

    def __repr__(self) -> str:
        return repr(self.analysis).replace("<Analysis", "<Results", 1)

    def __str__(self) -> str:
        return summary.result(self.analysis).render()

    def _repr_html_(self) -> str:
        return _preformatted(str(self))

    @property
    def run(self) -> RunAnalysis:
        """The run that fits the roofline."""
        return self.analysis.fitted

    @property
    def summary(self) -> Screen:
        """The summary that `perfmodel analyze` prints: verdict, step, ranks and first findings."""
        return Screen(self)

    def timeline(self) -> Timeline:
        """Return the timeline of the median step, which zooms in a notebook.

        Raises
        ------
        PerfmodelError
            If jinja2 is not installed.
        """
        from perfmodel.render import html

        return Timeline(html.timeline(self.run), self.run.label)

    @property
    def ranges(self) -> pd.DataFrame:
        """Return the time per range in a median step, a row per range."""
        return to_frame(tables.ranges(self.run))

    @property
    def rates(self) -> pd.DataFrame:
        """P_flops, P_pci, P_mpi and every GEMM's throughput, with 95 % intervals."""
        return to_frame(tables.rates(self.run))

    @property
    def copies(self) -> pd.DataFrame:
        """Copies by direction and memory kind, per rank and step."""
        return to_frame(tables.copies(self.run))

    @property
    def collectives(self) -> pd.DataFrame:
        """Collectives by name and size, split into transfer and waiting."""
        return to_frame(tables.collectives(self.run))

    @property
    def ranks(self) -> pd.DataFrame:
        """A row per rank."""
        return to_frame(tables.ranks(self.run))

    @property
    def steps(self) -> pd.DataFrame:
        """A row per rank and step, warm-up included: its length and parts."""
        return self._events("steps")

    @property
    def spans(self) -> pd.DataFrame:
        """A row per span: steps, the levels around and inside them, and all NVTX ranges."""
        return self._events("spans")

    @property
    def operations(self) -> pd.DataFrame:
        """A row per GPU operation, with its step, launch and category."""
        return self._events("operations")

    @property
    def exchanges(self) -> pd.DataFrame:
        """A row per rank of every collective or message, with its waiting."""
        return self._events("exchanges")

    @property
    def gaps(self) -> pd.DataFrame:
        """A row per time in which a GPU idles in a step, by cause."""
        return self._events("gaps")

    def _events(self, name: str) -> pd.DataFrame:
        """Return a table of `perfmodel.analysis.events`; `attrs["columns"]` explains its columns.

        Missing numbers are `pd.NA` or NaN.
        """
        import pandas as pd

        table = events(self.run, name)
        columns = {
            key: pd.Series(pd.arrays.IntegerArray(column, column == NULL))
            if column.dtype == "int64"
            else column
            for key, column in table.columns.items()
        }
        frame = pd.DataFrame(columns)
        frame.attrs |= {"title": name, "columns": documented()[name], "complete": table.complete}
        return frame

    @property
    def operators(self) -> pd.DataFrame:
        """A row per operator of a PyTorch step and its sizes; empty without recorded sizes."""
        return to_frame(operators.operators(self.run))

    @property
    def modules(self) -> pd.DataFrame:
        """A row per module of a PyTorch model with the ranges of `perfmodel.annotate`, or none."""
        return to_frame(operators.modules(self.run))

    @property
    def points(self) -> pd.DataFrame:
        """The measured points of all runs, the roof above them and the model's error."""
        return to_frame(tables.points(self.analysis))

    @property
    def runs(self) -> pd.DataFrame:
        """All runs side by side."""
        return to_frame(tables.sweep(self.analysis))

    @property
    def findings(self) -> pd.DataFrame:
        """Findings of the fitted run, largest saving first."""
        return to_frame(tables.findings(self.run))

    @property
    def warnings(self) -> Sequence[str]:
        """Warnings of all runs."""
        return tuple(dict.fromkeys(w for r in self.analysis.runs for w in r.warnings))

    def to_dict(self) -> dict[str, Any]:
        """Return what `analysis.json` holds."""
        return analysis_document(self.analysis)

    def roofline(self, ax: Axes | None = None) -> Axes:
        """Draw the roofline with all measured points."""
        return outputs.draw_roofline(self.analysis, ax)

    def breakdown(self, ax: Axes | None = None) -> Axes:
        """Draw where a median batch goes."""
        return outputs.draw_breakdown(self.analysis, ax)

    def save(self, folder: str | Path, *, plots: bool = True) -> list[Path]:
        """Write all outputs into a folder, whole or not at all."""
        return outputs.write(self.analysis, Path(folder), plots=plots)

    def save_html(self, path: str | Path, *, model: str | Path | None = None) -> Path:
        """Write what `perfmodel report` writes: one HTML file that loads nothing.

        Parameters
        ----------
        path : str or Path
        model : str or Path, optional
            What `perfmodel study calibrate` wrote: changes are then predicted, not bounded.
        """
        from perfmodel.studies.models.model import load
        from perfmodel.studies.page import page

        write_text(path, page(self.analysis, None if model is None else load(Path(model))))
        return Path(path)

    def append_to(self, database: str | Path) -> int:
        """Add the results to a database; see `perfmodel.render.outputs.append`."""
        return outputs.append(self.analysis, Path(database))
