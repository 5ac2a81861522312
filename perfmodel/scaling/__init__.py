"""Measured scaling over ranks: speed-up, efficiency, the laws, communication, all-reduce."""

from perfmodel.scaling.bandwidth import Bandwidth, of_launches, of_machine
from perfmodel.scaling.laws import Fit, Law, amdahl, fit, gustafson, karp_flatt, weak_fraction
from perfmodel.scaling.measure import Launch, Split, launches_of, split_of
from perfmodel.scaling.records import launch_of_record
from perfmodel.scaling.study import Point, Series, Study, study

__all__ = [
    "Bandwidth",
    "Fit",
    "Launch",
    "Law",
    "Point",
    "Series",
    "Split",
    "Study",
    "amdahl",
    "fit",
    "gustafson",
    "karp_flatt",
    "launch_of_record",
    "launches_of",
    "of_launches",
    "of_machine",
    "split_of",
    "study",
    "weak_fraction",
]
