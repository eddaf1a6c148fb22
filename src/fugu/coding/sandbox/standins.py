"""Test code and the agent's program call each other's functions from two processes: what is data is shared, the rest has stand-ins.

The test code asks (``Examiner``), the program answers (``Agent``), and may ask back before it has, where it was given a function.
Functions, iterators and objects stay in the process they are of. A stand-in on the other side asks for one thing at a time, so a
generator is advanced when and as often as in one process.

The program's objects have no say in whether they are what was expected. A stand-in is equal to itself alone and hands no operand over;
methods that built-in types have too are not asked of an object that turned up where data may be expected. What the test code made by
calling a class of the program, in capitals, is under test itself, and behaves as the program says (``Made``).
"""

from __future__ import annotations

import builtins
import json
import operator
from collections.abc import Callable, Iterator
from types import BuiltinFunctionType
from typing import Any

from fugu.coding.sandbox.shared import Shared

Swap = Callable[[bytes], bytes]
"""sends a message and waits for the next one from the other side"""

_JSON = json.JSONEncoder(separators=(",", ":"))
_OPERATORS = ["add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and", "or", "xor"]
_BUILT_IN = {name for kind in (str, bytes, list, tuple, dict, set, int, float, complex, range) for name in dir(kind)}


class Side(Shared):
    def __init__(self, first: int, swap: Swap) -> None:
        super().__init__(first)
        self.swap = swap
        self._kept: dict[int, Any] = {}
        """what the other side has stand-ins of"""
        self._kept_numbers: dict[int, int] = {}
        self._standins: dict[int, Any] = {}

    def ask(self, what: str, /, *args: Any, **kwargs: Any) -> Any:
        """Ask the other side for something, and return or raise what comes of it."""
        message = self._message({"ask": what, **self.pack((args, tuple(kwargs.items())))})
        while True:
            answer = self.read(self.swap(message))
            if "ask" not in answer:
                break
            message = self.answer(answer)  # it needs something of ours first
        value = self.unpack(answer)
        if "raised" in answer:
            raise _exception(answer["raised"], value)
        return value

    def answer(self, question: dict[str, Any]) -> bytes:
        """Do what was asked for and return the message that says what came of it."""
        try:
            args, kwargs = self.unpack(question)
            result = self.do(question["ask"], *args, **dict(kwargs))
            return self._message(self.pack(result))
        except SystemExit:
            raise
        except BaseException as error:
            self.failed(error)
            names = [each.__name__ for each in type(error).__mro__]
            try:
                return self._message({"raised": names, **self.pack(error.args)})
            except Exception:
                return self._message({"raised": names, **self.pack((str(error)[:1000],))})

    def do(self, what: str, /, *args: Any, **kwargs: Any) -> Any:
        if what == "call":
            function, *rest = args
            return function(*rest, **kwargs)
        if what == "next":
            try:
                return (next(*args),)
            except StopIteration:
                return ()
        raise ValueError(f"nobody can be asked for {what!r:.60}")

    def failed(self, error: BaseException) -> None:
        """Called with what a question raised."""

    def plain_other(self, value: Any) -> Any:
        if isinstance(value, StandIn):
            return {"__yours__": object.__getattribute__(value, "_number")}
        kind = self.kind(value)
        number = self._kept_numbers.setdefault(id(value), len(self._kept))
        self._kept[number] = value
        return {"__mine__": [number, kind]}

    def other(self, tag: str, content: Any) -> Any:
        if tag == "__yours__":
            return self._kept[content]
        if tag != "__mine__":
            return super().other(tag, content)
        number, kind = content
        if number not in self._standins:
            self._standins[number] = _STANDINS[kind](self, number)
        return self._standins[number]

    def kind(self, value: Any) -> str:
        """Return the kind of stand-in for a value; ValueError if there is none."""
        if hasattr(type(value), "__next__"):
            return "iterator"
        return "function" if callable(value) else "object"

    def _message(self, message: dict[str, Any]) -> bytes:
        return _JSON.encode(message).encode()

    def read(self, data: bytes) -> dict[str, Any]:
        message = json.loads(data)
        if not isinstance(message, dict):
            raise ValueError("not a message")
        return message


class Examiner(Side):
    """The side of the test code, which trusts nothing that it is told."""

    def __init__(self, swap: Swap) -> None:
        super().__init__(0, swap)
        self._names: dict[int, str] = {}
        """of stand-ins for what the program defines, by ``id``"""

    def named(self, name: str) -> Any:
        """Return a stand-in for a function or, in capitals, a class that the program defines."""

        def function(*args: Any, **kwargs: Any) -> Any:
            return self.ask("call", function, *args, **kwargs)

        function.__name__ = name.rpartition(".")[2]
        made = Class(self, name) if name[:1].isupper() else function
        self._names[id(made)] = name
        return made

    def read(self, data: bytes) -> dict[str, Any]:
        return _believed(super().read, data)

    def unpack(self, message: dict[str, Any]) -> Any:
        return _believed(super().unpack, message)

    def promote(self, result: Any) -> Any:
        """Let an object that the test code has made itself behave as the program says."""
        if not isinstance(result, StandIn) or isinstance(result, Class):
            return result
        number = object.__getattribute__(result, "_number")
        if not isinstance(result, Made):
            self._standins[number] = Made(self, number)
        return self._standins[number]

    def plain_other(self, value: Any) -> Any:
        if id(value) in self._names:
            return {"__global__": self._names[id(value)]}
        name = value.__name__ if isinstance(value, type | BuiltinFunctionType) else ""
        if getattr(builtins, name, None) is value:
            return {"__builtin__": name}
        return super().plain_other(value)

    def kind(self, value: Any) -> str:
        kind = super().kind(value)
        if kind == "object":
            raise ValueError(f"a value of type {type(value).__name__} cannot be passed on")
        return kind


class Agent(Side):
    """The side of the program. ``find`` returns what it defines under a name."""

    def __init__(self, swap: Swap, find: Callable[[str], Any], show: Callable[[BaseException], None]) -> None:
        super().__init__(1, swap)
        self.find, self.show = find, show

    def serve(self, question: bytes) -> bytes:
        return self.answer(self.read(question))

    def failed(self, error: BaseException) -> None:
        self.show(error)

    def plain_other(self, value: Any) -> Any:
        return super().plain_other(value.instance if type(value) is _Instance else value)

    def other(self, tag: str, content: Any) -> Any:
        if tag == "__global__":
            return self.find(content)
        return getattr(builtins, content) if tag == "__builtin__" else super().other(tag, content)

    def do(self, what: str, /, *args: Any, **kwargs: Any) -> Any:
        if what == "make":
            kind, *rest = args
            made = kind(*rest, **kwargs)
            return _Instance(made) if isinstance(kind, type) else made
        doing = _DOINGS.get(what)
        return doing(*args) if doing else super().do(what, *args, **kwargs)


class _Instance:
    """An instance that is to have a stand-in even where it extends a type that is data."""

    def __init__(self, instance: Any) -> None:
        self.instance = instance


def _believed(read: Callable[[Any], Any], told: Any) -> Any:
    """Return what was read, or raise RuntimeError: test code may expect other errors of a program."""
    try:
        return read(told)
    except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError) as error:
        raise RuntimeError(f"what the program sent cannot be read: {error!r:.200}") from None


def _exception(names: Any, args: Any) -> Exception:
    """Return the exception of Python's own that is nearest to what the program raised.

    StopIteration is how an iterator ends: ``all(map(check, inputs))`` would take it for the end of the inputs and be content.
    """
    if (
        not isinstance(names, list)
        or not names
        or not all(isinstance(name, str) for name in names)
        or not isinstance(args, tuple)
    ):
        return RuntimeError("the program raised something that cannot be read")
    for name in () if {"StopIteration", "StopAsyncIteration"} & {*names} else names:
        known = getattr(builtins, name, None)
        if isinstance(known, type) and issubclass(known, Exception) and (known is not Exception or name == names[0]):
            try:
                return known(*args)
            except Exception:  # it needs other arguments
                continue
    return RuntimeError(f"{names[0]}: {', '.join(map(str, args))}")


class StandIn:
    """Something of the other side, equal to itself alone."""

    __slots__ = ("_number", "_side")

    def __init__(self, side: Side, number: Any) -> None:
        object.__setattr__(self, "_side", side)
        object.__setattr__(self, "_number", number)


def _side(standin: StandIn) -> Any:
    return object.__getattribute__(standin, "_side")


class Function(StandIn):
    __slots__ = ()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return _side(self).ask("call", self, *args, **kwargs)


class Iterating(StandIn):
    __slots__ = ()

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        for item in _side(self).ask("next", self):
            return item
        raise StopIteration

    def send(self, value: Any) -> Any:
        return _side(self).ask("send", self, value)

    def close(self) -> None:
        _side(self).ask("close", self)


class Object(StandIn):
    """An object of the program's own that turned up where data may have been expected."""

    __slots__ = ()

    def __getattr__(self, name: str) -> Any:
        if name in _BUILT_IN or name.startswith("__"):
            raise AttributeError(f"an object of the program is not asked for {name!r}, which built-in types have")
        return _side(self).ask("get", self, name)

    def __setattr__(self, name: str, value: Any) -> None:
        _side(self).ask("set", self, name, value)


class Made(Object):
    """An object that the test code made by calling a class of the program: it behaves as the program says.

    Comparisons are between two of these, so that nothing that a test expects is handed over. The other operators are below.
    """

    __slots__ = ()
    __hash__ = object.__hash__

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _side(self).ask("get", self, name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return _side(self).ask("call", self, *args, **kwargs)

    def __next__(self) -> Any:
        return Iterating.__next__(self)  # type: ignore[arg-type]


class Class(StandIn):
    """A class of the program, or a function whose name looks like one."""

    __slots__ = ()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return _side(self).promote(_side(self).ask("make", self, *args, **kwargs))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _side(self).ask("get", self, name)

    def __instancecheck__(self, instance: Any) -> bool:
        return isinstance(instance, Made | Object) and _side(self).ask("is", instance, self) is True


def _asking(what: str) -> Any:
    return lambda self, *args: _side(self).ask(what, self, *args)


def _comparing(what: str) -> Any:
    return lambda self, other: _side(self).ask(what, self, other) is True if isinstance(other, Made) else NotImplemented


def _computing(what: str, turned: bool = False) -> Any:
    def compute(self: Any, other: Any) -> Any:
        return _side(self).promote(_side(self).ask(what, *((other, self) if turned else (self, other))))

    return compute


for _name in ["len", "getitem", "setitem", "delitem", "contains", "iter", "str", "repr", "bool"]:
    setattr(Made, f"__{_name}__", _asking(_name))
for _name in ["eq", "lt", "le", "gt", "ge"]:
    setattr(Made, f"__{_name}__", _comparing(_name))
for _name in _OPERATORS:
    setattr(Made, f"__{_name}__", _computing(_name))
    setattr(Made, f"__r{_name}__", _computing(_name, turned=True))

_STANDINS = {"function": Function, "iterator": Iterating, "object": Object}
_DOINGS: dict[str, Callable[..., Any]] = {
    **{
        name: getattr(operator, f"__{name}__")
        for name in (*_OPERATORS, *["getitem", "setitem", "delitem", "contains", "eq", "lt", "le", "gt", "ge"])
    },
    "get": getattr,
    "set": setattr,
    "is": isinstance,
    "len": len,
    "iter": iter,
    "str": str,
    "repr": repr,
    "bool": bool,
    "send": lambda generator, value: generator.send(value),
    "close": lambda generator: generator.close(),
}
