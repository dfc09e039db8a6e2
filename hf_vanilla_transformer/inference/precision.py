"""Choose the device, the number format and the attention kernels with which a model runs."""

import torch

DTYPES = ("float32", "bfloat16", "float16", "auto")


def default_device() -> torch.device:
    """Return the accelerator, or the CPU if there is none."""
    # check_available: without it, a build for CUDA names a GPU on machines that have none
    return torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")


def avoid_cudnn_attention() -> None:
    """Leave fused attention to torch's other kernels.

    cuDNN builds a plan for each new shape, which takes tens of milliseconds, and batches have hundreds of shapes.
    """
    torch.backends.cuda.enable_cudnn_sdp(False)


def has_native_bfloat16(device: torch.device) -> bool:
    """Return whether a device multiplies bfloat16 matrices natively, which makes them faster than float32."""
    if device.type == "cuda":
        # torch counts emulation by default, which is no faster than float32
        return torch.cuda.is_bf16_supported(including_emulation=False)
    if device.type == "cpu":
        # torch has no public function for this
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
