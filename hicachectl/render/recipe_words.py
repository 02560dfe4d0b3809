"""A recipe in words, part by part: for the screen and the document of `tune recipe show`. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from hicachectl.tuning.recipe import Precheck, Reach, Recipe

__all__ = ["parts_of"]

_CHECKS = {
    Precheck.CONFIG_READABLE: "{} bytes of config space can be read",
    Precheck.TRANSACTIONS_PENDING: "no transactions are pending",
    Precheck.NOT_VFIO_BOUND: "not given to a guest (vfio)",
    Precheck.NOT_VIRTUAL: "not a virtual function",
    Precheck.RELAXED_ORDERING_ALLOWED: "the root port is not on the kernel's list",
    Precheck.ISOLATION_LOSS_ALLOWED: "--allow-isolation-loss, and no guest in the IOMMU group",
}


def parts_of(recipe: Recipe) -> Iterator[tuple[str, str]]:
    """Yield (name, sentence) of everything a recipe says, in the order of its file. Pure."""
    yield "knob", recipe.knob
    yield "applies to", _match(recipe)
    yield "reached by", _reach(recipe.reach)
    yield "writes", _write(recipe)
    if recipe.prechecks:
        yield "only where", "; ".join(_CHECKS[check].format(number) for check, number in recipe.prechecks)
    if not recipe.reports_only:
        back = recipe.read_back
        yield "read back", f"{back.tries} times, {back.delay_s * 1000:g} ms apart; unchanged means {_unchanged(recipe)}"
    if recipe.effect is not None:
        yield (
            "proven by",
            f"{recipe.effect.probe}: at least {recipe.effect.min_gain:g} times, no device loses more than {recipe.effect.max_loss:.0%}",
        )
    if not recipe.reports_only:
        yield "undone by", "the value in the journal"
        yield "kept over", _kept(recipe)
    hazards = f", hazards: {', '.join(recipe.risk.hazards)}" if recipe.risk.hazards else ""
    reboot = ", needs a reboot or reload" if recipe.risk.reboot_needed else ""
    yield "risk", f"{recipe.risk.level}{hazards}{reboot}, quiesce {recipe.risk.quiesce}"
    if recipe.report is not None:
        yield "report", f"{recipe.report.reason} -> {recipe.report.remedy}"


def _match(recipe: Recipe) -> str:
    match, parts = recipe.match, []
    for name, values in (
        ("CPU", match.cpu.vendors),
        ("family", _ranges(match.cpu.families)),
        ("model", _ranges(match.cpu.models)),
    ):
        if values:
            parts.append(f"{name} {' or '.join(values)}")
    if match.pci is not None:
        pci = match.pci
        named = (
            ("", pci.kinds),
            ("vendor ", pci.vendors),
            ("device ", pci.devices),
            ("class ", pci.classes),
            ("port ", pci.port_types),
        )
        parts += [f"{name}{' or '.join(values)}" for name, values in named if values]
    if match.shared_upstream is not None:
        parts.append(f"an uplink shared by {match.shared_upstream} or more")
    if match.kernel.oldest:
        parts.append(f"Linux {'.'.join(map(str, match.kernel.oldest))} or newer")
    if match.kernel.lockdown:
        parts.append(f"lockdown {' or '.join(match.kernel.lockdown)}")
    return ", ".join(parts) or "any host"


def _ranges(ranges: tuple[tuple[int, int], ...]) -> tuple[str, ...]:
    return tuple(str(low) if low == high else f"{low}-{high}" for low, high in ranges)


def _reach(reach: Reach) -> str:
    what = reach.path or reach.setting or (f"{reach.module} {reach.parameter}" if reach.module else "")
    if reach.offset is not None:
        anchor = "start"
        if reach.capability is not None:
            version = f" (version {reach.min_version} or newer)" if reach.min_version > 1 else ""
            anchor = f"capability {reach.capability:#04x}{version}"
        elif reach.extended is not None:
            anchor = f"extended capability {reach.extended:#04x}"
        counted = f"{anchor} + " if reach.method.value.startswith("pci-") else ""
        what = f"{counted}{reach.offset:#04x}, {reach.width} bits"
        if reach.instances != (0,):
            what += f", instances {', '.join(map(hex, reach.instances))}"
    return f"{reach.method.value} {reach.scope.value}: {what}"


def _write(recipe: Recipe) -> str:
    if recipe.reports_only:
        return "nothing: it is only reported" + (f" (mask {recipe.mask:#06x})" if recipe.mask is not None else "")
    if recipe.mask is None or not isinstance(recipe.value, int):
        return f"{recipe.value!r}"
    never = f"; bits {recipe.forbidden:#06x} are always written as 0" if recipe.forbidden else ""
    return f"{recipe.value:#06x} into the bits {recipe.mask:#06x}, no other{never}"


def _unchanged(recipe: Recipe) -> str:
    return (
        "not implemented: unsupported, apply goes on"
        if recipe.on_not_implemented == "skip"
        else "failed: all is put back"
    )


def _kept(recipe: Recipe) -> str:
    kept = [
        what
        for what, is_kept in (("a reboot", recipe.survives_reboot), ("a function reset", recipe.survives_flr))
        if is_kept
    ]
    again = f"; applied again by {recipe.reapply}" if recipe.reapply != "none" else ""
    return (" and ".join(kept) or "neither a reboot nor a function reset") + again
