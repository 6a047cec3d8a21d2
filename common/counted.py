"""Counts in sentences."""


def counted(count: int, noun: str) -> str:
    """ "1 event", "2,000 events", "3 classes"; the noun is the singular."""
    if count == 1:
        return f"1 {noun}"
    plural = f"{noun[:-1]}ies" if noun.endswith("y") else f"{noun}es" if noun.endswith(("s", "ch", "x")) else f"{noun}s"
    return f"{count:,} {plural}"


def is_or_are(count: int) -> str:
    return "is" if count == 1 else "are"
