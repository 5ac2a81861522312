"""What kernels of GPUs do, by their names: category, operation, unit, data types, library.

The files in `families/` know the kernels of libraries; `words.toml` has the categories, and words
that mean one in any library. docs/kernels.md says how a name is read, and how to add one.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from importlib.resources import files
from typing import Any, Final

from perfmodel.base.kernels.types import KernelTypes, shown_types, types_of

UNKNOWN: Final = "unknown"
"""Category of a kernel that no entry and no word knows."""
PRODUCTS: Final = ("GEMM", "convolution", "attention")
"""Categories of kernels that multiply matrices: layers are made of them."""

_WORD: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
_PATH: Final = re.compile(r"(?:[A-Za-z_$][\w$]*::)*[A-Za-z_$][\w$]*")
_NAME: Final = re.compile(r"(?:(?:static|inline|__global__|void) )*((?:[\w$]+::)*[\w$]+)")
_UNNAMED: Final = re.compile(r"(?:\(anonymous namespace\)|<unnamed>|\{anonymous\})::")
_DIGITS: Final = re.compile(r"[0-9]+")
_LONGEST: Final = 4096
"""Characters of a name that are read."""
_LENGTH: Final = re.compile(r"(?<![0-9ST])(?<!L[a-z])(?<!DF)[0-9]+(?=[A-Za-z_])")
"""Length before a name within a mangled one; no number (`Li256E`), type (`DF16b`) or repetition."""
_LAST_NUMBERS: Final = re.compile(r"(?:(?:^|_)[0-9]+)+$")


@dataclass(frozen=True, slots=True)
class Category:
    """What kernels mostly do.

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
        Namespaces that the name must have, written as the words of `fits`.
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
class Kernel:
    """What the name of a kernel says.

    Attributes
    ----------
    name : str
        As recorded.
    category : str
        One of `categories`.
    operation : str
        'GEMM', 'attention forward', 'AllReduce', 'sigmoid'; '' if unknown.
    library : str or None
    updates : bool
        It may be an optimizer's: it updates parameters, or loops over lists of tensors.
    unit_said : str or None
        As an entry says it.
    reads : str or None
        As in `Family`.
    """

    name: str
    category: str
    operation: str
    library: str | None
    updates: bool
    unit_said: str | None
    reads: str | None

    @property
    def unit(self) -> str:
        """'tensor', 'vector' or 'copy'; '' if unknown."""
        if self.unit_said is None and self.category in PRODUCTS and (peak := self.types.unit):
            return "tensor" if peak.endswith("_tensor") else "vector"
        return self.unit_said or _registry().categories[self.category].unit

    @property
    def types(self) -> KernelTypes:
        """Data types that the name says."""
        return types_of(self.name, self.multiplies)

    @property
    def multiplies(self) -> bool:
        """Whether it multiplies matrices, convolves or attends, and does not only help with it."""
        return self.category in PRODUCTS and self.unit_said not in ("vector", "copy")

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
        types = shown_types(self.types, self.category in PRODUCTS)
        fused = _fused(self.name) if self.category in PRODUCTS and tile else ()
        layout = _registry().layouts.get(
            said.get("layout") or "", (said.get("layout") or "").upper()
        )
        detail = (said.get("detail") or "").replace("_", " ")
        parts = (self.operation, tile, types, *fused, layout, detail)
        return " ".join(part for part in parts if part)

    def details(self) -> dict[str, str | None]:
        """Parts of the name that its entry tells apart."""
        found = re.search(self.reads, self.name) if self.reads else None
        return found.groupdict() if found else {}


@lru_cache(maxsize=1 << 14)
def kernel(name: str) -> Kernel:
    """Read the name of a kernel, demangled or not.

    >>> kernel("void fbgemm_gpu::permute_2D_data_kernel<true, long>(int)").category
    'copy'
    """
    path, rest = _parts(name)
    own = _matches(path)
    carrier = next((family for family, _ in own if family.decides), None)
    inner: list[Match] = []
    heard: list[Match] = []
    if carrier and carrier.inside:
        inner = _inside(rest, carrier.never)
    if carrier and carrier.words:
        heard = _heard((path, *_PATH.findall(rest)) if carrier.inside else (path,), carrier.never)
    if not any(family.category for family, _ in (*inner, *heard, *own)):
        heard = _heard((path.rpartition("::")[2],)) or _heard((path,))
    category = _first("category", *inner, *heard, *own) or UNKNOWN
    if carrier and carrier.inside:  # its own name says nothing of the operation
        own = tuple(match for match in own if match[0].decides or not match[0].operation)
    operation = _first("operation", *inner, *own, *heard)
    unit = next((f.unit for f, _ in (*inner, *own) if f.unit and f.category == category), None)
    library = _first("library", *inner[:1], *own)
    reads = next((family.reads for family, _ in (*inner, *own) if family.reads), None)
    loops = category != "copy" and any(family.updates for family, _ in own)
    found = Kernel(name, category, "", library, category == "optimizer" or loops, unit, reads)
    if reads and "?P<operation>" in reads:
        operation = found.details().get("operation") or operation
    return replace(found, operation=operation or ("" if category == UNKNOWN else category))


@lru_cache(maxsize=4096)
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


def all_families() -> Iterator[Family]:
    """Every pattern of the data files."""
    return (family for listed in _registry().families.values() for family in listed)


def matches(name: str) -> tuple[Match, ...]:
    """Return the families that a kernel's own name fits, the most specific first."""
    return _matches(_parts(name)[0])


def _first(field: str, *found: Match) -> str | None:
    """What the first of some families says; `{}` is the text of its pattern."""
    for family, captured in found:
        said: str | None = getattr(family, field)
        if said and (captured or "{}" not in said):
            return said.replace("{}", captured)
    return None


def _parts(name: str) -> tuple[str, str]:
    """Namespaces and function of a kernel, and the rest: arguments of templates and functions."""
    name = name[:_LONGEST]
    if name.startswith("_Z"):
        return _demangled(name)
    text = _UNNAMED.sub("", name) if "nonymous" in name or "<unnamed" in name else name
    if text.startswith("std::enable_if"):
        text = text.partition("::type ")[2] or text
    found = _NAME.match(text)
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
def _matches(path: str) -> tuple[Match, ...]:
    """Families that a function's name with its namespaces fits, the most specific first."""
    *spaces, function = (_joined(part) for part in path.split("::"))
    found: list[Match] = []
    families = _registry().families
    for word in {word for part in (*spaces, function) for word in part.split("_")}:
        for family in families.get(word, ()):
            captured = _fitting(family, function)
            if captured is not None and family.namespaces.issubset(spaces):
                found.append((family, _LAST_NUMBERS.sub("", captured)))
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


def _inside(arguments: str, never: Collection[str]) -> list[Match]:
    """Families of the names in template arguments, the most specific first."""
    found: list[Match] = []
    for path in dict.fromkeys(_PATH.findall(arguments)):
        own = _matches(path)
        carries = next((f.inside or f.words for f, _ in own if f.decides or f.operation), True)
        if not carries:
            found += (match for match in own if match[0].category not in never)
    found.sort(key=lambda match: (-match[0].letters, match[0].pattern))
    return found


def _heard(texts: Iterable[str], never: Collection[str] = ()) -> list[Match]:
    """What single words say: that of the category with the highest rank."""
    best, rank = [], -1
    registry = _registry()
    for text in texts:
        words = [word.lower() for word in _WORD.findall(text)]
        at = 0
        while at < len(words):
            step = 1
            for phrase, family in registry.said.get(words[at], ()):
                if words[at : at + len(phrase)] == phrase:
                    step = len(phrase)
                    known = registry.categories[family.category or UNKNOWN]
                    if known.rank > rank and known.name not in never:
                        best, rank = [(family, "")], known.rank
                    break
            at += step
    return best


def _fused(name: str) -> Iterator[str]:
    """What is fused into a product: '+bias', '+relu'."""
    words = {word.lower() for word in _WORD.findall(name.partition("(")[0])}
    return (shown for word, shown in _registry().fused.items() if word in words)


def _joined(text: str) -> str:
    """Words of a name: `_flash_attn_fwd_sm_90_` of `FlashAttnFwdSm90`."""
    return f"_{'_'.join(_WORD.findall(text)).lower()}_"


# --- the data files


@dataclass(frozen=True, slots=True)
class _Registry:
    categories: dict[str, Category]
    said: dict[str, list[tuple[list[str], Family]]]
    families: dict[str, list[Family]]
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
    families: dict[str, list[Family]] = {}
    for path in sorted(folder.joinpath("families").iterdir(), key=lambda path: path.name):
        file = tomllib.loads(path.read_text(encoding="utf-8"))
        for entry in file["kernel"]:
            for pattern in entry["names"]:
                family = _family(pattern, {"library": file.get("library"), **entry})
                longest = max(_words_of(pattern), key=len)
                families.setdefault(longest, []).append(family)
    return _Registry(kinds, said, families, common["layouts"], common["fused"])


def _family(pattern: str, entry: dict[str, Any]) -> Family:
    *spaces, function = pattern.split("::")
    stars = re.findall(r"\*|\{\}", function)
    texts = re.split(r"\*|\{\}", function)
    return Family(
        pattern,
        tuple(_joined(text) if _WORD.search(text) else "" for text in texts),
        stars.index("{}") if "{}" in stars else -1,
        frozenset(_joined(space) for space in spaces),
        sum(len(word) for word in _words_of(pattern)),
        never=frozenset(entry.get("never", ())),
        **{key: value for key, value in entry.items() if key not in ("names", "never", "source")},
    )


def _words_of(pattern: str) -> Sequence[str]:
    return [word.lower() for word in _WORD.findall(pattern)]
