"""A progress bar on stderr, where someone is watching."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def progress_bar(label: str, unit: str) -> Iterator[Callable[[int, int | None], None]]:
    """Yield a function that is told how much is done of how much in all, if that is known.

    Without a terminal it shows nothing.
    """
    from tqdm import tqdm

    with tqdm(desc=label, unit=unit, unit_scale=True, dynamic_ncols=True, leave=False, disable=None) as bar:

        def show(done: int, total: int | None) -> None:
            bar.total = total
            bar.update(done - bar.n)

        yield show
