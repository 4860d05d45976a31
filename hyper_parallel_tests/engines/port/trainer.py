"""Port of the trainer: the loop around a model, its configuration, its callbacks, and its state."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn
    from torch.utils.data import Dataset

    from hyper_parallel_tests.engines.port.mesh import DeviceMeshMembers


class TrainerStateMembers(Protocol):
    """How far a run has come."""

    global_step: int
    """Optimizer steps that are done."""
    micro_step: int
    """Micro-batches of the open window that are done: 0 to below ``gradient_accumulation_steps``."""
    should_stop: bool
    """Whether training ends before its last step."""
    log_history: list[dict[str, Any]]
    """Records of ``logging`` since this trainer was made: ``step``, ``loss`` (the mean over ranks and over the steps
    since the last record), ``grad_norm`` (None where nothing is clipped), ``lr`` of each group, ``loss_scale``,
    ``epoch``."""


class CallbackMembers(Protocol):
    """What a trainer calls. Each method gets the trainer's state, and does nothing unless it is overridden."""

    name: str
    """Under which its state is saved; no two of a trainer have the same."""

    def on_train_begin(self, state: TrainerStateMembers) -> None:
        """``train`` begins."""

    def on_train_end(self, state: TrainerStateMembers) -> None:
        """``train`` ends, be it in the middle of a window."""

    def on_substep_end(self, state: TrainerStateMembers) -> None:
        """A micro-batch is done, and its gradients are added and reduced over the ranks."""

    def on_pre_optimizer_step(self, state: TrainerStateMembers, *, grad_norm: float | None) -> None:
        """Gradients are what the optimizer is to read: unscaled, and clipped if that is wanted."""

    def on_step_end(self, state: TrainerStateMembers, *, loss: float, grad_norm: float | None) -> None:
        """A step is done, the scheduler's too. ``loss`` is the mean over the step's rows."""

    def on_log(self, state: TrainerStateMembers, *, metrics: dict[str, Any]) -> None:
        """There is a new record."""

    def on_evaluate(self, state: TrainerStateMembers, *, metrics: dict[str, float]) -> None:
        """A validation is done; ``metrics`` has at least ``loss``."""

    def on_save(self, state: TrainerStateMembers, *, checkpoint_dir: Path) -> None:
        """A checkpoint is complete."""

    def on_load(self, state: TrainerStateMembers, *, checkpoint_dir: Path) -> None:
        """A checkpoint has been restored."""

    def state_dict(self) -> dict[str, Any]:
        """What it needs after a restart: numbers, text, tensors, equal on all ranks."""

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Takes what ``state_dict`` gave. Not called where the saved run had no callback of this name."""


class BaseTrainerMembers(Protocol):
    """A training run. All ranks call its methods together."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    lr_scheduler: Any
    """PyTorch's; None where the learning rate never changes by itself."""
    scaler: Any
    train_dataloader: Any
    callbacks: list[Any]
    state: TrainerStateMembers

    def train(self, *, steps: int | None = None, micro_batches: int | None = None) -> None:
        """Goes on to the last step of the configuration, or for so many steps or micro-batches, whichever comes first.

        A window that is left open goes on at the next call. The first call of a run that was not restored seeds
        Python's, NumPy's and PyTorch's generators, those of data parallel ranks each otherwise.
        """

    def evaluate(self) -> dict[str, float]:
        """Mean loss over the validation rows, each once, a row of a rank at a time, the model in its evaluation mode.

        Neither the mode of any module nor any generator is another one afterwards.

        Raises:
            ValueError: the trainer has no validation rows.
        """

    def state_dict(self) -> dict[str, Any]:
        """Everything that the next step depends on, by flat keys. Tensors are the trainer's own, divided as they are.

        Model, optimizer (state and settings, by the names of parameters), scheduler, loss scale, steps, the open
        window's gradients and loss, which parameters are frozen, place in the data, state of callbacks, generators of
        this rank: Python's, NumPy's, PyTorch's, and the streams of ``rng_tracker``.
        """

    def save_checkpoint(self, folder: Path | str) -> None:
        """Saves ``state_dict`` as a distributed checkpoint; also in the middle of a window."""

    def load_checkpoint(self, folder: Path | str) -> None:
        """Restores what ``save_checkpoint`` saved, the model divided over these ranks in any way, or into stages.

        On as many ranks and the same mesh the next steps are bit for bit those of the saved run. On other ranks, or
        another mesh of as many, generators start anew, with seeds of their own.

        Raises:
            ValueError or CheckpointException: the checkpoint is of another model, optimizer or data.
        """

    def resume(self) -> int | None:
        """Restores the newest complete checkpoint of the callback ``checkpoint``: its step, None if there is none.

        Raises:
            ValueError: the trainer has no such callback, or as ``load_checkpoint``.
        """

    def export(self, folder: Path | str, *, dtype: torch.dtype | None = None) -> None:
        """Saves the model alone as a distributed checkpoint, with the names and values of ``get_model_state_dict``.

        Args:
            dtype: to which floating-point numbers are rounded; None leaves them.
        """


class Trainer(Protocol):
    """Training runs from a configuration."""

    Callback: type[CallbackMembers]
    """Base of callbacks; made with the trainer, which is its ``trainer``."""

    def parse_training_config(self, text: str, overrides: Sequence[str] = ()) -> Any:
        """A configuration from YAML, by the rules of its version 1.2: `yes` is text, `010` is ten, `1e-3` a number.

        Values are attributes of sections: ``config.parallel.tp``. What is not given has its default.

        Args:
            overrides: ``--parallel.tp=2``, with YAML behind the sign; they win over the text, the last over others.

        Raises:
            ValueError: a line for each thing that is wrong, beginning with the path of its key (``parallel.tp: ...``):
                an unknown key, with a near one; another type, with the type that is expected and what is found; a value
                that cannot be; a key that is given twice, with both lines; a merge key; a tag; settings that contradict
                each other. Also for a text that is no YAML, is empty, has several documents or no keys at the top.
        """

    def parse_training_args(self, argv: Sequence[str]) -> Any:
        """The same from a file: its path, then overrides.

        Raises:
            ValueError: the file cannot be read, or as above.
        """

    def dump_training_config(self, config: Any) -> str:
        """YAML with every setting, which ``parse_training_config`` makes an equal configuration of."""

    def training_config_reference(self) -> dict[str, tuple[str, Any, str]]:
        """For the path of each setting, in order: what it takes, its default, and a sentence on what it means."""

    def check_parallel_degrees(
        self,
        config: Any,
        world_size: int,
        *,
        heads: int | None = None,
        kv_heads: int | None = None,
        layers: int | None = None,
        experts: int | None = None,
        sequence: int | None = None,
    ) -> dict[str, int]:
        """The degrees of ``parallel`` by name, with what is left of the world in the place of a -1.

        Args:
            heads, kv_heads: of the model; tp divides both.
            layers: pp needs one a stage.
            experts: ep divides them.
            sequence: its length, which cp divides.

        Raises:
            ValueError: begins with the path of the degree that cannot be, or of ``training.global_batch_size`` where
                its rows do not divide among the ranks that have rows of their own and their micro-batches.
        """

    def BaseTrainer(
        self,
        config: Any,
        model: nn.Module,
        loss_fn: Callable[[nn.Module, Any], Tensor],
        dataset: Dataset[Any],
        *,
        mesh: DeviceMeshMembers | None = None,
        optimizer: torch.optim.Optimizer | None = None,
        validation_dataset: Dataset[Any] | None = None,
        forward_backward: Callable[[nn.Module, Any, float], Tensor] | None = None,
        rng_tracker: Any = None,
        callbacks: Sequence[Callable[[Any], CallbackMembers]] = (),
    ) -> BaseTrainerMembers:
        """A run of a model that is on its device and divided already.

        Gradients are reduced in each micro-batch, so that those of an open window are state like any other.

        Args:
            config: of ``parse_training_config``.
            loss_fn: the mean loss of a batch, from model and batch.
            dataset: of rows, see ``StatefulDataLoader``.
            mesh: with the names of ``parallel``: ranks along dp, fsdp and ep have rows of their own. None for one rank,
                or ranks that all have the same rows.
            optimizer: in the place of the configuration's.
            validation_dataset: what the callback ``validation`` evaluates.
            forward_backward: in the place of ``loss_fn`` in training, as for pipelines: runs forward and backward of a
                batch for a share of its loss, and gives the whole loss, on every rank.
            rng_tracker: an ``RNGStatesTracker`` whose streams belong to the run.
            callbacks: more of them, which come before those of the configuration.

        Raises:
            ValueError: see ``check_parallel_degrees``; or there is nothing to validate.
        """
