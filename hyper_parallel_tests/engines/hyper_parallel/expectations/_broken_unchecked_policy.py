"""A mixed precision policy can be changed, and takes dtypes and pairs of fields that mean nothing."""

import torch
from hyper_parallel.platform.torch.fully_shard.utils import MixedPrecisionPolicy

if __name__ == "__main__":
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16)
    policy.param_dtype = torch.float16
    print(f"expected an error, got {policy}")
    print(f"expected an error, got {MixedPrecisionPolicy(param_dtype=torch.int64, reduce_dtype='bfloat16')}")
    rounded = MixedPrecisionPolicy(reduce_dtype=torch.bfloat16, apply_grad_on_fp32_main_grad=True)
    print(f"expected an error, got {rounded}")
