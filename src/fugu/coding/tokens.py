"""Text as tokens and back: characters, byte pairs trained on given texts, or any Hugging Face tokenizer.

Ids as the transformer has them: 0 is nothing, 1 ends an answer. ``encode`` gives ``int32 [length]`` without either of them, ``decode``
takes whatever a policy wrote: it stops at the end and passes over nothing. ``decode(encode(text)) == text`` for every text: characters
that are not in the vocabulary are spelled in UTF-8, half a byte per token, which costs a small vocabulary only 16 tokens.
"""

from __future__ import annotations

import collections
import itertools
import json
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from fugu import files
from fugu.errors import ConfigError, FuguError, MissingExtra

NOTHING, END = 0, 1
"""tokens with a meaning of their own"""
_HALVES = 2  # the first of 16 tokens, each half a byte
_FIRST = _HALVES + 16  # the first token that is text

_CHUNK = re.compile(r'\d|"[^"\n]{0,16}"|[\n,;]?[^\d\n,;"]+|.', re.DOTALL)
"""pairs are not joined across these: digits and short literals stay whole words, lines and items begin one"""


class Tokenizer(Protocol):
    size: int
    """ids are below this"""

    def encode(self, text: str) -> np.ndarray: ...
    def decode(self, ids: Iterable[int]) -> str: ...
    def save(self, path: str | os.PathLike[str]) -> None: ...


def row(ids: Sequence[int] | np.ndarray, room: int, *, end: bool = False) -> np.ndarray:
    """Return ``int32 [room]``: the ids, END if asked for, and nothing after it. ConfigError where they do not fit."""
    length = len(ids) + end
    if length > room:
        raise ConfigError(f"{length} tokens do not fit into a row of {room}; allow more, or train the tokenizer on such texts")
    out = np.zeros(room, np.int32)
    out[: len(ids)] = ids
    if end:
        out[len(ids)] = END
    return out


def train_characters(texts: Iterable[str]) -> PairTokenizer:
    """Make one token per character of the texts."""
    return PairTokenizer(_alphabet(texts), ())


def train_pairs(texts: Iterable[str], size: int) -> PairTokenizer:
    """Take the characters of the texts and join the pairs of tokens that follow each other most often, until there are ``size`` ids.

    There are fewer where nothing is left that occurs twice. Equal counts are decided by the text of the pair, so that the same texts,
    in any order, give the same tokenizer.
    """
    texts = list(texts)
    alphabet = _alphabet(texts)
    smallest = _FIRST + len(alphabet)
    if size < smallest:
        raise ConfigError(f"size={size} is too small for the {len(alphabet)} characters of these texts: at least {smallest}")
    counts = collections.Counter(chunk for text in texts for chunk in _CHUNK.findall(text))
    words = {chunk: list(chunk) for chunk in counts}
    pairs: list[tuple[str, str]] = []
    made: set[str] = set()  # several pairs can make the same text
    while smallest + len(made) < size:
        seen: collections.Counter[tuple[str, str]] = collections.Counter()
        for chunk, pieces in words.items():
            for pair in itertools.pairwise(pieces):
                seen[pair] += counts[chunk]
        best = min(seen.items(), key=lambda item: (-item[1], item[0]), default=None)
        if best is None or best[1] < 2:
            break
        pairs.append(best[0])
        made.add("".join(best[0]))
        for pieces in words.values():
            _join(pieces, best[0])
    return PairTokenizer(alphabet, pairs)


class PairTokenizer:
    """Joins pairs in the order they were learned in; with no pairs, a tokenizer of characters."""

    def __init__(self, alphabet: str, pairs: Sequence[tuple[str, str]]) -> None:
        self.alphabet = alphabet
        self.pairs = tuple(pairs)
        self._pieces = [*alphabet]
        self._rank: dict[tuple[str, str], int] = {}
        known = set(alphabet)
        for left, right in self.pairs:
            if left not in known or right not in known:
                raise ConfigError(f"the pair {left!r}, {right!r} is made of tokens that are not there")
            self._rank[left, right] = len(self._rank)
            if left + right not in known:  # another pair may make the same text
                known.add(left + right)
                self._pieces.append(left + right)
        self._id = {piece: k for k, piece in enumerate(self._pieces, _FIRST)}
        if len(self._id) != len(self._pieces):
            raise ConfigError("the alphabet names a character twice")
        self._known: dict[str, list[int]] = {}  # chunk -> ids
        self.size = _FIRST + len(self._pieces)

    def encode(self, text: str) -> np.ndarray:
        ids: list[int] = []
        for chunk in _CHUNK.findall(text):
            found = self._known.get(chunk)
            if found is None:
                found = list(self._ids(chunk))
                if len(self._known) < 1 << 14:  # or texts without end fill the memory
                    self._known[chunk] = found
            ids += found
        return np.array(ids, np.int32)

    def decode(self, ids: Iterable[int]) -> str:
        text: list[str] = []
        spelled: list[int] = []  # halves of bytes
        for token in ids:
            if _HALVES <= token < _FIRST:
                spelled.append(int(token) - _HALVES)
                continue
            if token == NOTHING:
                continue
            text.append(_spelled(spelled))
            spelled.clear()
            if token == END:
                break
            if not _FIRST <= token < self.size:
                raise ConfigError(f"token {token} is not below the {self.size} of this tokenizer")
            text.append(self._pieces[token - _FIRST])
        text.append(_spelled(spelled))
        return "".join(text)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Save as JSON, readable with ``load``."""
        data = {
            "format": "fugu tokenizer",
            "version": 1,
            "alphabet": self.alphabet,
            "pairs": [list(pair) for pair in self.pairs],
        }
        Path(path).write_text(json.dumps(data) + "\n")

    def _ids(self, chunk: str) -> Iterator[int]:
        pieces = list(chunk)
        while len(pieces) > 1:
            best = min(itertools.pairwise(pieces), key=lambda pair: self._rank.get(pair, len(self._rank)))
            if best not in self._rank:
                break
            _join(pieces, best)
        for piece in pieces:
            if piece in self._id:
                yield self._id[piece]
            else:
                for byte in piece.encode("utf-8", "surrogatepass"):
                    yield from (_HALVES + byte // 16, _HALVES + byte % 16)


class HuggingFaceTokenizer:
    """A ``tokenizer.json`` of the Hugging Face library; its ids begin at 2, after ours."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        try:
            import tokenizers
        except ImportError:
            raise MissingExtra("A Hugging Face tokenizer", "tokens") from None
        try:
            self._tokenizer: Any = tokenizers.Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises nothing narrower
            raise FuguError(f"{path} is no Hugging Face tokenizer: {error}") from None
        self.size = 2 + self._tokenizer.get_vocab_size(with_added_tokens=True)

    def encode(self, text: str) -> np.ndarray:
        plain = text.encode("utf-8", "replace").decode()  # no lone surrogates, which the library cannot take
        return np.array(self._tokenizer.encode(plain, add_special_tokens=False).ids, np.int32) + np.int32(2)

    def decode(self, ids: Iterable[int]) -> str:
        until = itertools.takewhile(lambda token: token != END, ids)
        return self._tokenizer.decode([int(token) - 2 for token in until if token != NOTHING], skip_special_tokens=False)

    def save(self, path: str | os.PathLike[str]) -> None:
        self._tokenizer.save(str(path))


def load(path: str | os.PathLike[str]) -> Tokenizer:
    """Load what ``save`` wrote, ours or Hugging Face's."""
    try:
        data = json.loads(files.read(Path(path)))
    except OSError as error:
        raise FuguError(f"{path} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise FuguError(f"{path} is no tokenizer: {error}") from None
    if not isinstance(data, dict) or data.get("format") != "fugu tokenizer":
        return HuggingFaceTokenizer(path)
    if data.get("version") != 1:
        raise FuguError(f"{path} has version {data.get('version')!r}; this fugu reads version 1: pip install --upgrade fugu-rl")
    try:
        return PairTokenizer(str(data["alphabet"]), [(str(left), str(right)) for left, right in data["pairs"]])
    except (KeyError, TypeError, ValueError) as error:
        raise FuguError(f"{path} is damaged: {error!r}") from None


def _alphabet(texts: Iterable[str]) -> str:
    return "".join(sorted({character for text in texts for character in text}))


def _join(pieces: list[str], pair: tuple[str, str]) -> None:
    """Join a pair of tokens in place, from left to right."""
    k = 0
    while k < len(pieces) - 1:
        if (pieces[k], pieces[k + 1]) == pair:
            pieces[k : k + 2] = [pair[0] + pair[1]]
        k += 1


def _spelled(halves: list[int]) -> str:
    """Return the text of half bytes; what is no UTF-8, as a policy may write, becomes the replacement character."""
    data = bytes(16 * high + low for high, low in zip(halves[::2], halves[1::2], strict=False))
    try:
        return data.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        return data.decode("utf-8", "replace")
