"""The names that a pickle may mention for `torch.load(weights_only=True)` to load it.

Enters and leaves: nothing; a table. Invariant: each of them only makes numbers, containers and tensors. It is written
down here because torch itself must not be imported to look at a file; a test holds it against torch's own list.
"""

from __future__ import annotations

from typing import Final

_KINDS: Final = ("BFloat16", "Byte", "Char", "Double", "Float", "Half", "Int", "Long", "Short")
# fmt: off
_DTYPES: Final = (
    "bfloat16", "float16", "float32", "float64", "float4_e2m1fn_x2", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2",
    "float8_e5m2fnuz", "float8_e8m0fnu", "complex32", "complex64", "complex128", "bool", "bits16", "bits1x8", "bits2x4",
    "bits4x2", "bits8", "qint32", "qint8", "quint2x4", "quint4x2", "quint8",
)
_SCHEMES: Final = (
    "per_channel_affine", "per_channel_affine_float_qparams", "per_channel_symmetric", "per_tensor_affine",
    "per_tensor_symmetric",
)
_REBUILDS: Final = (
    "device_tensor_from_cpu_tensor", "device_tensor_from_numpy", "meta_tensor_no_storage", "nested_tensor", "parameter",
    "parameter_with_state", "qtensor", "sparse_tensor", "tensor", "tensor_v2", "tensor_v3", "wrapper_subclass",
)
# fmt: on

SAFE_NAMES: Final = frozenset(
    [
        "_codecs.encode",
        *(f"builtins.{name}" for name in ("bytearray", "complex", "set")),
        *(f"collections.{name}" for name in ("Counter", "OrderedDict")),
        *(f"torch.{name}" for name in ("Size", "Tensor", "device", *_DTYPES, *_SCHEMES)),
        *(f"torch.int{bits}" for bits in (1, 2, 3, 4, 5, 6, 7, 8, 16, 32, 64)),
        *(f"torch.uint{bits}" for bits in (1, 2, 3, 4, 5, 6, 7, 8, 16, 32, 64)),
        *(f"{home}.{kind}Tensor" for home in ("torch", "torch.cuda") for kind in (*_KINDS, "Bool")),
        *(f"{home}.{kind}Storage" for home in ("torch", "torch.cuda") for kind in (*_KINDS, "Bool")),
        *(f"{home}.{kind}Tensor" for home in ("torch.sparse", "torch.cuda.sparse") for kind in _KINDS),
        *(f"torch.{home}Complex{kind}Storage" for home in ("", "cuda.") for kind in ("Double", "Float")),
        *(f"torch.{kind}Storage" for kind in ("QInt8", "QInt32", "QUInt8", "QUInt2x4", "QUInt4x2")),
        *(f"torch._utils._rebuild_{what}" for what in _REBUILDS),
        "torch._tensor._rebuild_from_type_v2",
        "torch.nn.parameter.Parameter",
        "torch.serialization._get_layout",
        "torch.storage.TypedStorage",
        "torch.storage.UntypedStorage",
    ]
)
"""`module.name` of each, as torch 2.13 lists them; in which older ones lack some."""

NUMPY_NAMES: Final = frozenset(
    [
        "numpy.core.multiarray._reconstruct",
        "numpy._core.multiarray._reconstruct",
        "numpy.ndarray",
        "numpy.dtype",
        "numpy.dtypes.UInt32DType",
    ]
)
"""What a Trainer of Hugging Face allows beside them for its `rng_state.pth`: the words of NumPy's generator."""
