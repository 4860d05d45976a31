"""A tied weight on the meta device comes back as two: by to_empty(), and by set_model_state_dict()."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict


def tied() -> nn.Sequential:
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    model[1].weight = model[0].weight
    return model


if __name__ == "__main__":
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    with torch.device("meta"):
        emptied, loaded = tied(), tied()
    emptied.to_empty(device="cpu")
    print("to_empty: expected one weight, got", len({id(layer.weight) for layer in emptied}))
    set_model_state_dict(loaded, tied().state_dict(), options=StateDictOptions(full_state_dict=True))
    print("set_model_state_dict: expected one weight, got", len({id(layer.weight) for layer in loaded}))
    dist.destroy_process_group()
