"""The needs of contrastive search among the other settings, in a run's config and in a call."""

MAX_CANDIDATES = 64  # each of them keeps the keys and values of a whole context


def search_conflict(
    penalty_alpha: float | None, top_k: int | None, beams: int | None, section: str = ""
) -> tuple[str, str] | None:
    """The first setting that does not go with contrastive search, and a hint, or None; `section` begins the names."""
    alpha, k = f"{section}penalty_alpha", f"{section}top_k"
    if penalty_alpha is None:
        return None
    if beams is not None:
        return f"{alpha} does not go with {section}beams", "leave one of them out: 0 is off (in Python None)"
    if top_k is None:
        hint = "give a top_k such as 4, or switch penalty_alpha off: 0 (in Python None)"
        return f"{alpha} needs {k}, the number of its candidates", hint
    if top_k > MAX_CANDIDATES:
        hint = "each candidate keeps a context in memory; 4 to 10 are usual"
        return f"{alpha} goes with a {k} of at most {MAX_CANDIDATES}, not {top_k}", hint
    return None
