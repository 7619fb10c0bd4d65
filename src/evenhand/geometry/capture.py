"""Capture: the Gram matrix of the rollouts' gradients, exactly, from one backward pass.

The pooled loss is a sum over rollouts and a rollout's tokens touch no other rollout's, so one pass
gives every layer's inputs and output gradients for all of them, and these are factors of each
rollout's own gradient (Goodfellow 2015, arXiv 1510.01799; the inner products of "Data Shapley in
one training run", arXiv 2406.11011). The pass stops at the layers' outputs: no pooled
parameter gradient is made, which pays for most of what the features cost.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from evenhand.errors import EvenhandError
from evenhand.geometry.factors import Factors, Matrix, cheaper
from evenhand.geometry.projection import Projection

HEAD = "head"
"""Name of the output embedding's own matrix, apart from what it may be tied to."""


class Capture:
    """Listens to a model's layers; `add` takes a micro-batch's loss, `gram` gives the result.

        with Capture(model, lengths_N) as capture:
            for each micro-batch:
                loss = ...                    # a sum over rows; rows are the first axis
                capture.add(loss, owner_B, flat_N)
        gram_NN = capture.gram()

    Every trained parameter counts: of linear layers (LoRA's among them), embeddings, and any other
    layer by its own vector-Jacobian product (norms, biases). Padding adds nothing, and several rows
    may belong to one rollout.
    """

    def __init__(
        self,
        model: Any,
        lengths_N: Sequence[int],
        *,
        all_parameters: bool = True,
        head: bool = False,
        projection: Projection | None = None,
    ) -> None:
        """Begin with nothing.

        Args:
            model: a Hugging Face causal language model, with or without adapters.
            lengths_N: positions of each of the N rollouts, to choose the cheaper form by.
            all_parameters: collect every parameter that requires a gradient.
            head: collect the output embedding's use alone, trained or not, as `gram(HEAD)`.
            projection: random features in place of exact ones.

        Raises EvenhandError where a trained parameter belongs to no layer of its own.
        """
        self._lengths, self._projection = list(lengths_N), projection
        self._matrices: dict[str, Matrix] = {}
        self._calls: list[tuple[nn.Module, Tensor, Tensor]] = []
        self._handles: list[Any] = []
        self._names = {
            id(p): name
            for name, p in model.named_parameters()
            if p.requires_grad and all_parameters
        }
        self._head = model.get_output_embeddings() if head else None
        owned: set[int] = set()
        self._modules: list[nn.Module] = []
        for module in model.modules():
            own = [p for p in module.parameters(recurse=False) if id(p) in self._names]
            if own or module is self._head:
                owned |= {id(p) for p in own}
                self._modules.append(module)
        homeless = [name for key, name in self._names.items() if key not in owned]
        if homeless:
            raise EvenhandError(f"no layer holds the trained parameter {homeless[0]}")

    def __enter__(self) -> Capture:
        self._handles = [m.register_forward_hook(self._note) for m in self._modules]
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for handle in self._handles:
            handle.remove()
        self._calls.clear()

    def _note(self, module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        if isinstance(output, Tensor) and output.requires_grad:
            self._calls.append((module, inputs[0].detach(), output))

    def add(self, total: Tensor, owner_B: Sequence[int], flat_N: Tensor | None = None) -> None:
        """Take in one micro-batch, whose forward was the last thing this model did.

        Args:
            total: scalar; its part of rollout i is the loss whose gradient is meant.
            owner_B: the rollout of every row of the layers' inputs.
            flat_N: the row (0 to B - 1, in order) of each of the N positions that a layer saw
                without a batch axis, as the head does where logits are wanted at few positions.
        """
        calls, self._calls = self._calls, []
        grads = torch.autograd.grad(total, [output for _, _, output in calls], allow_unused=True)
        owners = [int(owner) for owner in owner_B]
        uses: dict[str, list[Factors]] = {}
        with torch.no_grad():
            for (module, inputs, _), grad in zip(calls, grads, strict=True):
                if grad is not None:
                    self._take(module, *_by_row(inputs, grad, len(owners), flat_N), owners, uses)
            for name, several in uses.items():
                self._matrices[name].add(several, owners)

    def _take(
        self,
        module: nn.Module,
        inputs: Tensor,
        grad: Tensor,
        owners: list[int],
        uses: dict[str, list[Factors]],
    ) -> None:
        """What one call of a layer says of its parameters: factors into `uses`, or gradients."""
        weight = module._parameters.get("weight")
        names = {
            key: self._names[id(p)]
            for key, p in module.named_parameters(recurse=False)
            if id(p) in self._names
        }
        if type(module) is nn.Linear:
            use = Factors(_three(grad), _three(inputs))
        elif type(module) is nn.Embedding:
            right = _three(grad)
            if module.padding_idx is not None:  # torch keeps that row's gradient at zero
                right = right * (inputs != module.padding_idx).unsqueeze(-1)
            use = Factors(inputs, right)
        else:
            self._take_any(module, inputs, grad, owners, names)
            return
        assert weight is not None
        if "weight" in names:
            self._use(names["weight"], weight.shape, use, uses)
        if module is self._head:
            self._use(HEAD, weight.shape, use, uses)
        if "bias" in names:
            ones = inputs.new_ones(*use.left.shape[:2], 1)
            self._use(names["bias"], (weight.shape[0], 1), Factors(use.left, ones), uses)

    def _use(
        self, name: str, shape: Sequence[int], use: Factors, uses: dict[str, list[Factors]]
    ) -> None:
        height, width = shape
        if self._projection is not None:
            use = self._projection.project(name, use, height)
            height = use.left.shape[-1] if use.left.is_floating_point() else height
            width = use.right_BTR.shape[-1]
        if name not in self._matrices:
            form = cheaper(self._lengths, height, width)
            self._matrices[name] = Matrix(height, width, len(self._lengths), form)
        uses.setdefault(name, []).append(use)

    def _take_any(
        self,
        module: nn.Module,
        inputs: Tensor,
        grad: Tensor,
        owners: list[int],
        names: dict[str, str],
    ) -> None:
        """A layer of any other kind: its own vector-Jacobian product, row by row."""
        if module is self._head:
            raise EvenhandError(f"head features are of a plain linear head, not {type(module)}")
        trained = {
            key: p.detach() for key, p in module.named_parameters(recurse=False) if key in names
        }

        def pull(row: Tensor, grad_row: Tensor) -> dict[str, Tensor]:
            def run(weights: dict[str, Tensor]) -> Tensor:
                out: Tensor = torch.func.functional_call(module, weights, (row.unsqueeze(0),))
                return out

            back = torch.func.vjp(run, trained)[1]
            (found,) = back(grad_row.unsqueeze(0))
            return dict(found)

        with torch.enable_grad():
            found = torch.func.vmap(pull)(inputs, grad)
        for key, value in found.items():
            name = names[key]
            if name not in self._matrices:
                self._matrices[name] = Matrix(value[0].numel(), 1, len(self._lengths), "gradients")
            self._matrices[name].add_gradients(value.detach().flatten(1), owners)

    def gram(self, name: str | None = None) -> NDArray[np.float64]:
        """gram_NN: inner products over all parameters, or over one (`HEAD`, or its own name).

        Zero where nothing was added: a rollout without a learned token has no gradient.
        """
        count = len(self._lengths)
        chosen = [
            matrix
            for key, matrix in self._matrices.items()
            if (key == name if name is not None else key != HEAD)
        ]
        out_NN = torch.zeros(count, count, dtype=torch.float64)
        for matrix in chosen:
            out_NN += matrix.gram()
        result: NDArray[np.float64] = out_NN.numpy()
        return result

    @property
    def forms(self) -> dict[str, str]:
        """The form that was chosen for each parameter."""
        return {name: matrix.form for name, matrix in self._matrices.items()}


def _three(values: Tensor) -> Tensor:
    """(B, T, ...) with all position axes in one."""
    return values if values.dim() == 3 else values.flatten(1, -2)


def _by_row(
    inputs: Tensor, grad: Tensor, rows: int, flat_N: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Give what a layer saw without a batch axis one again, padded with zeros."""
    if grad.dim() > 2:
        if grad.shape[0] == rows:
            return inputs, grad
    elif flat_N is not None and grad.shape[0] == len(flat_N):
        counts = torch.bincount(flat_N, minlength=rows).tolist()
        return (
            nn.utils.rnn.pad_sequence(list(torch.split(inputs, counts)), batch_first=True),
            nn.utils.rnn.pad_sequence(list(torch.split(grad, counts)), batch_first=True),
        )
    raise EvenhandError(
        f"a layer saw {tuple(inputs.shape)}, which is neither {rows} rows nor the positions given:"
        " its gradient cannot be told apart by rollout; freeze it"
    )
