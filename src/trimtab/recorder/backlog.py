"""What waits for the disk: a queue that is bounded in number and in bytes.

Enters: items from the training threads, by `put`, which neither waits nor raises. Leaves: batches for the writer.
Invariants: what waits takes at most `CAPACITY_BYTES`, and items that are large by themselves `MAX_ITEM_BYTES` beside
it; what finds no room is counted, and an item that never could is replaced by the reason.

Sizes are estimates that look at no number: three times a micro-batch's rows for its arrays, as much for ids of rows,
and of an event's facts and of names the first 64 values.
"""

from __future__ import annotations

from collections import deque
from itertools import chain, islice
from typing import Any, Final, NamedTuple

from trimtab.values import Event, MicroBatch, RowIds, StepRow

CAPACITY_BYTES: Final = 64 << 20
"""Most memory of ordinary items that may wait for the disk."""

MAX_ITEM_BYTES: Final = 256 << 20
"""Most memory of one item: 11 million packed tokens on one rank. Large items that wait share it."""

LARGE_BYTES: Final = 8 << 20
"""From here on an item is large: it is written at once, and takes no room from the ordinary ones behind it."""

_ITEM_BYTES: Final = 1024  # a named tuple and the objects of three small arrays
_ENTRY_SIZES: Final = 3  # row, loss and tokens take at most three times the bytes of the rows
_LIST_ENTRY_BYTES: Final = 24
_FACTS_LOOKED_AT: Final = 64  # some 10 us at most; a dozen metrics take 4
_FACT_BYTES: Final = 32
_JSON_SIZES: Final = 4  # 8 bytes of an array are some 32 as a Python number or in JSON


class TooLarge(NamedTuple):
    """Stands in the queue for an item that is over `MAX_ITEM_BYTES`."""

    reason: str


class Batch(NamedTuple):
    """What the writer takes at a time, in the order put.

    Attributes:
        items: Whatever was put.
        size_bytes: What the ordinary ones take.
        large_bytes: What the large ones take.
    """

    items: list[object]
    size_bytes: int
    large_bytes: int


class Backlog:
    """The queue between the training threads and the writer.

    Args:
        capacity: Items that may wait.
        ring_at: Number of waiting items from which on the writer is to be woken.

    Attributes:
        num_dropped: Items that found no room.
        drops: The same by kind.
    """

    def __init__(self, capacity: int, *, ring_at: int) -> None:
        self.num_dropped = 0
        self.drops = Drops()
        self._capacity = capacity
        self._ring_at = ring_at
        self._queue: deque[tuple[int, object]] = deque()
        # Counters with one writer each, instead of one with a lock: bytes that wait are their difference.
        self._bytes_put = self._bytes_taken = 0
        self._large_put = self._large_taken = 0

    def __len__(self) -> int:
        return len(self._queue)

    def put(self, item: object) -> bool:
        """Takes one item, or counts it as dropped; True if the writer is to be woken. Never raises."""
        try:
            size = _size_of(item)
            queue = self._queue
            if len(queue) >= self._capacity:
                return self._drop(item)
            if size >= LARGE_BYTES:
                return self._put_large(size, item)
            if self._bytes_put - self._bytes_taken + size > CAPACITY_BYTES:
                return self._drop(item)
            self._bytes_put += size
            queue.append((size, item))
            return len(queue) >= self._ring_at
        except Exception:  # noqa: BLE001 - out of memory; whatever it is, the run is not to hear of it
            return self._drop(item)

    def take(self, max_items: int, *, max_micros: int, max_bytes: int) -> Batch:
        """The oldest items up to one of the bounds, at least one if `max_items` and the queue allow; not yet freed."""
        items: list[object] = []
        size = large = num_micros = 0
        while len(items) < max_items and num_micros < max_micros and size + large < max_bytes:
            item_size, item = self._queue.popleft()
            items.append(item)
            num_micros += type(item) is MicroBatch
            if item_size >= LARGE_BYTES:
                large += item_size
            else:
                size += item_size
        return Batch(items, size, large)

    def free(self, batch: Batch) -> None:
        """Gives back the room of a batch that the writer is done with."""
        self._bytes_taken += batch.size_bytes
        self._large_taken += batch.large_bytes

    def pour_into(self, other: Backlog) -> None:
        """Puts all that waits here into another queue, and adds what was dropped here to what it has dropped."""
        while self._queue:
            other.put(self._queue.popleft()[1])
        other.num_dropped += self.num_dropped
        other.drops.add(self.drops)

    def clear(self) -> None:
        """Forgets what waits; for when nobody will write it."""
        self._queue.clear()

    def _put_large(self, size: int, item: object) -> bool:
        if size > MAX_ITEM_BYTES:
            self._bytes_put += _ITEM_BYTES
            self._queue.append((_ITEM_BYTES, TooLarge(_why_too_large(size, item))))
            return True
        if self._large_put - self._large_taken + size > MAX_ITEM_BYTES:
            return self._drop(item)
        self._large_put += size
        self._queue.append((size, item))
        return True

    def _drop(self, item: object) -> bool:
        self.num_dropped += 1
        self.drops.count(item)
        return False


class Drops:
    """Counts of what found no room, by kind."""

    def __init__(
        self, num_micros: int = 0, num_steps: int = 0, num_events: int = 0, num_ids: int = 0, last_step: int = 0
    ) -> None:
        self.num_micros = num_micros
        self.num_steps = num_steps
        self.num_events = num_events
        self.num_ids = num_ids
        self.last_step = last_step

    def count(self, item: object) -> None:
        """Counts one item; anything that is none counts as an event."""
        if type(item) is MicroBatch:
            self.num_micros += 1
        elif type(item) is StepRow:
            self.num_steps += 1
        elif type(item) is RowIds:
            self.num_ids += 1
        else:
            self.num_events += 1
        self.last_step = _step_of(item) or self.last_step

    def add(self, others: Drops) -> None:
        """Counts what was counted elsewhere, too."""
        self.num_micros += others.num_micros
        self.num_steps += others.num_steps
        self.num_events += others.num_events
        self.num_ids += others.num_ids
        self.last_step = max(self.last_step, others.last_step)

    def copy(self) -> Drops:
        """The counts as they are now."""
        return Drops(self.num_micros, self.num_steps, self.num_events, self.num_ids, self.last_step)

    def since(self, earlier: Drops) -> dict[str, int]:
        """What was dropped after the earlier count, as an event's facts."""
        return {
            "num_micros": self.num_micros - earlier.num_micros,
            "num_steps": self.num_steps - earlier.num_steps,
            "num_events": self.num_events - earlier.num_events,
            "num_ids": self.num_ids - earlier.num_ids,
        }

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Drops) and vars(self) == vars(other)

    __hash__ = None  # type: ignore[assignment]


def _size_of(item: object) -> int:
    """About the bytes that an item holds on to; those of an odd item are the writer's to find out."""
    if type(item) is MicroBatch:
        return _ITEM_BYTES + _arrays_size(item.rows)
    if type(item) is RowIds:
        try:
            return _ITEM_BYTES + _arrays_size(item.rows) + (_facts_size(item.names) if item.names else 0)
        except Exception:  # noqa: BLE001 - names that are none
            return _ITEM_BYTES
    if type(item) is Event:
        try:
            return _ITEM_BYTES + _facts_size(item.facts)
        except Exception:  # noqa: BLE001 - facts that are none, or that change while they are looked at
            return _ITEM_BYTES
    return _ITEM_BYTES


def _arrays_size(rows: Any) -> int:
    """About the bytes of an item's three arrays, by the first of them."""
    try:
        return int(rows.nbytes) * _ENTRY_SIZES
    except Exception:  # noqa: BLE001 - a list, or no array at all
        return _LIST_ENTRY_BYTES * len(rows) if type(rows) in (list, tuple) else 0


def _facts_size(facts: object) -> int:
    """About the bytes of an event's facts; what lies beyond the first 64 values is taken to be like those."""
    waiting = deque([facts])
    size = num_seen = num_left_out = 0
    while waiting and num_seen < _FACTS_LOOKED_AT:
        value = waiting.popleft()
        num_seen += 1
        if type(value) is str or type(value) is bytes:
            size += len(value)
        elif type(value) is dict or type(value) is list or type(value) is tuple:
            entries = chain(value.values(), value) if type(value) is dict else value
            part = list(islice(entries, _FACTS_LOOKED_AT))
            waiting.extend(part)
            num_left_out += len(value) * (2 if type(value) is dict else 1) - len(part)
        elif type(value) is not int and type(value) is not float:
            size += getattr(value, "nbytes", 0) * _JSON_SIZES
    num_unseen = num_left_out + len(waiting)
    return _FACT_BYTES * (num_seen + num_unseen) + size + size * num_unseen // num_seen


def _step_of(item: object) -> int:
    """The item's step; 0 where it has none that can be told without asking it to compute anything."""
    if type(item) is MicroBatch or type(item) is StepRow or type(item) is Event:
        return item.step if type(item.step) is int else 0
    return 0


def _why_too_large(size: int, item: object) -> str:
    bounds = f"about {size} bytes of memory, and an item may take at most {MAX_ITEM_BYTES}"
    if type(item) is MicroBatch:
        micro = item.micro if type(item.micro) is int else "?"
        return (
            f"the micro-batch {micro} of step {_step_of(item)} takes {bounds}; "
            "use smaller micro-batches, or hand over one entry a row in place of one a token"
        )
    if type(item) is RowIds:
        return f"an item of ids takes {bounds}; hand over fewer rows at a time"
    return (
        f"an event of step {_step_of(item)} takes {bounds}; write that into a file of your own and record the file's "
        "name"
    )
