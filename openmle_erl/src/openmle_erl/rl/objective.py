"""What the policy is trained for: settings of the loss, without torch. `gspo` has the formulas."""

from dataclasses import dataclass

from openmle_gym.errors import ConfigError

KINDS = ("gspo", "grpo")


@dataclass
class ObjectiveConfig:
    """The policy loss. The defaults are the paper's; `grpo_clip_higher` has those of its alternative."""

    kind: str = "gspo"
    """gspo: one ratio for a whole reply, the geometric mean of its tokens' ratios. grpo: a ratio for each token."""
    clip_low: float = 3.5e-4
    """Ratios below 1 - clip_low are clipped."""
    clip_high: float = 3.5e-4
    """Ratios above 1 + clip_high are clipped."""
    tis_cap: float | None = 2.0
    """The largest weight that corrects a token for the rollout engine's log-probabilities; null: no correction."""
    kl_coefficient: float = 0.0
    """Weight of the divergence from the reference model; at 0 no reference model is loaded."""
    entropy_coefficient: float = 0.0
    """Weight of the bonus for entropy."""

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ConfigError(f"objective.kind: must be one of {', '.join(KINDS)}, got {self.kind!r}")
        if not 0.0 < self.clip_low < 1.0:
            raise ConfigError(f"objective.clip_low: must be in (0, 1), got {self.clip_low}")
        if self.clip_high <= 0.0:
            raise ConfigError(f"objective.clip_high: must be above 0, got {self.clip_high}")
        if self.tis_cap is not None and self.tis_cap <= 0.0:
            raise ConfigError(f"objective.tis_cap: must be above 0, or null, got {self.tis_cap}")
        for name in ("kl_coefficient", "entropy_coefficient"):
            if getattr(self, name) < 0.0:
                raise ConfigError(f"objective.{name}: must be at least 0, got {getattr(self, name)}")


def grpo_clip_higher() -> ObjectiveConfig:
    """The published alternative: GRPO whose upper clip is wider."""
    return ObjectiveConfig(kind="grpo", clip_low=0.2, clip_high=0.28)
