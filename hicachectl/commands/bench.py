"""`hicachectl bench`: loads that show what memory, links, copies and storage of this machine do. Each in a module of its own."""

from __future__ import annotations

import typer

from hicachectl.commands import bench_copy, bench_link, bench_model, bench_pool, bench_store

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.callback()
def bench() -> None:
    """Measure what this machine does, with the method and the expected range beside each number.

    Load only: memory is taken and given back, no setting is changed. With -o json --output-file FILE the result is a file
    that other commands read. Exit code 9: noise or time left no answer; 5: the hardware is not there.
    """


app.command("link")(bench_link.link)
app.command("pool")(bench_pool.pool)
app.command("copy")(bench_copy.copy)
app.command("store")(bench_store.store)
app.command("model")(bench_model.model)
