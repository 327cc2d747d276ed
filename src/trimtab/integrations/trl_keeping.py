"""`keep_row_ids`: which rows an SFTTrainer's sequences are made of, kept while its constructor makes them.

TRL tokenises, drops rows without a supervised token, shuffles and packs inside the constructor, and what it hands on
says nothing of rows. Inside the context a column with the row number travels through all of that:

    number      a column is added: the index of the row in the dataset that was handed over
    spread      before packing it becomes a list with one entry a token, which TRL packs as it packs the tokens
    part        afterwards it is taken away from the dataset and kept beside it, on the trainer

What the trainer trains on is what it would train on without the context, column by column. Imports no framework until
a context is entered.
"""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Final

import numpy as np

from trimtab.dataset.data import is_stream
from trimtab.errors import MissingExtraError
from trimtab.notices import warn, warn_once
from trimtab.run import switched_off

COLUMN: Final = "trimtab_row"
"""Name of the column; one of the user's own by this name is left out of the trainer's dataset."""

_KEPT: Final = "trimtab_kept_rows"
"""Attribute of a trainer that holds its `KeptRows`."""

_TOKENS: Final = "input_ids"
"""Column of TRL's that packing takes its lengths from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptRows:
    """What an SFTTrainer's constructor was given and what it made of it.

    Attributes:
        source: The dataset handed to the constructor, which the numbers index.
        prepared: The dataset it trains on, without the numbers.
        rows: Map-style: a `datasets.Dataset` parallel to `prepared`, whose `COLUMN` holds the row of an item, or the
            row of each of its tokens. A stream: `prepared` with the column still in it.
    """

    source: Any
    prepared: Any
    rows: Any


@contextmanager
def keep_row_ids(*, row_id: str = "row_id") -> Iterator[None]:
    """Makes each TRL `SFTTrainer` that is built inside keep the row numbers of its training data.

    Without it, packing and dropping rows in the constructor leave nothing that tells which row of the dataset a token
    came from. Only trainers built in this thread (or asyncio task) are concerned, and only their training data; data,
    weights and the cache of `datasets` are as they would be without it. Contexts may be nested.

    Args:
        row_id: Column of a stream that holds the user's own integer row numbers; without one, rows are numbered by
            their position. Rows of a map-style dataset are numbered by their index.

    Raises:
        MissingExtraError: If TRL is not installed.

    Example:
        with trimtab.keep_row_ids():
            trainer = SFTTrainer(model=model, args=args, train_dataset=rows)
        run = trimtab.attach(trainer)
        trainer.train()
    """
    if switched_off():
        yield
        return
    _stand_ins.put_in()
    token = _open_context.set(row_id)
    try:
        yield
    finally:
        _open_context.reset(token)
        _stand_ins.take_out()


def kept_rows(trainer: Any) -> KeptRows | None:
    """What `keep_row_ids` kept of a trainer's data; None where it was built without, or its dataset was replaced."""
    kept: KeptRows | None = vars(trainer).get(_KEPT)
    return kept if kept is not None and kept.prepared is trainer.train_dataset else None


def were_kept(trainer: Any) -> bool:
    """Whether a trainer was built inside the context."""
    return _KEPT in vars(trainer)


def own_preparation(trainer: Any) -> str | None:
    """Name of the class of the user's that prepares the data of a trainer in its own way; None where TRL does."""
    kind = next(kind for kind in type(trainer).__mro__ if "_prepare_dataset" in vars(kind))
    return None if kind.__module__.partition(".")[0] == "trl" else kind.__name__


_open_context: ContextVar[str | None] = ContextVar("trimtab_open_context", default=None)
"""The `row_id` of the innermost open context."""

_preparing: ContextVar[bool] = ContextVar("trimtab_preparing", default=False)
"""Whether a numbered dataset is being prepared right here."""


# The three stages.


def _number(dataset: Any, *, row_id: str) -> Any:
    """The dataset with a column of row numbers."""
    if is_stream(dataset):
        return dataset.map(functools.partial(_number_stream_row, row_id=row_id), with_indices=True)
    if COLUMN in dataset.column_names:
        dataset = dataset.remove_columns([COLUMN])
    # Half the size where that is enough: packing keeps one number a token.
    dtype = np.int32 if len(dataset) <= np.iinfo(np.int32).max else np.int64
    return dataset.add_column(COLUMN, np.arange(len(dataset), dtype=dtype))


def _number_stream_row(row: Mapping[str, Any], position: int, *, row_id: str) -> dict[str, int]:
    from trimtab.torch.loader import number_in_stream  # a worker reads streams, and has loaded torch

    return {COLUMN: number_in_stream(row, position, row_id=row_id)}


def _spread(dataset: Any, map_kwargs: Mapping[str, Any]) -> Any:
    """The dataset with one row number a token in place of one a row."""
    more = dict(map_kwargs)
    if not is_stream(dataset):
        more["desc"] = "Keeping row ids"
        kind = type(dataset.features[_TOKENS])
        features = dataset.features.copy()
        features[COLUMN] = kind(features[COLUMN])
        more["features"] = features
    return dataset.map(_spread_batch, batched=True, input_columns=[_TOKENS, COLUMN], **more)


def _spread_batch(tokens: list[Any], rows: list[Any]) -> dict[str, list[list[int]]]:
    return {COLUMN: [[int(row)] * len(ids) for ids, row in zip(tokens, rows, strict=True)]}


def _part(prepared: Any) -> tuple[Any, Any]:
    """The dataset without the column, and what holds it; None for the latter where the column was lost."""
    names = prepared.column_names
    if names is None:  # a stream that has been mapped knows them when it is read
        names = next(iter(prepared), {COLUMN: None}).keys()
    if COLUMN not in names:
        return prepared, None
    rows = prepared if is_stream(prepared) else prepared.select_columns([COLUMN]).with_format("numpy")
    return prepared.remove_columns([COLUMN]), rows


# Stand-ins.


class _StandIns:
    """Stands in for four functions of TRL and datasets as long as any context is open; inert outside of them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._num_open = 0
        self._placed: list[tuple[Any, str, Any, Any]] = []

    def put_in(self) -> None:
        """Puts the stand-ins in place for the first open context."""
        with self._lock:
            if self._num_open == 0:
                sft = _sft_module()
                missing = _missing_part(sft)
                if missing is None:
                    self._place_all(sft)
                else:
                    warn_once(
                        "trl",
                        f"TRL {_version()} prepares its data in another way than TRL 1.16 ({missing} is missing): row "
                        "ids are not kept.",
                        cause="internals of TRL",
                    )
            self._num_open += 1

    def take_out(self) -> None:
        """Puts everything back after the last one; what somebody else has put on top stays, and calls us in vain."""
        with self._lock:
            self._num_open -= 1
            if self._num_open:
                return
            while self._placed:
                holder, name, original, stand_in = self._placed.pop()
                if vars(holder).get(name) is stand_in:
                    setattr(holder, name, original)

    def _place_all(self, sft: ModuleType) -> None:
        self._place(sft.SFTTrainer, "_prepare_dataset", _keeping_rows)
        self._place(sft, "pack_dataset", _packing_rows)
        for kind in (sft.Dataset, sft.IterableDataset):
            self._place(kind, "select_columns", _selecting_rows)

    def _place(self, holder: Any, name: str, make: Any) -> None:
        original = getattr(holder, name)
        replacing = make(original)

        @functools.wraps(original)
        def stand_in(*args: Any, **kwargs: Any) -> Any:
            # One that somebody else has put back after the last context is closed must not work beside a new one.
            in_place = any(placed is stand_in for *_, placed in self._placed)
            return (replacing if in_place else original)(*args, **kwargs)

        setattr(holder, name, stand_in)
        self._placed.append((holder, name, original, stand_in))


_stand_ins: Final = _StandIns()


def _keeping_rows(prepare: Any) -> Any:
    signature = inspect.signature(prepare)

    def prepare_dataset(*args: Any, **kwargs: Any) -> Any:
        call = signature.bind(*args, **kwargs)
        trainer, source, row_id = args[0], call.arguments["dataset"], _open_context.get()
        # A trainer prepares its evaluation data by the same method, also later on.
        if row_id is None or call.arguments["dataset_name"] != "train" or _KEPT in vars(trainer):
            return prepare(*args, **kwargs)
        call.arguments["dataset"] = _number(source, row_id=row_id)
        token = _preparing.set(True)
        try:
            prepared = prepare(*call.args, **call.kwargs)
        finally:
            _preparing.reset(token)
        dataset, rows = _part(prepared)
        if rows is None:
            warn("trl", f"{type(trainer).__name__} drops columns while it prepares its data: row ids are not kept.")
        else:
            vars(trainer)[_KEPT] = KeptRows(source=source, prepared=dataset, rows=rows)
        return dataset

    return prepare_dataset


def _selecting_rows(select: Any) -> Any:
    def select_columns(dataset: Any, column_names: Any, *args: Any, **kwargs: Any) -> Any:
        names = dataset.column_names  # None for a stream that has been mapped
        if _preparing.get() and _TOKENS in column_names and (names is None or COLUMN in names):
            column_names = [*column_names, COLUMN]
        return select(dataset, column_names, *args, **kwargs)

    return select_columns


def _packing_rows(pack: Any) -> Any:
    signature = inspect.signature(pack)

    def pack_dataset(*args: Any, **kwargs: Any) -> Any:
        call = signature.bind(*args, **kwargs)
        dataset, names = call.arguments["dataset"], call.arguments["dataset"].column_names
        if _preparing.get() and (names is None or COLUMN in names):
            call.arguments["dataset"] = _spread(dataset, call.arguments.get("map_kwargs") or {})
        return pack(*call.args, **call.kwargs)

    return pack_dataset


def _sft_module() -> ModuleType:
    try:
        import trl.trainer.sft_trainer as sft  # here: who never enters a context needs no TRL
    except ImportError as error:
        raise MissingExtraError("keep_row_ids needs TRL: pip install 'trl>=1.16'.") from error
    return sft


def _missing_part(sft: ModuleType) -> str | None:
    prepare = getattr(sft.SFTTrainer, "_prepare_dataset", None)
    if prepare is None or not {"dataset", "dataset_name"} <= inspect.signature(prepare).parameters.keys():
        return "SFTTrainer._prepare_dataset(dataset, dataset_name)"
    for name in ("pack_dataset", "Dataset", "IterableDataset"):
        if not hasattr(sft, name):
            return f"{sft.__name__}.{name}"
    return None


def _version() -> str:
    import trl

    return str(getattr(trl, "__version__", "of an unknown version"))
