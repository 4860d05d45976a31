"""Everything that the next steps of a training depend on, saved and loaded on the same ranks: bit for bit."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import nn

from hyper_parallel_tests.domains.distributed_checkpoint.networks import (
    WIDTH,
    WRAPS,
    Tied,
    network,
    plain,
    restore,
    states,
    step,
    tensors,
)
from hyper_parallel_tests.domains.distributed_checkpoint.setting import shared_folder
from hyper_parallel_tests.harness import assert_equal, contract
from hyper_parallel_tests.models.mlp import mlp_batch

BEFORE, AFTER = 2, 2
OPTIMIZERS = {
    "adamw": partial(torch.optim.AdamW, lr=0.1, weight_decay=0.1),
    "amsgrad": partial(torch.optim.Adam, lr=0.1, amsgrad=True),
    "momentum": partial(torch.optim.SGD, lr=0.1, momentum=0.9, nesterov=True),
    "sgd": partial(torch.optim.SGD, lr=0.1),
}

each_wrap = pytest.mark.parametrize("wrap", WRAPS.values(), ids=WRAPS)
each_training = pytest.mark.parametrize(
    ("make", "optimizer"),
    [
        *(pytest.param(network, optimizer, id=name) for name, optimizer in OPTIMIZERS.items()),
        pytest.param(Tied, OPTIMIZERS["adamw"], id="tied"),
    ],
)


class Run:
    """A training with a schedule, noise from the global generator, and a count of its steps."""

    def __init__(self, engine, world, make, wrap, optimizer, seed):
        self.engine, self.world = engine, world
        self.model = wrap(engine, world, make(seed).to(world.device))
        self.optimizer = optimizer(self.model.parameters())
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, step_size=1, gamma=0.5)
        self.steps = 0

    def step(self):
        """One step on a batch of its own with noise; gives the loss."""
        rows = mlp_batch(self.steps, rows=4, width=WIDTH).to(self.world.device)
        noise = torch.rand(rows.inputs.shape).to(self.world.device)
        loss = nn.functional.mse_loss(self.model(rows.inputs + noise), rows.targets)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.scheduler.step()
        self.steps += 1
        return loss.detach()

    def state(self):
        """All of it; the random state is each rank's own."""
        random = {f"rank {self.world.rank}": torch.get_rng_state()}
        training = {"scheduler": self.scheduler, "steps": self.steps, "random": random}
        return states(self.engine, self.model, self.optimizer) | training

    def save(self, folder):
        self.engine.save(self.state(), checkpoint_id=folder)

    def load(self, folder):
        state = self.state()
        self.engine.load(state, checkpoint_id=folder)
        self.engine.set_model_state_dict(self.model, state["model"])
        self.engine.set_optim_state_dict(self.model, self.optimizer, state["optimizer"])
        self.steps = state["steps"]
        torch.set_rng_state(state["random"][f"rank {self.world.rank}"])


@contract("CK-2-01")
@each_training
@each_wrap
def test_training(engine, world, make, wrap, optimizer):
    """Model, optimizer, schedule, count and random state come back: the next steps are those without the break."""
    # What is not divided must stay the same on all ranks.
    torch.manual_seed(0 if wrap is plain else world.rank)
    with shared_folder(world) as folder:
        run = Run(engine, world, make, wrap, optimizer, seed=0)
        for _ in range(BEFORE):
            run.step()
        run.save(folder)
        losses = [run.step() for _ in range(AFTER)]
        torch.manual_seed(7)
        again = Run(engine, world, make, wrap, optimizer, seed=1)
        again.load(folder)
    assert again.steps == BEFORE
    assert again.scheduler.get_last_lr() == [0.1 * 0.5**BEFORE]
    assert_equal([again.step() for _ in range(AFTER)], losses, what="losses")
    assert_equal(tensors(again.model), tensors(run.model))


class InOrder(nn.Module):
    """Two layers of one size, made in either order and called in one."""

    def __init__(self, seed, names):
        super().__init__()
        layers = dict(zip(("first", "second"), network(seed).layers, strict=True))
        for name in names:
            self.add_module(name, layers[name])

    def forward(self, inputs):
        return self.second(torch.tanh(self.first(inputs)))


@contract("CK-2-01")
@each_wrap
def test_state_goes_by_name(engine, world, wrap):
    """A model whose layers were made in another order gets each parameter's own values and optimizer state."""
    with shared_folder(world) as folder:
        models = {}
        for names in (("first", "second"), ("second", "first")):
            model = wrap(engine, world, InOrder(len(models), names).to(world.device))
            models[names[0]] = model, torch.optim.AdamW(model.parameters(), lr=0.1)
        for seed in range(BEFORE):
            step(world, *models["first"], seed)
        engine.save(states(engine, *models["first"]), checkpoint_id=folder)
        restore(engine, folder, *models["second"])
    for seed in range(BEFORE, BEFORE + AFTER):
        assert_equal(step(world, *models["second"], seed), step(world, *models["first"], seed), what="the loss")
    assert_equal(tensors(models["second"][0]), tensors(models["first"][0]))


@contract("CK-2-01")
@each_wrap
def test_hyper_parameters_of_groups(engine, world, wrap):
    """Each group's hyper-parameters come back to the group that has the same parameters."""
    with shared_folder(world) as folder:
        optimizers = {}
        for name, (rates, betas) in {"saved": ((0.1, 0.2), (0.5, 0.6)), "loaded": ((0.3, 0.4), (0.7, 0.8))}.items():
            model = wrap(engine, world, network(0).to(world.device))
            groups = [
                {"params": list(layer.parameters()), "lr": rate, "betas": (beta, 0.9)}
                for layer, rate, beta in zip(model.layers, rates, betas, strict=True)
            ]
            optimizers[name] = model, torch.optim.AdamW(groups)
            step(world, *optimizers[name], seed=0)
        engine.save(states(engine, *optimizers["saved"]), checkpoint_id=folder)
        restore(engine, folder, *optimizers["loaded"])
    for kind in ("lr", "betas", "weight_decay"):
        loaded, saved = ([group[kind] for group in optimizers[name][1].param_groups] for name in ("loaded", "saved"))
        assert loaded == saved


@contract("CK-2-01")
def test_optimizer_and_model_themselves(engine, world):
    """A model, an optimizer and a schedule put into the state dict as they are come back like their state dicts."""
    with shared_folder(world) as folder:
        made = []
        for seed in (0, 1):
            model = network(seed).to(world.device)
            optimizer = torch.optim.AdamW(model.parameters(), lr=0.1 * (seed + 1))
            made.append({"model": model, "optimizer": optimizer})
            for _ in range(BEFORE):
                step(world, model, optimizer, seed)
        saved, loaded = made
        engine.save(dict(saved), checkpoint_id=folder)
        engine.load(dict(loaded), checkpoint_id=folder)
    assert_equal(step(world, *loaded.values(), seed=5), step(world, *saved.values(), seed=5), what="the loss")
    assert_equal(tensors(loaded["model"]), tensors(saved["model"]))
