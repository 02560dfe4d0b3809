"""Ways to reach a target: read it, write it, and the shell line that does the same. One file a family of methods.

Reads return a fact, never raise; writes raise OSError with the kernel's errno. A register is written with exactly its
width; the caller gives the whole word.
"""

from __future__ import annotations

from hicachectl.tuning.access.access import Access
from hicachectl.tuning.access.doors import read_doors
from hicachectl.tuning.access.hsmp import HsmpAccess
from hicachectl.tuning.access.module_param import ModuleParamAccess
from hicachectl.tuning.access.mount import MountAccess
from hicachectl.tuning.access.msr import MsrAccess
from hicachectl.tuning.access.pci_config import PciConfigAccess
from hicachectl.tuning.access.smn import SmnAccess
from hicachectl.tuning.access.words import WordAccess
from hicachectl.tuning.host.facts import Fact, unknown
from hicachectl.tuning.host.root import HostRoot
from hicachectl.tuning.kernel import Kernel
from hicachectl.tuning.target import Method, Target, Value

__all__ = ["ACCESS", "READING_ORDER", "read_doors", "read_target", "shell_line", "write_target"]

READING_ORDER: tuple[str, ...] = (
    "access",
    "words",
    "mount",
    "pci_config",
    "doors",
    "ways",
    "msr",
    "smn",
    "hsmp",
    "module_param",
)

ACCESS: dict[Method, Access] = {
    Method.SYSFS: WordAccess(),
    Method.SYSCTL: WordAccess(),
    Method.MOUNT: MountAccess(),
    Method.PCI_CONFIG: PciConfigAccess(),
    Method.PCI_ECAP: PciConfigAccess(),
    Method.MSR: MsrAccess(),
    Method.SMN_DEBUGFS: SmnAccess(),
    Method.HSMP: HsmpAccess(),
    Method.MODULE_PARAM: ModuleParamAccess(),
}
"""Everything but firmware settings. The last four are used only where a recipe names them."""


def read_target(root: HostRoot, target: Target) -> Fact[Value]:
    """Read what a target holds now. Reads the host; a device that answers all ones is unknown with the reason "device gone ..."."""
    access = ACCESS.get(target.method)
    if access is None:
        return unknown(target.path, f"the access method {target.method.value} is not available")
    return access.read(root, target)


def write_target(kernel: Kernel, root: HostRoot, target: Target, value: Value) -> None:
    """Write a whole value. Changes the host by one call of `kernel`. Raises OSError, KeyError for a method that only reports."""
    ACCESS[target.method].write(kernel, root, target, value)


def shell_line(target: Target, value: Value) -> str:
    """Return the command an operator would type for the same write. Pure. Raises KeyError for a method that only reports."""
    return ACCESS[target.method].shell(target, value)
