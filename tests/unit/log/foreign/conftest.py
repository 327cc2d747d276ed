"""Writes `rewind.jsonl` files line by line."""

import json

import pytest

HEADER = {
    "kind": "header",
    "version": 1,
    "backend": "transformers",
    "task": "sft",
    "n_rows": 1000,
    "batch_size": 4,
    "grad_accum": 2,
    "dataset_fingerprint": "f" * 64,
    "created": 12.5,
}


@pytest.fixture
def header():
    return dict(HEADER)


@pytest.fixture
def batch():
    """A micro-batch as an object; lists default to one row of mean 1.0 over 10 tokens."""

    def make(step, rows=(1,), losses=None, tokens=None, *, micro=0, **extra):
        rows = list(rows)
        return {
            "kind": "batch",
            "step": step,
            "micro": micro,
            "rows": rows,
            "row_loss": [1.0] * len(rows) if losses is None else losses,
            "row_tokens": [10] * len(rows) if tokens is None else tokens,
            **extra,
        }

    return make


@pytest.fixture
def write(tmp_path):
    """Writes lines (objects, texts or bytes) to a file and gives its path; the header comes first unless left out."""

    def make(*lines, header=HEADER, name="rewind.jsonl", end=b"\n"):
        given = ([] if header is None else [header]) + list(lines)
        raw = [
            line if isinstance(line, bytes) else line.encode() if isinstance(line, str) else json.dumps(line).encode()
            for line in given
        ]
        path = tmp_path / name
        path.write_bytes(b"\n".join(raw) + end)
        return path

    return make
