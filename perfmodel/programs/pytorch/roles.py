"""Roles of the numbers in recorded sizes: batch, sequence, widths, heads, layers, images.

One report has one value of each number, so that values alone cannot say whether 768 is the width
or half a batch. Where a number stands does: attention takes (batch, heads, seq, width of a head),
an embedding (vocab, d_model), a product of matrices rows of tokens and a weight, a convolution
(batch, channels, height, width). Parameters, which the optimizer lists, have neither batch nor
height.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Final, Literal

from perfmodel.base.errors import ModelError
from perfmodel.models.recorded import RecordedCall, RecordedStep, Size, parameters_of
from perfmodel.models.roles import Certainty, Role, Roles
from perfmodel.models.structure import runs_of
from perfmodel.models.symbols import Term

_Place = Literal["token", "width", "inner"]
_EMBEDDINGS: Final = ("aten::embedding", "aten::gather", "aten::index_select")
_CONVOLUTION: Final = "convolution"
_SOFTMAX: Final = "softmax"
_PRODUCTS: Final = "bmm"
_ONE: Final = Fraction(1)
_SMALL: Final = (1, 2, 3, 4, 6, 8)
"""Multiples of a width in one dimension: query, key and value together have 3."""
_MOST_HALVINGS: Final = 6
"""A network for images halves them at most so often: ResNets do five times."""
_TWICE: Final = 0.5
"""A repetition of this share of a step's products is one of layers."""


@dataclass(frozen=True, slots=True)
class _Attention:
    """Sizes of the first attention of a step.

    Attributes
    ----------
    batch, heads, seq : int
    head : int
        Numbers of a head; 0 where no product says it.
    kv_heads : int or None
        Heads of keys where they are fewer.
    count : int
        Calls in the forward pass.
    why : str
        Whose sizes they are.
    """

    batch: int
    heads: int
    seq: int
    head: int
    kv_heads: int | None
    count: int
    why: str


@dataclass(frozen=True)
class _Reader:
    """Reads the roles of one recorded step."""

    step: RecordedStep

    @cached_property
    def calls(self) -> list[RecordedCall]:
        """In the order of the step."""
        return [self.step.calls[i] for i in self.step.order]

    @cached_property
    def parameters(self) -> frozenset[Size]:
        """Shapes of parameters, as the optimizer has them; else the second factors of products."""
        found = {*parameters_of(self.calls)}
        if not found:
            products = (c for c in self.calls if c.kind == "gemm" and c.layout != "tn")
            found.update(s for c in products for s in _factors(c)[1:])
        return frozenset(found)

    def is_parameter(self, size: Size) -> bool:
        """Whether an operand has the shape of a parameter, as it is or transposed."""
        return bool(size) and (size in self.parameters or size[::-1] in self.parameters)

    @cached_property
    def attention(self) -> _Attention | None:
        """What attention says of sizes, by an operator of its own or written out."""
        calls = [c for c in self.calls if c.kind == "attention" and len(c.sizes[0]) == 4]
        forward = [c for c in calls if c.phase == "forward"]
        if calls:
            first = (forward or calls)[0]
            batch, heads, seq, head = first.sizes[0]
            key = first.sizes[1]
            others = key[1] if len(key) == 4 and key[1] != heads else None
            count = sum(c.kind == "attention" for c in forward)
            return _Attention(batch, heads, seq, head, others, count, "attention")
        return self._written_out()

    def _written_out(self) -> _Attention | None:
        """Attention as softmax between two products of a head's matrices."""
        forward = [c for c in self.calls if c.phase == "forward" and c.sizes]
        scores = [c.sizes[0] for c in forward if _SOFTMAX in c.name and len(c.sizes[0]) in (3, 4)
                  and c.sizes[0][-1] == c.sizes[0][-2] > 1]  # fmt: skip
        if not scores:
            return None
        seq, images = scores[0][-1], self.image[0] if self.image else 0
        rows = math.prod(scores[0][:-2])
        heads = [s[2] for c in forward if _PRODUCTS in c.name and len(s := c.sizes[0]) == 3
                 and s[:2] == (rows, seq) and s[2] != seq]  # fmt: skip
        if len(scores[0]) == 4:
            batch, many = scores[0][:2]
        elif images and rows % images == 0:
            batch, many = images, rows // images
        else:
            return None
        return _Attention(batch, many, seq, heads[0] if heads else 0, None, len(scores),
                          "attention's softmax")  # fmt: skip

    @cached_property
    def image(self) -> Size | None:
        """Input of the first convolution."""
        first = (c.sizes[0] for c in self.calls if _CONVOLUTION in c.name and c.sizes)
        return next((s for s in first if len(s) == 4), None)

    def roles(self) -> Iterator[Role]:
        """Yield the roles of the step's numbers."""
        yield from self._of_attention()
        yield from self._of_images()
        yield from self._of_widths()
        yield from self._of_layers()

    def _of_attention(self) -> Iterator[Role]:
        found = self.attention
        if found is None:
            return
        yield Role("batch", found.batch, "sure", f"first size of {found.why}")
        yield Role("seq", found.seq, "sure", f"rows of {found.why}")
        yield Role("heads", found.heads, "sure", f"second size of {found.why}")
        if found.kv_heads is not None:
            yield Role("kv_heads", found.kv_heads, "sure", "heads of attention's keys")

    def _of_images(self) -> Iterator[Role]:
        if self.image is not None:
            batch, channels, height, width = self.image
            if self.attention is None:
                yield Role("batch", batch, "sure", "first size of the first convolution")
            yield Role("channels", channels, "sure", "channels of the first convolution")
            yield Role("height", height, "sure", "rows of the first convolution")
            yield Role("width", width, "sure", "columns of the first convolution")
        elif self.attention is None:
            rows = Counter(
                s[0]
                for c in self.calls
                for s in c.sizes
                if len(s) > 1 and s[0] > 1 and c.phase == "forward" and not self.is_parameter(s)
            )
            if rows:
                often = rows.most_common(1)[0][0]
                yield Role("batch", often, "guess", "most frequent first size of activations")

    def _of_widths(self) -> Iterator[Role]:
        if self.attention is None:
            return
        square = Counter(n for s in self._weights for n in s)
        trained = bool(parameters_of(self.calls))  # else nothing lists the parameters
        embedded = [s for c in self.calls if c.name in _EMBEDDINGS and (s := c.sizes[0])]
        tables = [(s[0], s[1]) for s in embedded
                  if len(s) == 2 and (self.is_parameter(s) or not trained)]  # fmt: skip
        model = 0
        if tables:
            vocab, model = max(tables)
            sure: Certainty = "sure" if trained else "likely"
            yield Role("vocab", vocab, sure, "rows of the embedding")
            yield Role("d_model", model, sure, "columns of the embedding")
        elif square:
            model = square.most_common(1)[0][0]
            yield Role("d_model", model, "likely", "most frequent width of weights")
        both = {
            a for a, b in self._weights if b == model and a != model and (model, a) in self._weights
        }
        vocabs = {vocab for vocab, _ in tables}
        if not vocabs:
            wide = {a for a, b in self._weights if b == model and a > 4 * model} - both
            vocabs = {max(wide)} if wide else set()
            for vocab in vocabs:
                yield Role("vocab", vocab, "likely", "widest product, with no way back")
        both -= vocabs
        if both:
            yield Role("d_ff", max(both), "likely", "width between two products of a layer")

    @cached_property
    def _weights(self) -> frozenset[tuple[int, int]]:
        return frozenset((s[0], s[1]) for s in self.parameters if len(s) == 2)

    def _of_layers(self) -> Iterator[Role]:
        attends = self.attention.count if self.attention is not None else 0
        tokens = [i for i in self.step.order if self.step.calls[i].kind in ("gemm", "attention")]
        runs = runs_of(tokens)
        longest = max(runs, key=lambda r: r.period * r.count, default=None)
        if longest is None or longest.period * longest.count < _TWICE * len(tokens) / 2:
            return
        if attends and 0 <= attends - longest.count <= 2:
            yield Role(
                "n_layer", attends, "sure", "calls of attention, and repetitions of products"
            )
        else:
            yield Role("n_layer", longest.count, "likely", "repetitions of products")


def _factors(call: RecordedCall) -> Sequence[Size]:
    """The two factors of a product of matrices."""
    return [size for size in call.sizes[: call.arguments] if len(size) == 2][:2]


class _Namer:
    """Says of every dimension which product of symbols it is."""

    def __init__(
        self, reader: _Reader, values: Mapping[str, int], named: Mapping[str, int]
    ) -> None:
        self.reader, self.values, self.named = reader, values, named
        heads, model = values.get("heads", 0), values.get("d_model", 0)
        self.head = reader.attention.head if reader.attention is not None else 0
        self.whole = bool(heads and model and heads * self.head == model)
        self.unknown: Counter[int] = Counter()

    def terms(self) -> tuple[tuple[tuple[Term, ...], ...], ...]:
        """Of every call, of every size, of every dimension the product that it is."""
        return tuple(
            tuple(self._size(call, i, size) for i, size in enumerate(call.sizes))
            for call in self.reader.step.calls
        )

    def _size(self, call: RecordedCall, place: int, size: Size) -> tuple[Term, ...]:
        places = self._places(call, place, size)
        return tuple(self._term(n, p) for n, p in zip(size, places, strict=True))

    def _places(self, call: RecordedCall, place: int, size: Size) -> list[_Place]:
        """Return the kind of every dimension of an operand."""
        factors = _factors(call) if call.kind == "gemm" else []
        if len(factors) == 2 and len(size) == 2:
            first, second = factors
            other = not self.reader.is_parameter(second) and call.phase == "backward"
            if call.layout == "tn" or (not call.layout and other):
                rows: list[_Place] = ["width", "token"] if size is first else ["token", "width"]
                return rows if size is first or size is second else ["width", "width"]
            return ["width", "width"] if size is second else ["token", "width"]
        if call.kind != "attention" and self.reader.is_parameter(size):
            return ["width"] * len(size)
        found: list[_Place] = ["inner"] * len(size)
        found[self._batch_at(size) : self._batch_at(size) + 1] = ["token"] * min(len(size), 1)
        return found

    def _batch_at(self, size: Size) -> int:
        """Place of the batch: first, or behind the sequence as in torch.nn.MultiheadAttention."""
        batch, seq = self.values.get("batch", 0), self.values.get("seq", 0)
        if batch in (0, seq) or batch not in size:
            return 0
        place = size.index(batch)
        return place if place and size[place - 1] == seq else 0

    def _term(self, number: int, place: _Place) -> Term:
        if number <= 1:
            return Term(Fraction(number), ())
        for name, value in self.named.items():
            if value == number:
                return _power(name)
        if place == "token" and (found := self._token(number)) is not None:
            return found
        found = self._inner(number) if place != "width" else self._width(number)
        if found is None and number > max(_SMALL):
            self.unknown[number] += 1
        return found or Term(Fraction(number), ())

    def _token(self, number: int) -> Term | None:
        """A dimension of a batch: of its tokens, heads, pixels or images."""
        batch = self.values.get("batch", 0)
        if not batch:
            return None
        rest, over = divmod(number, batch)
        if over:
            return None
        for name in ("", "seq", "patches", "heads", "kv_heads"):
            if rest == (self.values.get(name, 0) if name else 1):
                return _power("batch", name) if name else _power("batch")
        area = self.values.get("height", 0) * self.values.get("width", 0)
        for k in range(1, _MOST_HALVINGS + 1):
            if area and rest * 4**k == area:
                powers = (("batch", 1), ("height", 1), ("width", 1))
                return Term(Fraction(1, 4**k), powers)
        return Term(Fraction(rest), (("batch", 1),))

    def _inner(self, number: int) -> Term | None:
        """A dimension of activations behind the first."""
        for name in ("seq", "patches"):
            if number == self.values.get(name, 0):
                return _power(name)
        found = self._width(number)
        if found is not None:
            return found
        for name in ("height", "width"):
            side = self.values.get(name, 0)
            for k in range(_MOST_HALVINGS + 1):
                if side and number == math.ceil(side / 2**k):
                    return Term(Fraction(1, 2**k), ((name, 1),))
        return None

    def _width(self, number: int) -> Term | None:
        """A dimension of weights, or of what they make."""
        for name in ("d_model", "d_ff", "vocab", "heads", "kv_heads", "seq", "channels"):
            if number == self.values.get(name, 0):
                return _power(name)
        if self.head and number == self.head:
            return Term(_ONE, (("d_model", 1), ("heads", -1))) if self.whole else None
        narrow = self.values.get("kv_heads", 0)
        for times in _SMALL:
            if narrow and number == times * narrow * self.head and self.whole:
                powers = (("d_model", 1), ("heads", -1), ("kv_heads", 1))
                return Term(Fraction(times), powers)
            for name in ("d_model", "d_ff"):
                if self.values.get(name, 0) and number == times * self.values[name]:
                    return Term(Fraction(times), ((name, 1),))
        return None


def _power(*names: str) -> Term:
    return Term(_ONE, tuple((name, 1) for name in names))


def roles_of(step: RecordedStep, named: Mapping[str, int]) -> Roles:
    """Infer the roles of a step's dimensions.

    Parameters
    ----------
    step : RecordedStep
    named : mapping
        Numbers of the report by role, which count before what is inferred.

    Raises
    ------
    ModelError
        If the step names no sizes, or a number that was named is none of them.
    """
    if not step.order or not any(call.sizes for call in step.calls):
        raise ModelError(
            f"{step.source}: expected a report with operators' sizes; got none; record with nsys "
            f"profile --pytorch=autograd-shapes-nvtx, or record_shapes=True of torch.profiler"
        )
    seen = {n for call in step.calls for size in call.sizes for n in size}
    for name, number in named.items():
        if number not in seen and name != "n_layer":
            raise ModelError(
                f"--name {number}={name}: expected a number of the operators' sizes; got one that "
                f"none has; perfmodel predict REPORT prints them"
            )
    twice = [n for n, count in Counter(named.values()).items() if count > 1]
    if twice:
        names = " and ".join(name for name, number in named.items() if number == twice[0])
        raise ModelError(f"--name: expected one role of {twice[0]}; got {names}; give one of them")
    reader = _Reader(step)
    found: dict[str, Role] = {}
    for role in reader.roles():
        found.setdefault(role.name, role)
    for name, number in named.items():
        found[name] = Role(name, number, "given", "--name")
    values = {name: role.value for name, role in found.items()}
    patch = _patch(reader, values)
    if patch is not None:
        values["patches"] = (values["height"] // patch) * (values["width"] // patch)
    more = {name: n for name, n in named.items() if name not in {r.name for r in reader.roles()}}
    more.pop("n_layer", None)
    namer = _Namer(reader, values, more)
    terms = namer.terms()
    shared = Counter(values[name] for name in values if name not in ("n_layer", "patches"))
    doubted = tuple(
        role.doubted() if shared[role.value] > 1 and role.name not in ("height", "width") else role
        for role in found.values()
    )
    unknown = tuple(n for n, _ in namer.unknown.most_common())
    return Roles(doubted, terms, unknown, namer.head if namer.whole else None, patch)


def _patch(reader: _Reader, values: Mapping[str, int]) -> int | None:
    """Edge of a patch, where images are cut into a sequence of patches."""
    if reader.image is None or not {"seq", "height", "width"} <= values.keys():
        return None
    for call in reader.calls:
        if _CONVOLUTION in call.name and call.sizes[0] == reader.image and len(call.sizes[1]) == 4:
            edge = call.sizes[1][2]
            count = (values["height"] // edge) * (values["width"] // edge)
            return edge if edge > 1 and 0 <= values["seq"] - count <= 2 else None
    return None
