"""What a pickle would make, told from its opcodes alone: nothing is imported, called or made.

Enters: the bytes of a `data.pkl` that may come from a stranger. Leaves: the keys of its outermost mapping, the names
that it mentions, the storages that it needs; or a `BadPickle`. Invariants: only the opcodes are known that
`torch.load(weights_only=True)` knows; whatever they would build is one of a few marks, so no structure, deep, wide or
inside of itself, takes more than the bytes that spell it; time and memory are bounded by the limits below.
"""

from __future__ import annotations

import pickle
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, NamedTuple

MAX_PICKLE_BYTES: Final = 64 << 20
"""Largest pickle that is looked at. A tensor takes 130 bytes in it: the states of 500,000 tensors fit."""

MAX_OPCODES: Final = 32_000_000
"""A tensor takes 60. Reached after ten seconds; a pickle of torch's with more would have 500,000 tensors."""

MAX_STACK: Final = 1_000_000
"""Objects under way at once. Picklers store what they have after each 1,000."""

MAX_REMEMBERED: Final = 2_000_000
"""Short texts and names that are remembered because the pickle may mention them again."""

MAX_TEXT: Final = 256
"""Bytes of a text that is kept; a longer one is no key of a checkpoint."""

MAX_KEYS: Final = 100_000
"""Keys of the outermost mapping that are kept."""

MAX_NAMES: Final = 1_000
"""Different names; torch's own are 140."""

_MAX_STEP: Final = 2**63


class BadPickle(Exception):  # noqa: N818 - its text is the end of a sentence: what is wrong with the pickle
    """A pickle that is damaged, or would need more than `weights_only=True` does; the text says why, plain ASCII."""


class NeedsPickle(BadPickle):
    """One that is sound as far as it shows, and that nothing but pickle itself would load."""


class Mark(Enum):
    """What stands for an object that is not kept."""

    TENSOR = "tensor"
    MAPPING = "mapping"
    OTHER = "other"


@dataclass(slots=True)
class Pickled:
    """What a pickle holds.

    Attributes:
        entries: Keys of the outermost mapping that are short texts, with a number or short text as it is and a mark for
            all else; None where the outermost object is no mapping.
        names: Names that it mentions, `module.name`, in the order of their first mention.
        storages: Keys of the storages that its tensors lie in.
    """

    entries: dict[str, int | float | str | Mark] | None = None
    names: list[str] = field(default_factory=list)
    storages: set[str] = field(default_factory=set)


class _Name(NamedTuple):
    path: str


class _Outermost:
    """The mapping that was begun first: a pickle begins a container before what is in it."""

    __slots__ = ("entries",)

    def __init__(self) -> None:
        self.entries: dict[str, int | float | str | Mark] = {}


_Value = int | float | str | Mark | _Name | _Outermost


def walk(data: bytes) -> Pickled:
    """Reads a pickle to its end.

    Args:
        data: The pickle, of protocol 2 as torch writes it.

    Raises:
        BadPickle: It is damaged, or needs what `weights_only=True` does not give; names that are not safe are no error
            here, but stand in the result.
    """
    if len(data) > MAX_PICKLE_BYTES:
        raise BadPickle(f"has {len(data):,} bytes of pickle; more than {MAX_PICKLE_BYTES:,} are not looked at")
    walker = _Walker(data)
    try:
        return walker.run()
    except (IndexError, struct.error):
        raise BadPickle("holds a pickle that is damaged or ends too soon") from None


class _Walker:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0
        self._stack: list[_Value] = []
        self._below: list[list[_Value]] = []
        self._num_below = 0
        self._memo: dict[int, _Value] = {}
        self._names: dict[str, _Name] = {}
        self._outermost: _Outermost | None = None
        self._storages: set[str] = set()
        self._do = self._opcodes()

    def run(self) -> Pickled:
        data, do = self._data, self._do
        for _ in range(MAX_OPCODES):
            opcode = data[self._at]
            self._at += 1
            if opcode == _STOP:
                return self._result()
            act = do.get(opcode)
            if act is None:
                raise NeedsPickle(f"needs pickle: its opcode {opcode:#04x} is none that weights_only=True loads")
            act()
            if len(self._stack) + self._num_below > MAX_STACK:
                raise BadPickle(f"has more than {MAX_STACK:,} objects under way at once")
        raise BadPickle(f"has more than {MAX_OPCODES:,} opcodes")

    def _result(self) -> Pickled:
        top = self._stack.pop()
        entries = top.entries if isinstance(top, _Outermost) else None
        return Pickled(entries, list(self._names), self._storages)

    def _opcodes(self) -> dict[int, Callable[[], None]]:
        push = self._stack_push
        acts: dict[bytes, Callable[[], None]] = {
            pickle.BINPUT: lambda: self._remember(self._byte()),
            pickle.LONG_BINPUT: lambda: self._remember(self._uint32()),
            pickle.BINGET: lambda: self._recall(self._byte()),
            pickle.LONG_BINGET: lambda: self._recall(self._uint32()),
            pickle.MARK: self._mark,
            pickle.BINUNICODE: lambda: self._text(self._uint32()),
            pickle.SHORT_BINSTRING: lambda: self._text(self._byte()),
            pickle.BININT: lambda: push(struct.unpack("<i", self._take(4))[0]),
            pickle.BININT1: lambda: push(self._byte()),
            pickle.BININT2: lambda: push(struct.unpack("<H", self._take(2))[0]),
            pickle.LONG1: self._long,
            pickle.BINFLOAT: lambda: push(float(struct.unpack(">d", self._take(8))[0])),
            pickle.EMPTY_DICT: self._mapping,
            pickle.TUPLE: self._tuple,
            pickle.TUPLE1: lambda: self._made(1),
            pickle.TUPLE2: lambda: self._made(2),
            pickle.TUPLE3: lambda: self._made(3),
            pickle.REDUCE: self._call,
            pickle.NEWOBJ: self._call,
            pickle.BINPERSID: lambda: self._made(1),
            pickle.GLOBAL: self._name,
            pickle.BUILD: lambda: self._put(1),
            pickle.APPEND: lambda: self._put(1),
            pickle.APPENDS: lambda: self._put_all(self._popped()),
            pickle.SETITEM: self._set_item,
            pickle.SETITEMS: lambda: self._put_all(self._popped()),
            pickle.PROTO: lambda: self._skip(1),
        }
        for opcode in (pickle.NONE, pickle.NEWTRUE, pickle.NEWFALSE):
            acts[opcode] = lambda: push(Mark.OTHER)
        for opcode in (pickle.EMPTY_TUPLE, pickle.EMPTY_LIST, pickle.EMPTY_SET):
            acts[opcode] = lambda: push(Mark.OTHER)
        return {opcode[0]: act for opcode, act in acts.items()}

    # ------------------------------------------------------------------------------------------------- what is read

    def _byte(self) -> int:
        value = self._data[self._at]
        self._at += 1
        return value

    def _uint32(self) -> int:
        value: int = struct.unpack("<I", self._take(4))[0]
        return value

    def _take(self, num_bytes: int) -> bytes:
        taken = self._data[self._at : self._at + num_bytes]
        self._skip(num_bytes)
        return taken

    def _skip(self, num_bytes: int) -> None:
        self._at += num_bytes
        if self._at > len(self._data):
            raise IndexError

    # ------------------------------------------------------------------------------------------- what would be made

    def _stack_push(self, value: _Value) -> None:
        self._stack.append(value)

    def _text(self, num_bytes: int) -> None:
        if num_bytes > MAX_TEXT:
            self._skip(num_bytes)
            self._stack.append(Mark.OTHER)
        else:
            self._stack.append(self._take(num_bytes).decode("utf-8", "replace"))

    def _long(self) -> None:
        value = int.from_bytes(self._take(self._byte()), "little", signed=True)
        self._stack.append(value if abs(value) < _MAX_STEP else Mark.OTHER)

    def _name(self) -> None:
        path = ".".join(self._line() for _ in range(2))
        known = self._names.get(path)
        if known is None:
            if len(self._names) >= MAX_NAMES:
                raise BadPickle(f"mentions more than {MAX_NAMES:,} names")
            known = self._names[path] = _Name(path)
        self._stack.append(known)

    def _line(self) -> str:
        end = self._data.find(b"\n", self._at, self._at + MAX_TEXT)
        if end < 0:
            raise BadPickle(f"mentions a name of more than {MAX_TEXT} bytes")
        line = self._data[self._at : end].decode("utf-8", "replace")
        self._at = end + 1
        return line

    def _mapping(self) -> None:
        if self._outermost is None:
            self._outermost = _Outermost()
            self._stack.append(self._outermost)
        else:
            self._stack.append(Mark.MAPPING)

    def _tuple(self) -> None:
        items = self._popped()
        if len(items) > 2 and items[0] == "storage" and isinstance(items[2], str):
            self._storages.add(items[2])
        self._stack.append(Mark.OTHER)

    def _made(self, num_items: int) -> None:
        for _ in range(num_items):
            self._stack.pop()
        self._stack.append(Mark.OTHER)

    def _call(self) -> None:
        self._stack.pop()
        called = self._stack.pop()
        if not isinstance(called, _Name):
            raise NeedsPickle("needs pickle: it calls what is not named")
        if called.path in ("collections.OrderedDict", "collections.Counter"):
            self._mapping()
        else:
            self._stack.append(Mark.TENSOR if "._rebuild_" in called.path else Mark.OTHER)

    # ---------------------------------------------------------------------------------------- where it would be put

    def _mark(self) -> None:
        self._below.append(self._stack)
        self._num_below += len(self._stack) + 1
        self._stack = []

    def _popped(self) -> list[_Value]:
        items = self._stack
        self._stack = self._below.pop()
        self._num_below -= len(self._stack) + 1
        return items

    def _put(self, num_items: int) -> None:
        for _ in range(num_items):
            self._stack.pop()
        if not self._stack:
            raise IndexError

    def _set_item(self) -> None:
        value, key = self._stack.pop(), self._stack.pop()
        self._put_all([key, value])

    def _put_all(self, items: list[_Value]) -> None:
        target = self._stack[-1]
        if isinstance(target, _Outermost):
            for key, value in zip(items[::2], items[1::2], strict=False):
                if isinstance(key, str) and len(target.entries) < MAX_KEYS:
                    target.entries[key] = Mark.OTHER if isinstance(value, _Name | _Outermost) else value

    def _remember(self, number: int) -> None:
        value = self._stack[-1]
        if isinstance(value, Mark | int | float):
            # One that was remembered under this number before is forgotten, as a pickle of torch's never does.
            self._memo.pop(number, None)
            return
        self._memo[number] = value
        if len(self._memo) > MAX_REMEMBERED:
            raise BadPickle(f"mentions more than {MAX_REMEMBERED:,} texts")

    def _recall(self, number: int) -> None:
        self._stack.append(self._memo.get(number, Mark.OTHER))


_STOP: Final = pickle.STOP[0]
