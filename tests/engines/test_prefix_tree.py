"""The prefix tree against prefixes written out."""

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from scalerl.engines.prefix_tree import prefix_tree

ROWS = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=6), min_size=1, max_size=8)


@given(ROWS)
def test_nodes_are_the_different_prefixes_and_paths_hold_each_of_them(rows: list[list[int]]) -> None:
    lengths = np.array([len(row) for row in rows])
    padded = np.array([row + [0] * (lengths.max() - len(row)) for row in rows])
    tree = prefix_tree(torch.from_numpy(padded), torch.from_numpy(lengths))
    prefixes = {tuple(row[: i + 1]) for row in rows for i in range(len(row))}
    of_node: dict[int, tuple[int, ...]] = {}
    for row, nodes in zip(rows, tree.node.tolist(), strict=True):
        for i, node in enumerate(nodes[: len(row)]):
            assert of_node.setdefault(node, tuple(row[: i + 1])) == tuple(row[: i + 1])
            assert (tree.tokens[node], tree.positions[node]) == (row[i], i)
    assert set(of_node.values()) == prefixes
    assert len(of_node) == len(tree.tokens) == len(prefixes)
    leaves = {tuple(row) for row in rows if not any(p[: len(row)] == tuple(row) for p in prefixes if len(p) > len(row))}
    assert len(tree.paths) == len(leaves)
    assert tree.paths.reshape(-1)[tree.place].tolist() == list(range(len(prefixes)))
    assert torch.equal(tree.place % tree.paths.shape[1], tree.positions)
    for node, place in enumerate(tree.place.tolist()):  # its path begins with its prefix
        path, column = divmod(place, tree.paths.shape[1])
        assert tuple(tree.tokens[tree.paths[path, : column + 1]].tolist()) == of_node[node]


def test_without_lengths_every_position_counts() -> None:
    tree = prefix_tree(torch.tensor([[1, 0], [1, 0], [2, 0]]))
    assert tree.tokens.tolist() == [1, 0, 2, 0]
    assert tree.node.tolist() == [[0, 1], [0, 1], [2, 3]]
