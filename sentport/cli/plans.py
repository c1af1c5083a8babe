"""TensorRT plans of a bundle in words."""

from __future__ import annotations

from sentport.bundle import Bundle
from sentport.plans import BUILDERS, PASSED, UNVERIFIED, Extent, Plan


def plan_lines(bundle: Bundle, plan: Plan) -> list[str]:
    """Lines: file and builder, types, profiles, and whether its vectors were ever compared with the source's."""
    size = (bundle.path / plan.file).stat().st_size / 1e6
    devices = ", ".join(plan.runs_on)
    types = ", ".join(f"{count} in {name}" for name, count in plan.types.items())
    lines = [
        f"{'plan':<15} {plan.file}  {size:.0f} MB, {BUILDERS[plan.builder]} {plan.version} for compute capability "
        f"{devices}, built in {plan.seconds:.1f} s",
        f"{'types':<15} linear layers: {types}",
    ]
    what = "tokens of a row" if plan.layout == "padded" else "tokens in all"
    for number, profile in enumerate(plan.profiles):
        head = "profiles" if number == 0 else ""
        lines.append(f"{head:<15} {what} {_words(profile.tokens)}, rows {_words(profile.rows)}")
    lines.append(f"{'parity':<15} {parity_words(plan)}")
    return lines


def parity_words(plan: Plan) -> str:
    """What is known of a plan's vectors."""
    parity = plan.parity
    if parity["state"] == UNVERIFIED:
        return "unverified: layer types and vectors are checked when it is first loaded on a GPU"
    where = f"on {parity['device']} with version {parity['version']}"
    if parity["state"] == PASSED:
        layers = ", ".join(f"{count} in {name}" for name, count in parity["layers"].items())
        return (
            f"passed {where}: worst cosine {parity['cosine']:.7f} over {parity['rows']} vectors; tensors between "
            f"layers {layers or 'are not told'}"
        )
    return f"REFUSED {where}: {parity['reason']}"


def _words(extent: Extent) -> str:
    return f"{extent.least} to {extent.most}" + ("" if extent.best == extent.most else f" (best at {extent.best})")
