"""Roles of the numbers in a recorded step's sizes, and the sizes that follow from others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final, Literal

from perfmodel.base.errors import ModelError
from perfmodel.models.symbols import Term

Certainty = Literal["given", "sure", "likely", "guess"]
_LESS: Final[Mapping[str, Certainty]] = {"sure": "likely", "likely": "guess"}


@dataclass(frozen=True, slots=True)
class Role:
    """The role of a number of the report.

    Attributes
    ----------
    name : str
        `batch`, `seq`, `d_model`, `d_ff`, `heads`, `kv_heads`, `n_layer`, `vocab`, `channels`,
        `height`, `width`, or a name that the user gave.
    value : int
    certainty : {'given', 'sure', 'likely', 'guess'}
    why : str
        The operands that say so.
    """

    name: str
    value: int
    certainty: Certainty
    why: str

    def doubted(self) -> Role:
        """The same role, where another has the same value."""
        if self.certainty == "given":
            return self
        less = _LESS.get(self.certainty, self.certainty)
        return replace(self, certainty=less, why=f"{self.why}; another role has this number, too")


@dataclass(frozen=True, slots=True)
class Roles:
    """Roles of a step's numbers.

    Attributes
    ----------
    found : tuple of Role
    terms : tuple
        Of every call, of every size, of every dimension the product of roles that it is.
    unknown : tuple of int
        Numbers that are no product of roles, most frequent first; they stay as recorded.
    head : int or None
        Width of a head where heads fill the width of the model.
    patch : int or None
        Edge of the patches that an image is cut into.
    """

    found: tuple[Role, ...]
    terms: tuple[tuple[tuple[Term, ...], ...], ...]
    unknown: tuple[int, ...]
    head: int | None
    patch: int | None

    @property
    def values(self) -> dict[str, int]:
        """Sizes as recorded, with those that follow from others."""
        return self._with_patches({role.name: role.value for role in self.found})

    def _with_patches(self, values: dict[str, int]) -> dict[str, int]:
        if self.patch is None:
            return values
        edges = (values["height"] // self.patch) * (values["width"] // self.patch)
        return {**values, "patches": edges}

    def sizes_at(self, given: Mapping[str, int]) -> tuple[dict[str, int], tuple[str, ...]]:
        """Sizes with some of them changed, and notes on those that follow from the change.

        Where the width changes and heads are not given, the width of a head stays; the inner width
        of a layer keeps its ratio to the width; an image of another size has other patches.

        Raises
        ------
        ModelError
            If a size is unknown, or the heads do not divide the width.
        """
        old = {role.name: role.value for role in self.found}
        unknown = sorted(given.keys() - old.keys() - {"p"})
        if unknown:
            raise ModelError(
                f"--set {unknown[0]}: expected one of {', '.join(old)}, the sizes that the report "
                f"shows; got {unknown[0]!r}; give --name N={unknown[0]} for a number N of it"
            )
        new = old | {k: v for k, v in given.items() if k != "p"}
        notes = []
        width = "d_model" in given and new["d_model"] != old["d_model"]
        if width and "d_ff" in old and "d_ff" not in given:
            new["d_ff"] = round(old["d_ff"] * new["d_model"] / old["d_model"])
            notes.append(f"d_ff = {new['d_ff']}: as many times d_model as recorded")
        if width and self.head and "heads" not in given:
            if new["d_model"] % self.head:
                raise ModelError(
                    f"--set d_model={new['d_model']}: expected a multiple of {self.head}, the "
                    f"width of a head; got none; give heads, too"
                )
            new["heads"] = new["d_model"] // self.head
            notes.append(f"heads = {new['heads']}: heads of {self.head}, as recorded")
            if "kv_heads" in old and "kv_heads" not in given:
                new["kv_heads"] = max(round(old["kv_heads"] * new["heads"] / old["heads"]), 1)
        if self.head and new["d_model"] % new["heads"]:
            raise ModelError(
                f"expected heads that divide d_model = {new['d_model']}; got {new['heads']}; give "
                f"another number"
            )
        new = self._with_patches(new)
        if self.patch is not None and "seq" not in given:
            new["seq"] = old["seq"] + new["patches"] - self.values["patches"]
        return new, tuple(notes)
