"""The facts that help shows before the options: three examples, the exit codes, and whether the host changes.

Keys are command paths. A path without a page of its own takes its parent's exit codes and the examples that call it.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["PAGES", "Example", "Page", "page_of"]


@dataclass(frozen=True, slots=True)
class Example:
    """A command line a reader can paste, and what it is for."""

    line: str
    purpose: str


@dataclass(frozen=True, slots=True)
class Page:
    """Help facts of one command. `changes_host` is a sentence; None means no. `exits` are the codes it can end with."""

    examples: tuple[Example, ...]
    exits: tuple[int, ...] = (0, 1, 2)
    changes_host: str | None = None


PAGES: dict[str, Page] = {
    "": Page(
        (
            Example("hicachectl run", "replay a synthetic workload through all three tiers"),
            Example("hicachectl run --trace conversation_trace.jsonl.gz -o json", "your traffic, for a program"),
            Example("hicachectl explain HC-CAPACITY", "what a code means and what to do"),
        )
    ),
    "topo": Page(
        (
            Example(
                "hicachectl topo", "which accelerators share which link, which node each is near, what is set wrongly"
            ),
            Example("hicachectl topo -o json --fail-on error", "for a program; exit code 3 when an error is found"),
            Example("hicachectl topo --root host.tar.zst -o wide", "a recorded host, with drivers and IOMMU"),
        ),
        exits=(0, 1, 2, 3, 5),
    ),
    "topo matrix": Page(
        (
            Example("hicachectl topo matrix", "path classes between accelerators and nodes"),
            Example("hicachectl topo matrix -o tsv", "one line a pair"),
            Example("hicachectl topo matrix --root host.tar.zst", "of a recorded host"),
        )
    ),
    "topo snapshot": Page(
        (
            Example("hicachectl topo snapshot host.tar.zst", "record this host for --root and for a support case"),
            Example(
                "hicachectl topo snapshot host.tar.zst --wake",
                "sleeping devices too; as root with the whole config space",
            ),
            Example("hicachectl topo --root host.tar.zst", "read it again, on any machine"),
        )
    ),
    "topo diff": Page(
        (
            Example("hicachectl topo diff before.tar.zst", "what has changed on this host since then"),
            Example("hicachectl topo diff a.tar.zst b.tar.zst -o json", "two hosts, for a program"),
            Example("hicachectl topo diff a.tar.zst live --all", "with free memory and counters"),
        ),
        exits=(0, 1, 2, 3, 5),
    ),
    "tune": Page(
        (
            Example("hicachectl tune plan --output-file plan.json", "what would change, and the plan for apply"),
            Example("hicachectl tune apply plan.json", "make the changes, all of them or none"),
            Example("hicachectl tune", "on a terminal: look, show, ask, apply, verify"),
        ),
        exits=(0, 1, 2, 3, 4, 5, 6, 7, 8, 130, 143),
        changes_host="Yes, after a question or with --yes. Every value is recorded first: hicachectl tune rollback.",
    ),
    "tune plan": Page(
        (
            Example("hicachectl tune plan", "what would change on this host, and why"),
            Example("hicachectl tune plan --only pcie.ido-request@0000:95:00.0", "one setting of one function"),
            Example("hicachectl tune plan --root host.tar.zst -o json --exit-code", "a recorded host, for a program"),
        ),
        exits=(0, 1, 2, 3),
    ),
    "tune show": Page(
        (
            Example("hicachectl tune show plan.json", "a saved plan, and whether it still fits this host"),
            Example("hicachectl tune show plan.json --as-shell", "the commands and their undo, for a change ticket"),
            Example("hicachectl tune show plan.json -o json", "for a program"),
        ),
        exits=(0, 1, 2, 4),
    ),
    "tune apply": Page(
        (
            Example("hicachectl tune apply plan.json", "make the changes of a saved plan"),
            Example("hicachectl tune apply plan.json --dry-run", "check everything, write nothing"),
            Example("hicachectl tune apply plan.json --yes --prove -o json", "keep only what gains, for a program"),
        ),
        exits=(0, 1, 2, 4, 5, 6, 7, 8, 130, 143),
        changes_host="Yes. Every value is recorded before it is written; undo: hicachectl tune rollback.",
    ),
    "tune verify": Page(
        (
            Example("hicachectl tune verify", "whether what the last run set still holds"),
            Example("hicachectl tune verify plan.json", "compare this host with a plan"),
            Example("hicachectl tune verify --run j-0003 -o json", "against one run, for a program"),
        ),
        exits=(0, 1, 2, 3, 4),
    ),
    "tune status": Page(
        (
            Example("hicachectl tune status", "what is in place on this boot, by whom"),
            Example("hicachectl tune status -o json", "for a program; 3 when a run was cut short"),
            Example("hicachectl tune status --state-dir state", "of runs recorded elsewhere"),
        ),
        exits=(0, 1, 2, 3, 4),
    ),
    "tune history": Page(
        (
            Example("hicachectl tune history", "every run, newest first"),
            Example("hicachectl tune history -o wide", "with the folders of the journals"),
            Example("hicachectl tune history -o tsv", "one line a run"),
        ),
        exits=(0, 1, 2, 4),
    ),
    "tune rollback": Page(
        (
            Example("hicachectl tune rollback", "undo the last run that is in place"),
            Example("hicachectl tune rollback j-0003 --dry-run", "what would be put back"),
            Example("hicachectl tune rollback j-0003 --yes --force", "also what somebody else changed since"),
        ),
        exits=(0, 1, 2, 3, 4, 7, 8),
        changes_host="Yes: it writes the recorded values back, the last change first.",
    ),
    "tune unit": Page(
        (
            Example("hicachectl tune unit /etc/hicachectl/plan.json", "files that keep a plan over boots"),
            Example("hicachectl tune unit plan.json --engine sglang.service", "applied before this unit starts"),
            Example("hicachectl tune unit plan.json --output-dir boot", "as files in a folder"),
        ),
        exits=(0, 1, 2, 4, 8),
    ),
    "tune size": Page(
        (
            Example(
                "hicachectl tune size --trace my.jsonl --geometry qwen3-8b", "predict, choose, prove on real pools"
            ),
            Example(
                "hicachectl tune size --trace my.jsonl --steps none --explain", "predict only, and say how it is chosen"
            ),
            Example(
                "hicachectl tune size --trace my.jsonl --device cuda --max-bytes 64GiB -o json",
                "registered pools, with a limit, for a program",
            ),
            Example(
                "hicachectl tune size --live server.log --window 30m",
                "for what an engine serves now, from its request log",
            ),
        ),
        exits=(0, 1, 2, 3, 4, 5, 8, 9, 10, 130, 143),
    ),
    "tune recipe": Page(
        (
            Example(
                "hicachectl tune recipe list",
                "every register and setting there is a recipe for, and whether it holds here",
            ),
            Example(
                "hicachectl tune recipe show pcie-ido-request", "what it writes, what it risks, where that was read"
            ),
            Example(
                "hicachectl tune recipe new hygon-write-order --output-file hygon-write-order.yaml",
                "begin a recipe; validate names the blanks that are left",
            ),
            Example("hicachectl tune recipe validate hygon-write-order.yaml", "check a file, with line numbers"),
            Example("hicachectl tune recipe checklist hygon", "what to ask the vendor for"),
        )
    ),
    "run": Page(
        (
            Example("hicachectl run", "a synthetic multi-turn workload, all three tiers, under a minute"),
            Example(
                "hicachectl run --trace conversation_trace.jsonl.gz --page-tokens 512 --host-slots 8000 -o json",
                "a recorded trace, for a program",
            ),
            Example("hicachectl run --check", "preflight and the effective configuration, nothing is started"),
        ),
        exits=(0, 1, 2, 4, 5, 10, 11, 130, 143),
    ),
    "bench": Page(
        (
            Example("hicachectl bench pool", "how fast host memory is filled and registered"),
            Example("hicachectl bench pool --size 16GiB --device cuda", "beside torch's pinned memory"),
            Example("hicachectl bench pool -o json --output-file pool.json", "a file for other commands"),
        ),
        exits=(0, 1, 2, 4, 5, 9, 10, 130, 143),
    ),
    "bench link": Page(
        (
            Example(
                "hicachectl bench link --node all", "every accelerator with every node, then all that share a link"
            ),
            Example(
                "hicachectl bench link U3 --concurrent",
                "only what the accelerators behind one uplink take from each other",
            ),
            Example("hicachectl bench link -o json --output-file link.json", "a file for topo --measured"),
        ),
        exits=(0, 1, 2, 5, 9, 10, 130, 143),
    ),
    "bench copy": Page(
        (
            Example("hicachectl bench copy", "every layout with every copy backend that can run here"),
            Example("hicachectl bench copy --geometry mla-78 --pages 512 --device cuda", "of a model, over a link"),
            Example(
                "hicachectl bench copy --layout page_first_direct -o json --output-file copy.json",
                "one layout, as a file for other commands",
            ),
        ),
        exits=(0, 1, 2, 4, 5, 9, 10, 130, 143),
    ),
    "bench store": Page(
        (
            Example("hicachectl bench store --path /var/cache/hicache", "reads and writes on the disk of that folder"),
            Example("hicachectl bench store --geometry qwen3-8b --page-tokens 64 --size 1GiB", "pages of your model"),
            Example(
                "hicachectl bench store --batch 1,64 --threads 1 -o json --output-file store.json",
                "a file for run --costs",
            ),
        ),
        exits=(0, 1, 2, 9, 10, 130, 143),
    ),
    "bench model": Page(
        (
            Example("hicachectl bench model --geometry qwen3-8b --prefill synthetic", "break-even on this accelerator"),
            Example(
                "hicachectl bench model --geometry qwen3-8b --prefill-file prefill.csv", "with times of your engine"
            ),
            Example(
                "hicachectl bench model --path none -o json --output-file costs.json",
                "L2 alone, a file for run --costs",
            ),
        ),
        exits=(0, 1, 2, 5, 9, 10, 130, 143),
    ),
    "trace": Page(
        (
            Example("hicachectl trace curve conversation_trace.jsonl.gz", "how much hits at every cache size"),
            Example("hicachectl trace info my.jsonl", "what a trace holds"),
            Example("hicachectl trace convert sessions.jsonl.xz sessions.trace.gz", "any format as trace/1"),
        )
    ),
    "trace synth": Page(
        (
            Example("hicachectl trace synth agent agent.jsonl", "a workload shaped after public traces"),
            Example(
                "hicachectl trace synth multi-turn chats.jsonl.zst --seed 3 --requests 2000", "another one, packed"
            ),
            Example("hicachectl trace curve agent.jsonl", "how much of it hits at every cache size"),
        )
    ),
    "trace curve": Page(
        (
            Example("hicachectl trace curve conversation_trace.jsonl.gz", "how much hits at every cache size"),
            Example(
                "hicachectl trace curve my.jsonl --definition D3 --geometry qwen3-8b", "what an engine caches, in bytes"
            ),
            Example(
                "hicachectl trace curve my.jsonl --policy opt --capacities 8000,32000 -o json",
                "what no order of eviction can pass, for a program",
            ),
        )
    ),
    "config": Page(
        (
            Example("hicachectl config show --origin", "every value and where it comes from"),
            Example("hicachectl config path", "which file is read"),
            Example("hicachectl config show -o json", "for a program"),
        )
    ),
    "profile": Page(
        (
            Example("hicachectl profile list", "the profiles that come with the tool"),
            Example("hicachectl profile show cpu-demo", "each value with its reason"),
            Example("hicachectl profile validate my-profile.yaml", "check a file, with line numbers"),
        )
    ),
    "schema": Page(
        (
            Example("hicachectl schema", "every document there is"),
            Example("hicachectl schema run > run.schema.json", "save one for a validator"),
            Example("hicachectl schema run/1", "a version by its number"),
        )
    ),
    "explain": Page(
        (
            Example("hicachectl explain HC-CAPACITY", "the page of one code"),
            Example("hicachectl explain", "every code with its first line"),
            Example("hicachectl explain exit-codes", "what each exit code asks a runbook to do"),
        )
    ),
    "completion": Page(
        (
            Example("hicachectl completion bash > ~/.local/share/bash-completion/completions/hicachectl", "for bash"),
            Example("hicachectl completion zsh > ~/.zfunc/_hicachectl", "for zsh"),
            Example("hicachectl completion fish > ~/.config/fish/completions/hicachectl.fish", "for fish"),
        )
    ),
    "version": Page(
        (
            Example("hicachectl version", "the tool and its libraries"),
            Example("hicachectl version -o json", "for a bug report or an inventory"),
            Example("hicachectl version -o tsv", "one line a value"),
        )
    ),
}


def page_of(path: str) -> Page:
    """Find the help facts of a command path such as "profile list". Pure.

    Falls back to the nearest parent, whose examples that call this very command come first.
    """
    if path in PAGES:
        return PAGES[path]
    parent = page_of(path.rpartition(" ")[0])
    mine = [e for e in parent.examples if e.line.startswith(f"hicachectl {path}")]
    rest = [e for e in parent.examples if e not in mine]
    return Page((*mine, *rest), parent.exits, parent.changes_host)
