"""Kernels of GPUs by their names: category, operation, unit, data types, library.

The files in `families/` know the kernels of libraries; `words.toml` has the categories, and words
that mean one in any library. docs/adding.md says how a name is read, and how to add one.
"""

from __future__ import annotations

import re
import tomllib
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib.resources import files
from typing import Any, Final

from perfmodel.base.kernels.types import KernelTypes, shown_types, types_of

UNKNOWN: Final = "unknown"
"""Category of a kernel that no entry and no word knows."""
_OF_INTEGERS: Final = ("element-wise", "copy", "reduction", "sort and scan")
"""Categories of kernels whose elements may be integers; those of others are indices."""
PRODUCTS: Final = ("GEMM", "convolution", "attention")
"""Categories of kernels that multiply matrices: layers are made of them."""

_WORD: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
_PATH: Final = re.compile(r"(?:[A-Za-z_$][\w$]*::)*[A-Za-z_$][\w$]*")
_NAME: Final = re.compile(r"(?:(?:static|inline|__global__|void) )*((?:[\w$]+::)*[\w$]+)")
_UNNAMED: Final = re.compile(r"(?:\(anonymous namespace\)|<unnamed>|\{anonymous\})::")
_MOST_NAMES: Final = 1 << 19
"""Names that are remembered: an analysis asks for each about four times. A name takes 0.3 kB."""
_INSIDE: Final = 300
"""Characters of template arguments that are looked at: what runs stands first."""
_DIGITS: Final = re.compile(r"[0-9]+")
_LONGEST: Final = 256
"""Characters of a function's name that are read: behind them Tensile's names list settings."""
_LENGTH: Final = re.compile(r"(?<![0-9ST])(?<!L[a-z])(?<!DF)[0-9]+(?=[A-Za-z_])")
"""Length before a name within a mangled one; no number (`Li256E`), type (`DF16b`) or repetition."""
_NUMBERS: Final = re.compile(r"[0-9]{2,}|(?<![a-wyz])[0-9]")
"""Sizes, versions and architectures, which differ within families; `im2col` keeps its digit."""
_STAR: Final = re.compile(r"\*|\{\}")
_LAST_NUMBERS: Final = re.compile(r"(?:(?:^|_)[0-9]+)+$")


@dataclass(frozen=True, slots=True)
class Category:
    """A category of kernels.

    Attributes
    ----------
    name, about : str
        `about` says which kernels belong to it.
    rank : int
        A kernel whose name says several is of the category with the highest rank.
    unit : str
        Where its time goes unless an entry says otherwise: 'tensor' or 'vector' units, 'copy' for
        moving data only; '' if unknown.
    """

    name: str
    about: str
    rank: int
    unit: str


@dataclass(frozen=True, slots=True)
class Family:
    """One pattern of one entry of a data file, and what it says; None where it says nothing.

    Attributes
    ----------
    pattern : str
        As written, `deep_ep::*`.
    pieces : tuple of str
        Words of the function's name between the pattern's stars, as `_joined` writes them.
    said : int
        Which of the gaps between the pieces is `{}`; -1 if none is.
    namespaces : frozenset of str
        Namespaces that the name must have, written as `pieces`.
    letters : int
        Letters and digits of the pattern: the pattern with more of them wins.
    category, operation, unit, library : str or None
    updates : bool
        Optimizers are loops of such kernels, whatever else runs them.
    inside, words : bool
        The template arguments, or words of the name, say what the kernel does; the entry holds
        where they do not.
    never : frozenset of str
        Categories that arguments and words do not mean here.
    reads : str or None
        Regular expression of parts of the short name: groups `operation`, `m`, `n`, `k`, `layout`,
        `detail`.
    """

    pattern: str
    pieces: tuple[str, ...] = ()
    said: int = -1
    namespaces: frozenset[str] = frozenset()
    letters: int = 0
    category: str | None = None
    operation: str | None = None
    unit: str | None = None
    library: str | None = None
    updates: bool = False
    inside: bool = False
    words: bool = False
    never: frozenset[str] = frozenset()
    reads: str | None = None

    @property
    def decides(self) -> bool:
        """Whether it says what a kernel does, or where to look for it."""
        return bool(self.category or self.inside or self.words)


Match = tuple[Family, str]
"""A family, and the text that `{}` stands for in its pattern."""


@dataclass(frozen=True, slots=True)
class Said:
    """Facts in the names of a family of kernels.

    Attributes
    ----------
    category : str
        One of `categories`.
    operation : str
        'GEMM', 'attention forward', 'AllReduce', 'sigmoid'; '' if unknown.
    library : str or None
    updates : bool
        It may be an optimizer's: it updates parameters, or loops over lists of tensors.
    unit : str or None
        As an entry says it.
    reads : str or None
        As in `Family`.
    """

    category: str
    operation: str
    library: str | None
    updates: bool
    unit: str | None
    reads: str | None


@dataclass(frozen=True, slots=True)
class Kernel:
    """The facts in the name of one kernel: its family's, and those of its own name."""

    name: str
    said: Said

    @property
    def category(self) -> str:
        """One of `categories`."""
        return self.said.category

    @property
    def operation(self) -> str:
        """'GEMM', 'attention forward', 'AllReduce', 'sigmoid'; '' if unknown."""
        return self.details().get("operation") or self.said.operation

    @property
    def library(self) -> str | None:
        """Return the library of the kernel."""
        return self.said.library

    @property
    def updates(self) -> bool:
        """Whether it may be an optimizer's: it updates parameters, or loops over lists."""
        return self.said.updates

    @property
    def unit(self) -> str:
        """'tensor', 'vector' or 'copy'; '' if unknown."""
        if not self.said.unit and self.category in PRODUCTS and (peak := self.types.unit):
            return "tensor" if peak.endswith("_tensor") else "vector"
        return self.said.unit or _registry().categories[self.category].unit

    @property
    def types(self) -> KernelTypes:
        """Data types that the name says."""
        return types_of(self.name, self.multiplies, self.said.unit == "tensor")

    @property
    def multiplies(self) -> bool:
        """Whether it multiplies matrices, convolves or attends, and does not only help with it."""
        return self.category in PRODUCTS and self.said.unit not in ("vector", "copy")

    @property
    def short(self) -> str:
        """A name that a person reads: operation, tile, types, what is fused, layout.

        >>> kernel("nvjet_tst_192x192_64x4_2x1_v_bz_coopB_bias_TNN").short
        'GEMM 192x192x64 bf16 +bias TN'
        """
        if not self.operation:
            path = _parts(self.name)[0]
            return path.rpartition("::")[2] or self.name
        said = self.details()
        tile = "x".join(size for axis in "mnk" if (size := said.get(axis)))
        types = shown_types(self.types, self.category in PRODUCTS, self.category in _OF_INTEGERS)
        fused = _fused(self.name) if self.category in PRODUCTS and tile else ()
        written = said.get("layout") or ""
        layout = _registry().layouts.get(written, written.upper())
        detail = (said.get("detail") or "").replace("_", " ")
        parts = (self.operation, tile, types, *fused, layout, detail)
        return " ".join(part for part in parts if part)

    def details(self) -> dict[str, str | None]:
        """Parts of the name that its entry tells apart."""
        found = re.search(self.said.reads, self.name) if self.said.reads else None
        return found.groupdict() if found else {}


@lru_cache(maxsize=_MOST_NAMES)
def kernel(name: str) -> Kernel:
    """Read the name of a kernel, demangled or not.

    >>> kernel("void fbgemm_gpu::permute_2D_data_kernel<true, long>(int)").category
    'copy'
    """
    path, rest = _parts(name)
    path = _NUMBERS.sub("0", path)
    own = _matches(path)
    inside = rest and (not own or any(family.inside for family, _ in own))
    return Kernel(name, _said(path, _meaning(rest[:_INSIDE]) if inside else ()))


@lru_cache(maxsize=_MOST_NAMES)
def kernel_types(name: str) -> KernelTypes:
    """Data types that the name of a kernel says.

    >>> kernel_types("nvjet_sm90_tst_128x192_64x5_1x4_h_bz_coopB_bias_TNN").unit
    'bfloat16_tensor'
    >>> kernel_types("cutlass_80_simt_sgemm_128x256_8x4_tn_align1").unit
    'float32'
    """
    return kernel(name).types


def categories() -> tuple[Category, ...]:
    """All categories of kernels, those of the highest rank first; `UNKNOWN` is the last."""
    return tuple(_registry().categories.values())


def _first(field: str, *found: Match) -> str | None:
    """Return the field of the first family that has it; `{}` is the text of its pattern."""
    for family, captured in found:
        said: str | None = getattr(family, field)
        if said and (captured or "{}" not in said):
            return said.replace("{}", captured)
    return None


def _parts(name: str) -> tuple[str, str]:
    """Namespaces and function of a kernel, and the rest: arguments of templates and functions."""
    if name.startswith("_Z"):
        return _demangled(name[: 4 * _LONGEST])
    text = _UNNAMED.sub("", name) if "nonymous" in name or "<unnamed" in name else name
    if text.startswith("std::enable_if"):
        text = text.partition("::type ")[2] or text
    found = _NAME.match(text, 0, _LONGEST)
    return (found[1], text[found.end() :]) if found else (text, "")


def _demangled(name: str) -> tuple[str, str]:
    """Names within a mangled name (Itanium C++ ABI, 5.1.2): those of the function, all others."""
    path: list[str] = []
    rest: list[str] = []
    at = 3 if name.startswith("_ZN") else 2
    while found := _DIGITS.match(name, at) or _LENGTH.search(name, at):
        inside = path if found.start() == at and not rest else rest
        at = found.end() + int(found[0])
        if not name.startswith("_GLOBAL_", found.end()):
            inside.append(name[found.end() : at])
    return "::".join(path) or name, " ".join(rest)


@lru_cache(maxsize=1 << 16)
def _said(path: str, arguments: tuple[str, ...]) -> Said:
    """What a function's name says, and the names in its template arguments, if these decide.

    Parameters
    ----------
    path : str
        Namespaces and function.
    arguments : tuple of str
        As `_meaning` returns them.
    """
    own = _matches(path)
    inner: list[Match] = []
    heard: list[Match] = []
    if not own:
        heard = _spoken(path)
        inner = [] if heard else _inside(arguments)  # a wrapper of a function that is known
        return _combined((*heard, *inner), owned=tuple(inner[:1]))
    carrier = next((family for family, _ in own if family.decides), None)
    if carrier and carrier.inside:
        inner = _inside(arguments, carrier.never)
        # its own name says nothing of the operation
        own = tuple(match for match in own if match[0].decides or not match[0].operation)
    if carrier and carrier.words:
        heard = _heard((path, *arguments) if carrier.inside else (path,), carrier.never)
    if not any(family.category for family, _ in (*inner, *heard, *own)):
        heard = _spoken(path)
    found = (*inner, *heard, *own)
    general = carrier and carrier.operation and "{}" not in carrier.operation
    return _combined(found, found if general else (*inner, *own, *heard), (*inner[:1], *own))


@lru_cache(maxsize=1 << 12)
def _combined(
    found: tuple[Match, ...], named: tuple[Match, ...] = (), owned: tuple[Match, ...] = ()
) -> Said:
    """What families say together: the first that says a thing decides.

    Parameters
    ----------
    found, named, owned : tuple of Match
        In the order that decides for the category; for the operation; for the library.
    """
    named = named or found
    category = _first("category", *found) or UNKNOWN
    loops = category != "copy" and any(family.updates for family, _ in owned)
    return Said(
        category,
        _first("operation", *named) or ("" if category == UNKNOWN else category),
        _first("library", *owned),
        loops or category == "optimizer",
        next((f.unit for f, _ in named if f.unit and f.category == category), None),
        next((family.reads for family, _ in named if family.reads), None),
    )


@lru_cache(maxsize=1 << 14)
def _meaning(arguments: str) -> tuple[str, ...]:
    """Names in template arguments that say something, in their order."""
    without = _NUMBERS.sub("0", arguments)
    if without != arguments:
        return _meaning(without)  # which was asked for other sizes
    return tuple(path for path in dict.fromkeys(_PATH.findall(arguments)) if _means(path))


@lru_cache(maxsize=1 << 16)
def _means(path: str) -> bool:
    """Whether a name in template arguments says something."""
    return bool(_inside((path,)) or _heard((path,)))


@lru_cache(maxsize=1 << 16)
def _matches(path: str) -> tuple[Match, ...]:
    """Families that a function's name with its namespaces fits, the most specific first."""
    *spaces, function = [_words(part) for part in path.split("::")]
    found: list[Match] = []
    indexed = _registry().families
    words = function.split("_")
    keys = indexed.keys() & {*words, *"".join(spaces).split("_")}
    for key in (*keys, (words[1],), tuple(words[1:3])):
        for family in indexed.get(key, ()):
            captured = _fitting(family, function)
            if captured is not None and family.namespaces.issubset(spaces):
                found.append((family, _LAST_NUMBERS.sub("", captured)))
    if len(found) > 1:
        found.sort(key=lambda match: (-match[0].letters, match[0].pattern))
    return tuple(found)


def _fitting(family: Family, function: str) -> str | None:
    """Text that `{}` stands for if a function's name, joined, fits; None if it does not fit."""
    first, *others = family.pieces
    if not function.startswith(first) or (not others and len(first) != len(function)):
        return None
    at, captured = max(len(first) - 1, 0), ""  # pieces share the underscore between them
    for gap, piece in enumerate(others):
        last = gap == len(others) - 1
        begin = len(function) - len(piece) if last else function.find(piece, at)
        if begin < at or not function.startswith(piece, begin):
            return None
        if gap == family.said:
            captured = function[at + 1 : begin]
        at = begin + max(len(piece) - 1, 0)
    return captured.strip("_")


def _inside(paths: Iterable[str], never: Collection[str] = ()) -> list[Match]:
    """Families of the names in template arguments, the most specific first."""
    found: list[Match] = []
    for path in paths:
        own = _matches(path)
        carries = next((f.inside or f.words for f, _ in own if f.decides or f.operation), True)
        if not carries:
            found += (match for match in own if match[0].category not in never)
    found.sort(key=lambda match: (-match[0].letters, match[0].pattern))
    return found


def _spoken(path: str) -> list[Match]:
    """Return the facts in single words of a function's name, or else of its namespaces."""
    function = path.rpartition("::")[2]
    return _heard((function,)) or (_heard((path,)) if function != path else [])


def _heard(texts: Iterable[str], never: Collection[str] = ()) -> list[Match]:
    """Return the facts in single words: the category with the highest rank, the longest phrase."""
    best: list[Match] = []
    most = (-1, 0)
    known, kinds = _registry().said, _registry().categories
    for text in texts:
        words = "_".join(_WORD.findall(text)).lower().split("_")
        if known.keys().isdisjoint(words):
            continue
        until = 0
        for at, word in enumerate(words):
            if word not in known or at < until:
                continue
            for phrase, family in known[word]:
                if words[at : at + len(phrase)] == phrase:
                    until = at + len(phrase)
                    kind = kinds[family.category or UNKNOWN]
                    worth = kind.rank, len(phrase)
                    if worth > most and kind.name not in never:
                        best, most = [(family, "")], worth
                    break
    return best


def _fused(name: str) -> Iterator[str]:
    """Yield the operations fused into a product: '+bias', '+relu'."""
    words = {word.lower() for word in _WORD.findall(name.partition("(")[0])}
    return (shown for word, shown in _registry().fused.items() if word in words)


def _joined(text: str) -> str:
    """Words of a name: `_flash_attn_fwd_sm_0_` of `FlashAttnFwdSm90`."""
    return _words(_NUMBERS.sub("0", text))


def _words(text: str) -> str:
    """Words of a name whose numbers are 0 already."""
    return f"_{'_'.join(_WORD.findall(text)).lower()}_"


# --- the data files


Key = str | tuple[str, ...]
"""Any word of a name; or the first one or two of its function."""


@dataclass(frozen=True, slots=True)
class _Registry:
    categories: dict[str, Category]
    said: dict[str, list[tuple[list[str], Family]]]
    families: dict[Key, list[Family]]
    layouts: dict[str, str]
    fused: dict[str, str]


@cache
def _registry() -> _Registry:
    folder = files("perfmodel.base.kernels")
    common = tomllib.loads(folder.joinpath("words.toml").read_text(encoding="utf-8"))
    rows = sorted(common["category"], key=lambda row: -row["rank"])
    kinds = {r["name"]: Category(r["name"], r["about"], r["rank"], r.get("unit", "")) for r in rows}
    said: dict[str, list[tuple[list[str], Family]]] = {}
    for row in rows:
        for operation, phrases in row.get("words", {}).items():
            for phrase in phrases:
                words = _joined(phrase).strip("_").split("_")
                meant = Family(phrase, category=row["name"], operation=operation)
                said.setdefault(words[0], []).append((words, meant))
    for phrases in said.values():
        phrases.sort(key=lambda phrase: -len(phrase[0]))
    every: list[Family] = []
    for path in sorted(folder.joinpath("families").iterdir(), key=lambda path: path.name):
        file = tomllib.loads(path.read_text(encoding="utf-8"))
        for entry in file["kernel"]:
            given = {"library": file.get("library"), **entry}
            given["never"] = frozenset(entry.get("never", ()))
            patterns = given.pop("names")
            given.pop("source", None)
            every += (_family(pattern, given) for pattern in patterns)
    return _Registry(kinds, said, _indexed(every), common["layouts"], common["fused"])


def _indexed(families: Sequence[Family]) -> dict[Key, list[Family]]:
    """Families by their first words, or by their rarest word if the function begins with a star."""
    words = ["".join((*f.namespaces, *f.pieces)).split("_") for f in families]
    often = Counter(word for each in words for word in set(each))
    found: dict[Key, list[Family]] = {}
    for family, each in zip(families, words, strict=True):
        first = family.pieces[0].strip("_")
        rarest = min(filter(None, each), key=often.__getitem__)
        key = tuple(first.split("_")[:2]) if first else rarest
        found.setdefault(key, []).append(family)
    return found


def _family(pattern: str, entry: dict[str, Any]) -> Family:
    *spaces, function = pattern.split("::")
    texts = _STAR.split(function)
    pieces = tuple([_joined(text) if _WORD.search(text) else "" for text in texts])
    namespaces = frozenset([_joined(space) for space in spaces])
    letters = sum([len(text) - text.count("_") for text in (*pieces, *namespaces)])
    said = _STAR.findall(function).index("{}") if "{}" in function else -1
    return Family(pattern, pieces, said, namespaces, letters, **entry)
