"""Threads that use memory which is given back behind them: none is left when the call returns or raises, after Ctrl-C too."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from queue import SimpleQueue
from threading import Thread

from hicachectl.held_signals import held_signals

__all__ = ["run_threads"]


def run_threads(
    targets: Sequence[Callable[[], object]],
    name: str,
    *,
    stop: Callable[[], object],
    meanwhile: Callable[[], object] = lambda: None,
) -> None:
    """Run each target in a thread of its own, `meanwhile` in this one, and return when all have ended.

    Where `meanwhile` raises, a thread cannot be started or Ctrl-C comes, `stop` is called once: it lets the targets end soon.
    That exception is raised behind the last of them; further signals wait for that. Threads are called `name`-0, `name`-1, ...
    What a target raises is its own to carry over.
    """
    ended: SimpleQueue[None] = SimpleQueue()

    def run(target: Callable[[], object]) -> None:
        try:
            target()
        finally:
            ended.put(None)

    threads = [Thread(target=run, args=(target,), name=f"{name}-{i}") for i, target in enumerate(targets)]
    done = False
    with held_signals() as hold:
        try:
            with held_signals(at_once=True):  # a start that is broken off leaves a thread that nobody knows of
                for thread in threads:
                    thread.start()
            meanwhile()
            for _ in threads:
                ended.get()  # not Thread.join: one that is broken off takes a thread that runs for ended (CPython issue 90882)
            done = True
        finally:
            try:
                hold()
            finally:  # whatever comes before signals are held, comes once
                try:
                    if not done:
                        stop()
                finally:
                    for thread in threads:
                        if thread.ident is not None:
                            thread.join()
