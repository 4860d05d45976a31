"""Loss scaling of torch_native: PyTorch's scaler for sharded gradients."""

from __future__ import annotations

from torch.distributed import ProcessGroup
from torch.distributed.fsdp import sharded_grad_scaler


class ShardedGradScaler(sharded_grad_scaler.ShardedGradScaler):
    """PyTorch's own; see the port."""

    def __init__(
        self,
        device: str = "cuda",
        *,
        init_scale: float = 2.0**16,
        backoff_factor: float = 0.5,
        growth_factor: float = 2.0,
        growth_interval: int = 2000,
        enabled: bool = True,
        process_group: ProcessGroup | None = None,
    ) -> None:
        # Left out, PyTorch takes the default group of the time when its module was imported, if there was one.
        super().__init__(
            device,
            init_scale=init_scale,
            backoff_factor=backoff_factor,
            growth_factor=growth_factor,
            growth_interval=growth_interval,
            enabled=enabled,
            process_group=process_group,
        )
