"""The verifier of the example task: is the answer the last digit of the sum?

A verifier is one function. It gets the prompt, the completion without its thinking, and what the row holds as answer,
and returns 1 for right, 0 for wrong, or something between. It runs in a process of its own, with limits of time and
memory: it may hang or crash without hurting the run. What it raises excludes the rollout; it is never taken for a
wrong answer.
"""

ALMOST = 0.1  # partial credit; only full marks count in the pass rate


def verify(prompt: str, completion: str, answer: int) -> float:
    """1 for the right digit, a little for any single digit, 0 for everything else."""
    given = completion.strip()
    if len(given) != 1 or not given.isdigit():
        return 0.0
    if int(given) == answer:
        return 1.0
    return ALMOST
