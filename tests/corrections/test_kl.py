"""KL penalties as losses: their gradients on a small categorical, and averages that nothing hidden can reach."""

import numpy as np
import pytest

from samepolicy.errors import InputError, ShapeError
from samepolicy.kl import AVERAGES, KINDS, average_loss, kl_penalty, kl_values
from tests.oracles.correction_batches import correction_batch


def expected_gradient(kind):
    """Gradient by the logits of the penalty's mean over tokens drawn from the policy: a sum over the vocabulary.

    The sampling is not differentiated, as in training.
    """
    import torch

    rng = np.random.default_rng(0)
    logits = torch.tensor(rng.standard_normal(7), requires_grad=True)
    reference = torch.log_softmax(torch.tensor(rng.standard_normal(7)), -1)
    current = torch.log_softmax(logits, -1)
    (current.exp().detach() * kl_values(current=current, reference=reference, kind=kind)).sum().backward()
    return logits.grad.numpy(), logits.detach(), reference


def kl_gradient(logits, reference, *, reverse):
    """Gradient by the logits of the exact KL, by autograd through the full distribution."""
    import torch

    logits = logits.clone().requires_grad_()
    current = torch.log_softmax(logits, -1)
    first, second = (current, reference) if reverse else (reference, current)
    (first.exp() * (first - second)).sum().backward()
    return logits.grad.numpy()


@pytest.mark.full
def test_the_expected_gradient_of_k1_is_zero():
    np.testing.assert_allclose(expected_gradient("k1")[0], 0, atol=1e-14)


@pytest.mark.full
@pytest.mark.parametrize("kind", ["k2", "k1+", "k3+"])
def test_k2_and_the_straight_through_ones_have_the_gradient_of_the_reverse_kl(kind):
    found, logits, reference = expected_gradient(kind)
    p = np.exp(logits.numpy() - np.log(np.exp(logits.numpy()).sum()))
    d = np.log(p) - reference.numpy()
    np.testing.assert_allclose(found, p * (d - (p * d).sum()), rtol=1e-10)  # closed form
    np.testing.assert_allclose(found, kl_gradient(logits, reference, reverse=True), rtol=1e-10)


@pytest.mark.full
def test_k3_has_the_gradient_of_the_forward_kl():
    found, logits, reference = expected_gradient("k3")
    np.testing.assert_allclose(found, kl_gradient(logits, reference, reverse=False), rtol=1e-10)


@pytest.mark.full
@pytest.mark.parametrize("average", AVERAGES)
@pytest.mark.parametrize("kind", KINDS)
def test_torch_gives_numpys_numbers_and_what_the_mask_hides_has_no_gradient(kind, average):
    import torch

    data = correction_batch(1, junk=np.nan)
    t = {n: torch.from_numpy(x) for n, x in data.items()}
    t["trainer"].requires_grad_()
    found = kl_penalty(current=t["trainer"], reference=t["rollout"], mask=t["mask"], kind=kind, average=average)
    plain = kl_penalty(
        current=data["trainer"], reference=data["rollout"], mask=data["mask"], kind=kind, average=average
    )
    assert found.item() == pytest.approx(float(plain), rel=1e-12)
    found.backward()
    gradient = t["trainer"].grad
    assert (gradient[~t["mask"]] == 0).all()
    assert torch.isfinite(gradient).all()


@pytest.mark.parametrize("kind", KINDS)
def test_a_policy_that_is_its_reference_pays_nothing(kind):
    logp = np.log([[0.5, 0.1]])
    assert kl_penalty(current=logp, reference=logp, mask=np.ones((1, 2)), kind=kind) == 0


@pytest.mark.parametrize("average", AVERAGES)
@pytest.mark.parametrize("library", ["numpy", pytest.param("torch", marks=pytest.mark.full)])
def test_packed_and_padded_average_alike_and_an_empty_mask_has_none(average, library):
    data = correction_batch(2)
    values, mask = data["trainer"], data["mask"]
    rows, time = mask.shape
    flat, flags = values.reshape(-1), mask.reshape(-1)
    if library == "torch":
        import torch

        flat, flags = torch.from_numpy(flat), torch.from_numpy(flags)
    offsets = np.arange(rows + 1) * time
    found = average_loss(flat, flags, average, offsets=offsets, horizon=time)
    assert float(found) == pytest.approx(float(average_loss(values, mask, average)), rel=1e-12)
    assert np.isnan(float(average_loss(flat, flags & False, average, offsets=offsets, horizon=time)))


def test_bad_input_is_one_sentence():
    logp = np.zeros((2, 3))
    with pytest.raises(ShapeError, match="same shape"):
        kl_penalty(current=logp, reference=logp[:, :1], mask=np.ones((2, 3)))
    with pytest.raises(InputError, match="horizon"):
        average_loss(np.zeros(3), np.ones(3), "seq-mean-token-sum-norm", offsets=np.array([0, 3]))
