"""On CPU the gradient of a grouped GEMM does not take an expanded one, such as that of a plain sum."""

import torch
import torch.nn.functional as F

rows = torch.randn(6, 8, requires_grad=True)
weights = torch.randn(2, 8, 12, requires_grad=True)
product = F.grouped_mm(rows, weights, offs=torch.tensor([2, 6], dtype=torch.int32))
try:
    product.sum().backward()
except RuntimeError as error:
    print(f"expected a gradient, got RuntimeError: {error}")
else:
    print("right")
