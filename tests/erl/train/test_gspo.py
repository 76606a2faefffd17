"""The policy loss against numbers worked out by hand. exp(0.2) = 1.221403, exp(-0.1) = 0.904837, exp(0.3) = 1.349859."""

import math

import pytest

torch = pytest.importorskip("torch")

from openmle_erl.rl.gspo import PolicyLoss, add_sums, policy_loss, policy_metrics  # noqa: E402
from openmle_erl.rl.objective import ObjectiveConfig, grpo_clip_higher  # noqa: E402
from openmle_gym.errors import ConfigError  # noqa: E402

NAN = math.nan
OLD = [[-1.0, -2.0, 0.0], [-0.5, -1.5, -1.0]]
CHANGE = [[0.3, 0.1, 0.0], [-0.3, 0.0, 0.0]]
"""new - old; the first reply has two tokens, so its mean is 0.2, the second's is -0.1."""
MASK = [[True, True, False], [True, True, True]]
WIDE = ObjectiveConfig(clip_low=0.1, clip_high=0.1)


def loss_of(
    settings: ObjectiveConfig,
    advantages: list[float],
    *,
    change: list[list[float]] = CHANGE,
    rollout: list[list[float]] = OLD,
    global_batch: int = 4,
    reference: list[list[float]] | None = None,
    entropy: list[list[float]] | None = None,
) -> PolicyLoss:
    old = torch.tensor(OLD, dtype=torch.float64)
    return policy_loss(
        old + torch.tensor(change, dtype=torch.float64),
        old,
        torch.tensor(rollout, dtype=torch.float64),
        torch.tensor(MASK),
        torch.tensor(advantages, dtype=torch.float64),
        settings,
        global_batch=global_batch,
        ref_logprobs_BT=None if reference is None else torch.tensor(reference, dtype=torch.float64),
        entropy_BT=None if entropy is None else torch.tensor(entropy, dtype=torch.float64),
    )


def test_gspo_clips_the_ratio_of_a_whole_reply_and_divides_by_the_global_batch() -> None:
    # reply 1: min(1.221403, 1.1) * 2 = 2.2; reply 2: 0.904837 is within the clip; (-2.2 - 0.904837) / 4
    # A token's ratio instead: reply 1 -2.2, reply 2 -(0.740818 + 2) / 3 = -0.913606. A sum instead of a mean: exp(-0.3).
    assert loss_of(WIDE, [2.0, 1.0]).loss.item() == pytest.approx(-0.776209, abs=1e-6)


def test_a_negative_advantage_is_clipped_from_below_only() -> None:
    # reply 1: a ratio of 1.221403 with A = -2 is not clipped: +2.442806; reply 2: A = -3, 0.904837 is inside.
    found = loss_of(WIDE, [-2.0, -3.0])
    assert found.loss.item() == pytest.approx((2.442806 + 2.714512) / 4, abs=1e-6)
    # reply 2 with a mean of -0.2 (ratio 0.818731) is held at 0.9: +2.7
    found = loss_of(WIDE, [-2.0, -3.0], change=[[0.3, 0.1, 0.0], [-0.3, -0.3, 0.0]])
    assert found.loss.item() == pytest.approx((2.442806 + 2.7) / 4, abs=1e-6)
    assert policy_metrics(found.sums)["clip_fraction"] == 0.5


def test_the_two_ends_of_the_clip_are_their_own() -> None:
    lopsided = ObjectiveConfig(clip_low=0.05, clip_high=0.5)
    # reply 1: 1.221403 is below 1.5; reply 2: A = -1, 0.904837 is held at 0.95
    assert loss_of(lopsided, [2.0, -1.0]).loss.item() == pytest.approx((-2.442806 + 0.95) / 4, abs=1e-6)


def test_grpo_takes_a_ratio_for_each_token() -> None:
    # reply 1: exp(.3) held at 1.28, exp(.1) = 1.105171, mean 1.192585, times 2; reply 2: (0.740818 + 1 + 1) / 3
    assert loss_of(grpo_clip_higher(), [2.0, 1.0]).loss.item() == pytest.approx(
        (-2.0 * 1.192585 - 0.913606) / 4, abs=1e-6
    )


def test_the_weight_for_the_rollout_engine_is_each_token_s_own_and_capped() -> None:
    # reply 1: old - rollout = ln 4 and ln 0.5, so weights min(4, 2) and 0.5, mean 1.25; reply 2: weights 1
    rollout = [[-1.0 - math.log(4), -2.0 + math.log(2), NAN], OLD[1]]
    found = loss_of(WIDE, [2.0, 1.0], rollout=rollout)
    assert found.loss.item() == pytest.approx((-2.2 * 1.25 - 0.904837) / 4, abs=1e-6)
    metrics = policy_metrics(found.sums)
    assert metrics["tis_clip_fraction"] == pytest.approx(0.25)
    assert metrics["tis_mean"] == pytest.approx((1.25 + 1.0) / 2)
    without = loss_of(ObjectiveConfig(clip_low=0.1, clip_high=0.1, tis_cap=None), [2.0, 1.0], rollout=rollout)
    assert without.loss.item() == pytest.approx(-0.776209, abs=1e-6)


def test_the_divergence_from_the_reference_and_the_entropy_enter_by_their_coefficients() -> None:
    # reference - new = (-0.3, -0.1) and (0.3, 0, 0): k3 = .040818, .004837 (mean .022828); .049859 / 3 = .016620
    settings = ObjectiveConfig(clip_low=0.1, clip_high=0.1, kl_coefficient=0.5, entropy_coefficient=0.1)
    found = loss_of(settings, [2.0, 1.0], reference=OLD, entropy=[[1.0, 3.0, NAN], [0.0, 0.0, 3.0]])
    assert found.loss.item() == pytest.approx(
        -0.776209 + (0.5 * (0.022828 + 0.016620) - 0.1 * (2.0 + 1.0)) / 4, abs=1e-6
    )
    assert policy_metrics(found.sums)["entropy"] == pytest.approx(1.5)
    with pytest.raises(ValueError, match="no reference"):
        loss_of(settings, [2.0, 1.0], entropy=OLD)
    with pytest.raises(ValueError, match="no entropy"):
        loss_of(settings, [2.0, 1.0], reference=OLD)


@pytest.mark.parametrize("kind", ["gspo", "grpo"])
def test_the_gradient_is_that_of_the_plain_formula_written_reply_by_reply(kind: str) -> None:
    torch.manual_seed(3)
    lengths = [4, 1, 6, 3]
    settings = ObjectiveConfig(kind=kind, clip_low=0.03, clip_high=0.05, kl_coefficient=0.2, entropy_coefficient=0.1)
    logits = torch.randn(4, 6, 5, dtype=torch.float64, requires_grad=True)
    chosen = torch.randint(5, (4, 6))
    old, rollout, reference = (torch.randn(4, 6, dtype=torch.float64) * 0.05 - 1.6 for _ in range(3))
    advantages = torch.tensor([1.0, -2.0, 0.5, -0.1], dtype=torch.float64)
    mask = torch.arange(6)[None] < torch.tensor(lengths)[:, None]

    def quantities() -> tuple["torch.Tensor", "torch.Tensor"]:
        scaled = (logits * 0.1).log_softmax(-1)
        return scaled.gather(-1, chosen[..., None])[..., 0], -(scaled.exp() * scaled).sum(-1)

    new, entropy = quantities()
    ours = policy_loss(
        new, old, rollout, mask, advantages, settings, global_batch=8, ref_logprobs_BT=reference, entropy_BT=entropy
    ).loss
    found = torch.autograd.grad(ours, logits)[0]

    new, entropy = quantities()
    plain = torch.zeros((), dtype=torch.float64)
    for b, n in enumerate(lengths):
        total = torch.zeros((), dtype=torch.float64)
        for t in range(n):
            ratio = torch.exp(new[b, t] - old[b, t])
            if kind == "gspo":
                ratio = torch.prod(torch.exp(new[b, :n] - old[b, :n])) ** (1 / n)
            gain = torch.minimum(advantages[b] * ratio, advantages[b] * torch.clip(ratio, 0.97, 1.05))
            total -= gain * min(math.exp(old[b, t] - rollout[b, t]), 2.0)
            total += 0.2 * (torch.exp(reference[b, t] - new[b, t]) - (reference[b, t] - new[b, t]) - 1)
            total -= 0.1 * entropy[b, t]
        plain = plain + total / n
    assert ours.item() == pytest.approx(plain.item() / 8, abs=1e-12)
    torch.testing.assert_close(found, torch.autograd.grad(plain / 8, logits)[0], rtol=0, atol=1e-12)


def test_masked_tokens_have_no_gradient_whatever_stands_there() -> None:
    new = torch.tensor([[-1.0, NAN, -2.0]], requires_grad=True)
    rest = torch.tensor([[-1.1, math.inf, -2.0]])
    settings = ObjectiveConfig(clip_low=0.5, clip_high=0.5, kl_coefficient=0.1, entropy_coefficient=0.1)
    mask = torch.tensor([[True, False, True]])
    loss = policy_loss(
        new, rest, rest, mask, torch.tensor([1.0]), settings, global_batch=1, ref_logprobs_BT=rest, entropy_BT=rest
    ).loss
    gradient = torch.autograd.grad(loss, new)[0]
    assert gradient[0, 1] == 0.0
    assert gradient[0, 0] < 0.0
    assert gradient[0, 2] < 0.0


def test_a_clipped_reply_has_no_gradient_and_one_moved_the_wrong_way_has_all_of_it() -> None:
    for change, advantage, live in ((0.3, 1.0, False), (-0.3, 1.0, True), (0.3, -1.0, True), (-0.3, -1.0, False)):
        old = torch.tensor([[-1.0, -1.0]])
        new = (old + change).requires_grad_()
        loss = policy_loss(
            new, old, old, torch.ones(1, 2, dtype=torch.bool), torch.tensor([advantage]), WIDE, global_batch=1
        ).loss
        gradient = torch.autograd.grad(loss, new)[0]
        assert bool((gradient != 0).all()) is live, (change, advantage)


def test_micro_batches_add_up_to_the_step_s_loss_and_diagnostics() -> None:
    whole = loss_of(WIDE, [2.0, 1.0])
    old = torch.tensor(OLD, dtype=torch.float64)
    new = old + torch.tensor(CHANGE, dtype=torch.float64)
    parts = [
        policy_loss(
            new[b : b + 1],
            old[b : b + 1],
            old[b : b + 1],
            torch.tensor(MASK)[b : b + 1],
            torch.tensor([[2.0, 1.0][b]], dtype=torch.float64),
            WIDE,
            global_batch=4,
        )
        for b in range(2)
    ]
    assert sum(part.loss.item() for part in parts) == pytest.approx(whole.loss.item(), abs=1e-12)
    metrics = policy_metrics(whole.sums)
    assert policy_metrics(add_sums(part.sums for part in parts)) == pytest.approx(metrics)
    assert metrics["ratio_mean"] == pytest.approx((1.221403 + 0.904837) / 2, abs=1e-6)
    assert metrics["ratio_std"] == pytest.approx((1.221403 - 0.904837) / 2, abs=1e-5)
    assert metrics["log_ratio_max"] == pytest.approx(0.2)
    assert metrics["clip_fraction"] == 0.5
    assert metrics["tokens"] == 5
    # k3 of (0.3, 0.1): .049859, .005171; of (-0.3, 0, 0): .040818
    assert metrics["kl"] == pytest.approx(((0.049859 + 0.005171) / 2 + 0.040818 / 3) / 2, abs=1e-6)
    # weights exp(new - rollout): 1.349859, 1.105171, 0.740818, 1, 1; sum 5.195848, of squares 5.592332
    assert metrics["effective_sample_size"] == pytest.approx(5.195848**2 / (5 * 5.592332), abs=1e-5)


def test_a_reply_without_a_learnt_token_is_refused_by_its_place() -> None:
    zeros = torch.zeros(2, 2)
    mask = torch.tensor([[True, True], [False, False]])
    with pytest.raises(ValueError, match=r"\[1\]"):
        policy_loss(zeros, zeros, zeros, mask, torch.zeros(2), WIDE, global_batch=2)


@pytest.mark.parametrize(
    ("field", "value"),
    [("kind", "ppo"), ("clip_low", 1.0), ("clip_high", 0.0), ("tis_cap", 0.0), ("kl_coefficient", -1)],
)
def test_a_wrong_setting_is_named(field: str, value: object) -> None:
    with pytest.raises(ConfigError, match=f"objective.{field}"):
        ObjectiveConfig(**{field: value})  # pyright: ignore[reportArgumentType]
