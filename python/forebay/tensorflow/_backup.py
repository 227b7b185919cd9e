"""A Keras callback that saves a model together with the position of its loader.

tf.data reads ahead, so the position of the loader is not that of the training. The callback counts
the batches that the model was trained on: they come in the order of the loader, from where it was
when ``fit`` began.

A backup is two files. The weights, with those of the optimizer, have the position in their name.
``backup.json`` names them and holds the state; it is replaced last and in one step, so that an
interrupted save leaves the backup before it.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import keras

from forebay._core import FormatError, OptionError, option_error
from forebay.loader import Loader
from forebay.tensorflow._dataset import watch_of

__all__ = ["Backup"]

_FILE = "backup.json"


class Backup(keras.callbacks.Callback):  # type: ignore[misc]
    """Save the model and the exact position of its loader; give it to ``fit``.

    Rank 0 writes. Call :meth:`restore` on every rank before ``fit``, and before
    :func:`forebay.tensorflow.dataset`.

    Parameters
    ----------
    directory : path-like
        Where the backup lies; it is made if it is missing. For several ranks, on storage that all
        of them see.
    loader : Loader
        The loader that the model is trained from.
    save_freq : "epoch" or int, optional
        Save at the end of each epoch of Keras, or also after this many batches. Default "epoch".

    Raises
    ------
    OptionError
        If ``save_freq`` is neither, or ``loader`` is no :class:`forebay.Loader`.
    """

    def __init__(
        self, directory: str | os.PathLike[str], loader: Loader, save_freq: str | int = "epoch"
    ) -> None:
        super().__init__()
        if not isinstance(loader, Loader):
            raise option_error(
                f"forebay.tensorflow.Backup: loader: expected a forebay.Loader, found {loader!r}",
                "make the loader first, and give it to forebay.tensorflow.dataset as well",
            )
        is_number = isinstance(save_freq, int) and not isinstance(save_freq, bool) and save_freq > 0
        if save_freq != "epoch" and not is_number:
            raise option_error(
                f'forebay.tensorflow.Backup: save_freq=: expected "epoch" or a number of batches, found {save_freq!r}'
            )
        self._directory, self._loader, self._save_freq = Path(directory), loader, save_freq
        # Batches of the run before `fit` and before this epoch, so far, and when it was saved.
        self._start = self._before = self._trained = self._saved = 0

    def restore(self, model: Any) -> int:
        """Go to the last backup, if there is one.

        Parameters
        ----------
        model : keras.Model
            The model, built and compiled as the one that was saved.

        Returns
        -------
        int
            Epoch in which the loader now is: ``initial_epoch`` for ``fit``.

        Raises
        ------
        FormatError
            If the backup is damaged.
        OptionError
            If the state does not fit the loader.
        """
        path = self._directory / _FILE
        if not path.exists():
            return self._loader.epoch
        try:
            found = json.loads(path.read_text())
            state, weights = dict(found["state"]), str(found["weights"])
        except (ValueError, KeyError, TypeError) as error:
            raise FormatError(f"{path}: expected a backup of forebay.tensorflow, found {error!r}") from error
        if model.optimizer is not None and not model.optimizer.built:
            # Else its weights are not there to be loaded.
            model.optimizer.build(model.trainable_variables)
        model.load_weights(self._directory / Path(weights).name)
        self._loader.load_state_dict(state)
        epoch, step, _ = self._loader._progress.place
        if step == self._loader._steps:
            self._loader.set_epoch(epoch + 1)
        return self._loader.epoch

    # --- called by Keras ---

    def on_train_begin(self, logs: Any = None) -> None:
        """Note where the loader is."""
        epoch, step, begun = self._loader._progress.place
        # An epoch that has begun, the next iteration leaves.
        self._start = self._steps * (epoch + begun) + step * (not begun)
        self._trained = self._before = self._saved = 0
        watch_of(self._loader).reset()

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Note how many batches the epochs before had."""
        self._before = self._trained

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Count the batches; save after ``save_freq`` of them."""
        self._trained = self._before + batch + 1
        if self._save_freq != "epoch" and self._trained - self._saved >= int(self._save_freq):
            self._save()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Save, if something was trained since."""
        if self._trained > self._saved:
            self._save()

    @property
    def _steps(self) -> int:
        return len(self._loader)

    def _save(self) -> None:
        state = self._loader.state_at(self._position())
        self._saved = self._trained
        if self._loader.world.rank != 0:
            return
        self._directory.mkdir(parents=True, exist_ok=True)
        weights = self._directory / f"epoch-{state['epoch']}-step-{state['step']}.weights.h5"
        self.model.save_weights(weights, overwrite=True)
        new = self._directory / f"{_FILE}.new"
        new.write_text(json.dumps({"state": state, "weights": weights.name}))
        new.replace(self._directory / _FILE)
        for other in self._directory.glob("epoch-*-step-*.weights.h5"):
            if other != weights:
                other.unlink(missing_ok=True)

    def _position(self) -> tuple[int, int]:
        """Return the position of the batch that the model was trained on last."""
        watch = watch_of(self._loader)
        if (broken := watch.broken_off) is not None:
            raise _broken_off(
                f"epoch {broken.epoch} was broken off after step {broken.step} of {self._steps}",
            )
        epoch, step = divmod(self._start + self._trained - 1, self._steps)
        if watch.last is None or (epoch, step) > watch.last:
            raise _broken_off(f"trained on batch {step} of epoch {epoch}, which this loader did not deliver")
        return epoch, step


def _broken_off(found: str) -> OptionError:
    return option_error(
        f"forebay.tensorflow.Backup: expected that the model is trained on each batch of the loader: {found}",
        "give fit the dataset of this loader as it is, without take, skip, filter or batch; "
        "for epochs of another length: dataset(endless=True) with steps_per_epoch=",
    )
