"""A recipe to fill in: valid YAML whose every open value is a blank, `<what goes here>`, which the loader refuses by line. Pure."""

from __future__ import annotations

from hicachectl.tuning.target import Method

__all__ = ["TEMPLATE_METHODS", "recipe_template"]

_REGISTER = """\
words: {{on: "<bits of the wanted value, hex, inside the mask>", off: "<bits of the other value, hex>"}}
write:
  mask: "<bits that are ours, hex such as 0x0100>"
  value: "<the value of one of the words, hex>"
  forbid_mask: 0x0000  # bits that every write forces to 0
on_not_implemented: fail  # skip where no capability tells and only a write does
{precheck}verify:
  readback: {{tries: 3, delay_ms: 50}}
  # effect: {{probe: d2h-concurrent, min_gain: 1.10, max_loss: 0.03}}
"""
_CONFIG_PRECHECK = (
    "precheck: [{config_readable: 256}, {transactions_pending: 0}, {not_vfio_bound: true}, {not_virtual: true}]\n"
)
_WORDS = """\
words: {{on: "<text of the wanted value, quoted>", off: "<text of the other value, quoted>"}}
write:
  value: "<the text of one of the words, quoted>"
on_not_implemented: fail
verify:
  readback: {{tries: 3, delay_ms: 50}}
"""
_FIRMWARE = """\
write: null  # a firmware setting is only reported
verify:
  readback: {{tries: 1}}
report:
  reason: "<why it is only reported>"
  remedy: "<what an operator does: menu, option and value>"
"""
_ONE_CPU = '  cpu: {vendor: "<hygon, amd or intel>", family: "<family, a number>", model: "<models, a number or a range such as 4-7>"}\n'
_ANY_CPU = "  cpu: {vendor: any, family: any, model: any}  # or hygon, amd, intel; numbers and ranges\n"
_PCI = """\
  pci:
    vendor: "<vendor id, 4 hex digits, ? for any>"
    device: "<device id, 4 hex digits, ? for any>"
    class: any
    kind: "<accelerator, rdma-nic, nic, nvme, bridge or other>"
    port_type: "<endpoint, root-port, upstream, downstream, or any>"
"""
_ACCESS = {
    Method.PCI_CONFIG: (
        'access: {method: pci-config, scope: "<per-function or per-root-port>", '
        'offset: "<bytes from the start of config space, hex>", width: 16}\n'
    ),
    Method.MSR: 'access: {method: msr, scope: "<per-cpu or per-socket>", offset: "<number of the MSR, hex>", width: 64}\n',
    Method.SMN_DEBUGFS: (
        "access:\n  method: smn-debugfs\n  scope: per-nbio\n  width: 32\n"
        '  offset: "<SMN address in the first NBIO, hex>"\n'
        '  instances: "<distance of each NBIO from the first, a list such as [0x0, 0x100000]>"\n'
    ),
    Method.SYSFS: 'access: {method: sysfs, scope: host, path: "<absolute path below /sys>"}\n',
    Method.MODULE_PARAM: 'access: {method: module-param, scope: host, module: "<module>", parameter: "<parameter>"}\n',
    Method.BIOS: 'access: {method: bios, scope: host, setting: "<name of the option in the firmware>"}\n',
}
TEMPLATE_METHODS = tuple(_ACCESS)
"""The methods there is a template for."""
_ON_FUNCTIONS = frozenset((Method.PCI_CONFIG,))
_ON_PROCESSORS = frozenset((Method.MSR, Method.SMN_DEBUGFS))


def recipe_template(recipe_id: str, method: Method) -> str:
    """Return the YAML of a new recipe with this id for one method of `TEMPLATE_METHODS`. Pure. Raises KeyError for another one."""
    access = _ACCESS[method]
    if method is Method.BIOS:
        body = _FIRMWARE
    elif method in (Method.SYSFS, Method.MODULE_PARAM):
        body = _WORDS
    else:
        body = _REGISTER
    precheck = _CONFIG_PRECHECK if method in _ON_FUNCTIONS else ""
    hint = "# anchor: {cap: 0x10, min_version: 2} beside it counts from the PCI Express capability\n"
    return (
        "# Fill in every <blank>, then: hicachectl tune recipe validate FILE\n"
        "schema: hicachectl.recipe/1\n"
        f"id: {recipe_id}\n"
        'title: "<what it lets the hardware do, one line>"\n'
        'status: "<vendor-confidential, experimental, or public>"\n'
        "match:  # all of it must hold\n"
        + (_ANY_CPU if method not in _ON_PROCESSORS else _ONE_CPU)
        + (_PCI if method in _ON_FUNCTIONS else "")
        + '  kernel: {min: "3.0", lockdown: none}\n'
        + (hint if method in _ON_FUNCTIONS else "")
        + access
        + body.format(precheck=precheck)
        + "revert: {from: journal}\n"
        "persist: {survives_reboot: false, survives_flr: false, reapply: systemd}\n"
        "risk:\n"
        '  level: "<low, medium or high>"\n'
        "  reboot_needed: false\n"
        "  hazards: [data-ordering]  # leave the word where it changes what may pass what, else name others\n"
        "  quiesce: required\n"
        "source:\n"
        "  - kind: document\n"
        '    ref: "<document, revision and page>"\n'
        '    checked: "<date, such as 2026-11-29>"\n'
    )
