"""Every objective against a reference in NumPy, in value and in gradient, and with values by hand."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from training import objectives
from training.objectives import Distance, Feature, Matryoshka, Similarity

Floats = NDArray[np.float64]
Reference = Callable[[Sequence[Floats], Floats], float]

ROWS, DIM, LABELS = 5, 6, 3
SCORES = np.array([0.2, 0.9, 0.9, 0.0, 0.5])  # a tie among them
CLASSES = np.array([0, 2, 1, 1, 0])
ALL_FEATURES = [
    ("u", "v"),
    ("|u-v|",),
    ("u*v",),
    ("|u-v|", "u*v"),
    ("u", "v", "u*v"),
    ("u", "v", "|u-v|"),
    ("u", "v", "|u-v|", "u*v"),
]


def unit(x: Floats) -> Floats:
    return x / np.sqrt((x**2).sum(axis=1, keepdims=True))


def cosines(u: Floats, v: Floats) -> Floats:
    return (unit(u) * unit(v)).sum(axis=1)


def log_softmax_at(row: Floats, place: int) -> float:
    return float(row[place] - row.max() - np.log(np.exp(row - row.max()).sum()))


def np_classification(weight: Floats, features: Sequence[str]) -> Reference:
    def loss(views: Sequence[Floats], targets: Floats) -> float:
        u, v = views
        parts = {"u": u, "v": v, "|u-v|": np.abs(u - v), "u*v": u * v}
        logits = np.concatenate([parts[name] for name in features], axis=1) @ weight.T
        return -float(np.mean([log_softmax_at(row, int(t)) for row, t in zip(logits, targets, strict=True)]))

    return loss


def np_regression(views: Sequence[Floats], targets: Floats) -> float:
    return float(np.mean((cosines(*views) - targets) ** 2))


def np_triplet(distance: str, margin: float) -> Reference:
    apart = {
        "euclidean": lambda a, b: np.sqrt(((a - b) ** 2).sum(axis=1)),
        "cosine": lambda a, b: 1 - cosines(a, b),
        "manhattan": lambda a, b: np.abs(a - b).sum(axis=1),
    }[distance]

    def loss(views: Sequence[Floats], _: Floats) -> float:
        anchor, positive, negative = views
        return float(np.mean(np.maximum(apart(anchor, positive) - apart(anchor, negative) + margin, 0)))

    return loss


def np_contrastive(similarity: str, temperature: float, weight: float) -> Reference:
    def loss(views: Sequence[Floats], _: Floats) -> float:
        anchors, positives, *negatives = [unit(view) if similarity == "cosine" else view for view in views]
        total = 0.0
        for i, anchor in enumerate(anchors):
            below = sum(np.exp(anchor @ positives[j] / temperature) for j in range(len(anchors)))
            for column in negatives:
                for j, negative in enumerate(column):
                    below += (weight if i == j else 1.0) * np.exp(anchor @ negative / temperature)
            total -= np.log(np.exp(anchor @ positives[i] / temperature) / below)
        return float(total / len(anchors))

    return loss


def np_rank(score: Callable[[Floats, Floats], Floats], scale: float) -> Reference:
    def loss(views: Sequence[Floats], targets: Floats) -> float:
        scores = score(*views) * scale
        pairs = itertools.permutations(range(len(scores)), 2)
        return float(np.log(1 + sum(np.exp(scores[j] - scores[i]) for i, j in pairs if targets[i] > targets[j])))

    return loss


def np_angle(u: Floats, v: Floats) -> Floats:
    """|real + imaginary part| of the quotient of two vectors of complex numbers, each of length one."""
    half = u.shape[1] // 2
    first, second = (unit(x)[:, :half] + 1j * unit(x)[:, half:] for x in (u, v))
    product = (first * second.conj()).sum(axis=1)
    return np.abs(product.real + product.imag)


def np_gradients(loss: Reference, views: Sequence[Floats], targets: Floats) -> list[Floats]:
    """Central differences: nothing in common with what autograd does."""
    step, gradients = 1e-6, []
    for view in views:
        gradient = np.zeros_like(view)
        for place in np.ndindex(*view.shape):
            held = view[place]
            view[place] = held + step
            above = loss(views, targets)
            view[place] = held - step
            gradient[place] = (above - loss(views, targets)) / (2 * step)
            view[place] = held
        gradients.append(gradient)
    return gradients


WEIGHTS = np.random.default_rng(7).normal(size=(LABELS, 4 * DIM))


def classification(features: Sequence[str], dim: int = DIM) -> objectives.Classification:
    made = objectives.Classification(dim, LABELS, [Feature(name) for name in features]).double()
    made.weight.weight.data = torch.from_numpy(WEIGHTS[:, : dim * len(features)].copy())
    return made


def no_targets(function: Callable[..., torch.Tensor], **settings: object) -> objectives.Objective:
    return lambda views, _: function(views, **settings)


CASES: dict[str, tuple[int, Floats, objectives.Objective, Reference]] = {
    **{
        f"classification {' '.join(f)}": (
            2,
            CLASSES,
            classification(f),
            np_classification(WEIGHTS[:, : DIM * len(f)], f),
        )
        for f in ALL_FEATURES
    },
    "regression": (2, SCORES, objectives.regression, np_regression),
    **{
        f"triplet {d.value} m={m}": (
            3,
            SCORES,
            no_targets(objectives.triplet, distance=d, margin=m),
            np_triplet(d.value, m),
        )
        for d, m in [(Distance.EUCLIDEAN, 1.0), (Distance.COSINE, 0.5), (Distance.MANHATTAN, 4.0)]
    },
    **{
        f"contrastive {s.value} {views} views t={t} a={a}": (
            views,
            SCORES,
            no_targets(objectives.contrastive, similarity=s, temperature=t, hard_negative_weight=a),
            np_contrastive(s.value, t, a),
        )
        for s, views, t, a in [
            (Similarity.COSINE, 2, 0.05, 1.0),
            (Similarity.DOT, 2, 1.0, 1.0),
            (Similarity.COSINE, 3, 0.05, 1.0),
            (Similarity.COSINE, 3, 0.2, 2.0),
            (Similarity.DOT, 4, 0.5, 0.5),
        ]
    },
    "cosent": (2, SCORES, partial(objectives.cosent, scale=5.0), np_rank(cosines, 5.0)),
    "angle": (2, SCORES, partial(objectives.angle, scale=5.0), np_rank(np_angle, 5.0)),
    "matryoshka": (
        2,
        SCORES,
        Matryoshka(objectives.regression, [6, 4, 2]),
        lambda views, targets: sum(np_regression([view[:, :dim] for view in views], targets) for dim in (6, 4, 2)),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_value_and_gradient(name: str) -> None:
    count, targets, objective, reference = CASES[name]
    draw = np.random.default_rng(3)
    views = [draw.normal(size=(ROWS, DIM)) for _ in range(count)]
    tensors = [torch.from_numpy(view.copy()).requires_grad_() for view in views]
    loss = objective(tensors, torch.from_numpy(targets))
    loss.backward()
    assert loss.item() == pytest.approx(reference(views, targets), rel=1e-9)
    for tensor, gradient in zip(tensors, np_gradients(reference, views, targets), strict=True):
        assert tensor.grad is not None
        np.testing.assert_allclose(tensor.grad.numpy(), gradient, atol=2e-7, rtol=1e-5)
        assert np.abs(gradient).max() > 1e-4, "this case tests nothing"


def test_the_classifier_learns_by_its_own_gradient() -> None:
    made = classification(("u", "v"))
    views = [torch.from_numpy(np.random.default_rng(row).normal(size=(ROWS, DIM))) for row in range(2)]
    made(views, torch.from_numpy(CLASSES)).backward()
    arrays, step = [view.numpy() for view in views], 1e-6
    weight = WEIGHTS[:, : 2 * DIM].copy()
    for place in ((0, 0), (2, 7)):
        changed = [weight.copy(), weight.copy()]
        changed[0][place] += step
        changed[1][place] -= step
        above, below = (np_classification(one, ("u", "v"))(arrays, CLASSES) for one in changed)
        assert made.weight.weight.grad is not None
        assert made.weight.weight.grad[place].item() == pytest.approx((above - below) / (2 * step), rel=1e-5)


def test_by_hand() -> None:
    """Two orthogonal unit vectors, where every figure can be written down."""
    eye = torch.eye(2, dtype=torch.float64)
    swapped = eye.flip(0)
    assert objectives.contrastive([eye, eye], temperature=1.0).item() == pytest.approx(np.log(1 + np.exp(-1)))
    hard = objectives.contrastive([eye, eye, eye], temperature=1.0, hard_negative_weight=2.0)
    assert hard.item() == pytest.approx(np.log(np.e + 1 + 2 * np.e + 1) - 1)
    assert objectives.triplet([eye, eye, swapped]).item() == 0  # sqrt(2) apart is more than the margin
    assert objectives.triplet([eye, swapped, eye]).item() == pytest.approx(np.sqrt(2) + 1)
    assert objectives.regression([eye, swapped], torch.tensor([0.0, 1.0])).item() == pytest.approx(0.5)
    assert objectives.cosent([eye, eye], torch.tensor([1.0, 1.0])).item() == 0  # nothing to rank


def test_equal_vectors_have_finite_gradients() -> None:
    """Distance 0 has no direction; the gradient there must be 0, not nan."""
    for distance in Distance:
        views = [torch.ones(2, 4, requires_grad=True) for _ in range(3)]
        objectives.triplet(views, distance=distance).backward()
        assert all(view.grad is not None and torch.isfinite(view.grad).all() for view in views)


def test_an_odd_width_has_an_angle() -> None:
    views = [torch.from_numpy(np.random.default_rng(row).normal(size=(3, 5))) for row in range(2)]
    padded = [torch.nn.functional.pad(view, (0, 1)) for view in views]
    targets = torch.tensor([0.0, 0.5, 1.0])
    assert objectives.angle(views, targets).item() == pytest.approx(objectives.angle(padded, targets).item())
