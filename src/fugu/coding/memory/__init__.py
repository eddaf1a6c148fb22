"""Memory: what was solved before, found again by likeness.

``filters`` (which entries count) -> ``contract`` (what every index offers) -> ``exact`` (the default), ``approximate`` (hnswlib,
usearch), ``turbopuffer`` (remote) -> ``embed`` (texts as vectors) -> ``solutions`` (what an environment or a policy asks).
"""

from fugu.coding.memory.approximate import ApproximateIndex
from fugu.coding.memory.contract import Index, Metric, Neighbour
from fugu.coding.memory.embed import TextEmbedding
from fugu.coding.memory.exact import ExactIndex
from fugu.coding.memory.filters import And, Eq, Filter, In, Not, Or, Range
from fugu.coding.memory.solutions import Remembered, SolutionMemory
from fugu.coding.memory.turbopuffer import TurbopufferIndex

__all__ = [
    "And",
    "ApproximateIndex",
    "Eq",
    "ExactIndex",
    "Filter",
    "In",
    "Index",
    "Metric",
    "Neighbour",
    "Not",
    "Or",
    "Range",
    "Remembered",
    "SolutionMemory",
    "TextEmbedding",
    "TurbopufferIndex",
]
