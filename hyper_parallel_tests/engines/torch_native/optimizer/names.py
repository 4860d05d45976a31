"""Names of parameters as PyTorch's state dicts have them: without what wrappers of modules add."""

from __future__ import annotations

from torch import nn
from torch.distributed.checkpoint.state_dict import _get_fqns


def bare_name(model: nn.Module, name: str) -> str:
    """What state dicts call the parameter that ``named_parameters`` calls so."""
    (found,) = _get_fqns(model, name)
    return found


def bare_names(model: nn.Module) -> dict[nn.Parameter, str]:
    """Each parameter's first name, in the order of the model."""
    return {parameter: bare_name(model, name) for name, parameter in model.named_parameters()}
