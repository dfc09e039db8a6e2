"""Choose the number format in which a model translates."""

import torch

DTYPES = ("float32", "bfloat16", "float16", "auto")


def has_native_bfloat16(device: torch.device) -> bool:
    """Return whether a device multiplies bfloat16 matrices natively, which makes them faster than float32."""
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    if device.type == "cpu":
        return torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    return False


def resolve_dtype(name: str, device: torch.device) -> torch.dtype:
    """Return the dtype called `name`; "auto" is bfloat16 if the device has it natively, otherwise float32.

    Raises:
        ValueError: for an unknown name.
    """
    if name not in DTYPES:
        raise ValueError(f"Unknown dtype {name!r}; choose one of {', '.join(DTYPES)}.")
    if name == "auto":
        return torch.bfloat16 if has_native_bfloat16(device) else torch.float32
    return getattr(torch, name)
