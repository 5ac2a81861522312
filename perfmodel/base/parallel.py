"""Runs one function over many reports: in this process, in several of this machine, or on Dask."""

from __future__ import annotations

import os
import signal
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from shutil import rmtree
from typing import TYPE_CHECKING, Any, Final, TypeVar

import perfmodel
from perfmodel.base.errors import PerfmodelError

if TYPE_CHECKING:
    from concurrent.futures import Future

    from distributed import Client

T = TypeVar("T")
Report = tuple[Path, Path]
"""The path of a report, and its label."""

_TOGETHER: Final = 4
_LARGE_BYTES: Final = 64_000_000
_WORTH_BYTES: Final = 32_000_000
_PATIENCE_S: Final = 60


@dataclass(frozen=True, slots=True)
class Engine:
    """A place to read reports.

    Attributes
    ----------
    jobs : int or None
        Processes of this machine; None takes a process per core where that pays.
    scheduler : str or None
        Address of a running Dask scheduler, whose workers see the reports under the same paths.
    """

    jobs: int | None = None
    scheduler: str | None = None


def over_reports(
    function: Callable[[Path, Path], T],
    paths: Sequence[Path],
    engine: Engine,
    progress: Callable[[Path], object] = lambda _: None,
) -> list[T]:
    """Call `function` as `attempt_reports` does.

    Raises
    ------
    PerfmodelError
        As there, or the error of the first report that cannot be read, which says how many others
        cannot.
    """
    found = attempt_reports(function, paths, engine, progress)
    broken = [(r, p) for r, p in zip(found, paths, strict=True) if isinstance(r, PerfmodelError)]
    if broken:
        raise all_failed([r for r, _ in broken], [p for _, p in broken], len(paths))
    return [result for result in found if not isinstance(result, PerfmodelError)]


def attempt_reports(
    function: Callable[[Path, Path], T],
    paths: Sequence[Path],
    engine: Engine,
    progress: Callable[[Path], object] = lambda _: None,
) -> list[T | PerfmodelError]:
    """Call `function` with every report's path and name; return results, or errors, in order.

    Parameters
    ----------
    function : callable
        Of a module, or a partial of one, so that other processes can find it.
    paths : sequence of Path
    engine : Engine
        The results do not depend on it.
    progress : callable, optional
        Called with every report's path when it is done.

    Raises
    ------
    PerfmodelError
        If the engine cannot be used, or a worker process is killed.
    """
    elsewhere = engine.scheduler is not None  # where other folders are the working ones
    reports = [(Path.cwd() / path if elsewhere else path, path) for path in paths]
    found: dict[int, T | PerfmodelError] = {}
    with _results(partial(_attempt, function), reports, engine) as results:
        for index, result in results:
            found[index] = result
            progress(paths[index])
    return [found[i] for i in range(len(paths))]


def all_failed(
    errors: Sequence[PerfmodelError], paths: Sequence[Path], count: int | None = None
) -> PerfmodelError:
    """Return the first error, which says how many of `count` reports cannot be read, and which."""
    first = errors[0]
    if len(errors) == 1:
        return first
    others = ", ".join(str(path) for path in paths[1:4]) + (", ..." if len(paths) > 4 else "")
    of = len(paths) if count is None else count
    return type(first)(
        f"{first} ({len(errors)} of {of} reports cannot be read; the others: {others})"
    )


def _attempt(function: Callable[[Path, Path], T], report: Report) -> T | PerfmodelError:
    try:
        return function(*report)
    except PerfmodelError as error:
        return error


@contextmanager
def _results(
    call: Callable[[Report], T], reports: Sequence[Report], engine: Engine
) -> Iterator[Iterable[tuple[int, T]]]:
    """Yield what yields (index, result), in any order."""
    size = sum(_bytes(path) for path, _ in reports)
    # small reports go four at a time, so that few messages carry them; large ones one by one
    step = 1 if size > _LARGE_BYTES * len(reports) else _TOGETHER
    numbered = list(enumerate(reports))
    chunks = [numbered[i : i + step] for i in range(0, len(reports), step)]
    if engine.scheduler is not None:
        with _client(engine.scheduler) as client:
            yield _on_dask(call, chunks, client)
        return
    paying = cores() if size >= _WORTH_BYTES else 1  # starting processes takes time, too
    jobs = min(paying if engine.jobs is None else engine.jobs, len(chunks))
    if jobs <= 1:
        yield ((i, call(report)) for i, report in enumerate(reports))
    else:
        yield _in_processes(call, chunks, jobs)


def cores() -> int:
    """Return how many cores this process may use."""
    available = getattr(os, "sched_getaffinity", None)
    return len(available(0)) if available else os.cpu_count() or 1


def _bytes(path: Path) -> int:
    try:
        return path.stat().st_size
    except (OSError, ValueError):
        return 0


def _of_chunk(
    call: Callable[[Report], T], chunk: Sequence[tuple[int, Report]]
) -> list[tuple[int, T]]:
    return [(index, call(report)) for index, report in chunk]


def _in_processes(
    call: Callable[[Report], T], chunks: Sequence[list[tuple[int, Report]]], jobs: int
) -> Iterator[tuple[int, T]]:
    """Spread chunks over fresh processes; an interrupted caller leaves none behind."""
    from concurrent.futures import ProcessPoolExecutor, as_completed
    from concurrent.futures.process import BrokenProcessPool
    from multiprocessing import active_children, get_context

    others = {child.pid for child in active_children()}
    place = tempfile.mkdtemp(
        prefix="perfmodel-"
    )  # a process that is ended leaves what it unpacked there
    pool = ProcessPoolExecutor(jobs, get_context("spawn"), _end_with_parent, (place,))
    futures: set[Future[list[tuple[int, T]]]] = set()
    try:
        with _uninterrupted():  # Ctrl-C is the parent's
            futures |= {pool.submit(_of_chunk, call, chunk) for chunk in chunks}
        for future in as_completed(list(futures)):
            futures.remove(future)  # its results are the caller's now
            yield from future.result()
    except BrokenProcessPool as error:
        raise PerfmodelError(
            f"a process that read reports was killed, with {len(futures) + 1} of {len(chunks)} "
            f"parts of them to go; if memory ran out, try again with --jobs 1"
        ) from error
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        if futures:  # interrupted
            for child in active_children():
                if child.pid not in others:
                    child.terminate()
                    child.join(_PATIENCE_S)
        rmtree(place, ignore_errors=True)


def _end_with_parent(place: str) -> None:
    """Let this process end when its parent is gone, which, killed, cannot end it.

    Its temporary files are in the parent's folder `place`.
    """
    from multiprocessing import parent_process

    tempfile.tempdir = place

    def watch() -> None:
        if (parent := parent_process()) is not None:
            parent.join()
            os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, daemon=True).start()


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Put off signals while processes start, which inherit that they do not get Ctrl-C.

    SIGALRM, too, by which `perfmodel.__main__` interrupts later: a process whose start is cut off
    prints a traceback. Other threads take signals that this one blocks, hence the handlers.
    """
    main = threading.current_thread() is threading.main_thread()
    if not (main and hasattr(signal, "pthread_sigmask")):
        yield
        return
    from multiprocessing.resource_tracker import ensure_running

    ensure_running()  # its start unblocks SIGINT
    came: list[int] = []
    all_of = signal.SIGALRM, signal.SIGINT, signal.SIGTERM, signal.SIGHUP
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    before = [signal.signal(number, lambda n, _: came.append(n)) for number in all_of]
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        for number, handler in zip(all_of, before, strict=True):
            signal.signal(number, handler)
        for one in came:
            signal.raise_signal(one)


@contextmanager
def _client(address: str) -> Iterator[Client]:
    """Connect to a Dask scheduler whose workers run this version of perfmodel."""
    try:
        from distributed import Client
        from distributed.comm import get_address_host_port
    except ImportError:
        raise PerfmodelError(
            "--scheduler: expected the package distributed; got none; install it with: "
            "pip install 'perfmodel[dask]'"
        ) from None
    try:
        get_address_host_port(address)  # a Client that fails at this would wait on, and complain
        client = Client(address, timeout=_PATIENCE_S // 4, set_as_default=False)
    except (OSError, ValueError, TypeError) as error:
        raise PerfmodelError(
            f"--scheduler {address}: no Dask scheduler answers there ({error}); start one with: "
            f"dask scheduler"
        ) from error
    with client:
        _check_workers(client, address)
        yield client


def _check_workers(client: Client, address: str) -> None:
    try:
        client.wait_for_workers(1, timeout=_PATIENCE_S)
    except (OSError, TimeoutError) as error:
        raise PerfmodelError(
            f"--scheduler {address}: no worker connected within {_PATIENCE_S} s; start some with: "
            f"dask worker {address}"
        ) from error
    try:
        versions = set(client.run(lambda: perfmodel.__version__).values())
    except Exception as error:  # whatever a worker raises
        raise PerfmodelError(
            f"--scheduler {address}: its workers cannot run perfmodel ({error}); install perfmodel "
            f"{perfmodel.__version__} where they run"
        ) from error
    if versions != {perfmodel.__version__}:
        raise PerfmodelError(
            f"--scheduler {address}: expected workers with perfmodel {perfmodel.__version__}; got "
            f"{', '.join(sorted(versions))}; install the same version everywhere"
        )


def _on_dask(
    call: Callable[[Report], T], chunks: Sequence[list[tuple[int, Report]]], client: Client
) -> Iterator[tuple[int, T]]:
    from distributed import as_completed

    futures: list[Any] = client.map(partial(_of_chunk, call), chunks, pure=False)
    try:
        for future in as_completed(futures, loop=client.loop):
            try:
                results = future.result()
            except Exception as error:  # a worker that died, or Dask's own trouble
                raise PerfmodelError(
                    f"a Dask worker failed ({type(error).__name__}: {error}); its log says more"
                ) from error
            future.release()
            yield from results
    finally:
        client.cancel(futures)
