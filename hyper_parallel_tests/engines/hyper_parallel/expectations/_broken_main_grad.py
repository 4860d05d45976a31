"""The fp32 main gradient is fp16 by default, is not `grad`, and is lost where its reduction was held back."""

import tempfile

import torch
import torch.distributed as dist
from hyper_parallel.core.fully_shard.api import fully_shard
from hyper_parallel.platform.torch.fully_shard.utils import MixedPrecisionPolicy
from torch import nn
from torch.multiprocessing import spawn


def run(rank: int, path: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=2)
    for reduce_dtype, held_back in ((None, False), (torch.float32, True)):
        policy = MixedPrecisionPolicy(torch.float16, reduce_dtype, apply_grad_on_fp32_main_grad=True)
        layer = fully_shard(nn.Linear(4, 4), mp_policy=policy)
        for synchronize in (not held_back, True):
            layer.set_requires_gradient_sync(synchronize)
            layer(torch.ones(2, 4)).sum().backward()
        found = getattr(layer.weight, "main_grad", None), layer.weight.grad
        print(f"rank {rank}: expected fp32 twice, got {[None if one is None else one.dtype for one in found]}")
    dist.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        spawn(run, (f"{folder}/store",), nprocs=2)
