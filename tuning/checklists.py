"""What an operator has to get from a vendor before a recipe can be written: questions as data. Pure.

No public document gives the address of the ordering policy of Hygon's root complex, nor says how Kunlun's cards order what
they write. Nothing here is a guess at an answer.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["CHECKLISTS", "Checklist", "Question"]


@dataclass(frozen=True, slots=True)
class Question:
    """One thing to ask, and why the answer decides something."""

    topic: str
    ask: str
    why: str


@dataclass(frozen=True, slots=True)
class Checklist:
    """Questions to one vendor, and what to do with the answers, in order."""

    name: str
    title: str
    about: str
    questions: tuple[Question, ...]
    then: tuple[str, ...]


_HYGON = Checklist(
    "hygon",
    "Ordering policy of the root complex, Hygon CPUs",
    "Whether writers behind one port may pass each other is set in the root complex. No public address is known, neither for "
    "Hygon nor for AMD or Intel; the bit in the accelerator (pcie.ido-request) is another setting and may do nothing alone.",
    (
        Question(
            "document",
            "Which document and revision describes it, and may we use it in our machines?",
            "a register without a document cannot be checked",
        ),
        Question(
            "processors",
            "For which CPU families, models and steppings does it hold?",
            "match.cpu: another model may have another register at the same address",
        ),
        Question(
            "firmware option",
            "Is there a firmware (BIOS) option for it?",
            "prefer it: it is applied in time, at every boot, and supported",
        ),
        Question(
            "access",
            "How is it reached: config space of which bus, device and function, SMN, or a mailbox?",
            "access.method; the kernel owns the SMN index and data registers at 0x60 and 0x64",
        ),
        Question(
            "addresses",
            "What is the address in each IOHC or NBIO, and which of them belongs to which root port?",
            "registers repeat: one logical change is as many writes, and only those above the accelerators count",
        ),
        Question(
            "fields",
            "Which bits, which reset value, which values are legal (strict, by id, relaxed)?",
            "write.mask and words: what is not named is not written",
        ),
        Question(
            "neighbours",
            "Which bits beside them are reserved, read as zero, or clear when written as 1?",
            "write.forbid_mask, and whether a read-modify-write is safe at all",
        ),
        Question(
            "when",
            "May it be written after boot, or is it locked; must links be idle for it?",
            "a locked register takes the write and keeps its value",
        ),
        Question(
            "interaction",
            "How does it act together with the IOMMU, access control (ACS) and peer-to-peer traffic?",
            "a faster path that skips translation or isolation is no gain",
        ),
        Question(
            "persistence",
            "Does it survive a warm reset, a function level reset, a hot reset of the port?",
            "persist: what has to be applied again, and when",
        ),
        Question(
            "sample",
            "What does a read-back look like before and after, on a machine like ours?",
            "so that the first look can be compared with something",
        ),
        Question(
            "errata",
            "Which errata concern ordering of inbound writes?",
            "a fast machine that corrupts data is worse than a slow one",
        ),
    ),
    (
        "hicachectl tune recipe new hygon-write-order --method smn-debugfs --output-file hygon-write-order.yaml",
        "fill in its blanks from the document, with its name under source",
        "hicachectl tune recipe validate hygon-write-order.yaml",
        "sudo install -D -o root -g root -m 0644 hygon-write-order.yaml -t /etc/hicachectl/recipes.d",
        "sudo hicachectl tune plan --recipes hygon-write-order --output-file plan.json",
        "sudo hicachectl tune apply plan.json --prove",
    ),
)

_KUNLUN = Checklist(
    "kunlun",
    "Ordering of the writes of Kunlun P800 cards",
    "ID-based ordering lets a packet pass earlier ones of another requester. Whether that is safe and whether it helps depends "
    "on which ids a card writes with, and on what its runtime counts on.",
    (
        Question(
            "id",
            "What is the PCI vendor and device id of the P800 (1d22:3688 appears in one public script only)?",
            "match.pci: a recipe must not reach another device",
        ),
        Question(
            "implemented",
            "Is Device Control 2 bit 8 (IDO request enable) implemented, or hardwired to 0?",
            "no capability bit says so; only a write tells",
        ),
        Question(
            "requester",
            "Do data and the completion flag behind it leave the card with one requester id?",
            "with one id they stay in order under IDO; with two the flag may pass the data",
        ),
        Question(
            "two dies",
            "Does the runtime rely on strict order between the writes of the card's two dies?",
            "IDO removes exactly that order",
        ),
        Question(
            "reset",
            "Does the driver reset the function, and what does it restore afterwards?",
            "the kernel writes back what it saved, so the bit may be lost or come back",
        ),
    ),
    (
        "sudo hicachectl tune plan --only pcie.ido-request --output-file plan.json",
        "sudo hicachectl tune apply plan.json --prove",
        "hicachectl tune recipe checklist hygon",
    ),
)

CHECKLISTS: dict[str, Checklist] = {one.name: one for one in (_HYGON, _KUNLUN)}
"""By the word of `tune recipe checklist`."""
