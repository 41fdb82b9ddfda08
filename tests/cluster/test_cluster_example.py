"""examples/ray-cluster.yaml is what `ray up` takes; nobody here can start its nodes."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

pytest.importorskip("ray")

import jsonschema
from ray.autoscaler._private.util import prepare_config, validate_config

EXAMPLE = Path(__file__).parents[2] / "examples" / "ray-cluster.yaml"


def test_ray_up_takes_the_example() -> None:
    config = prepare_config(yaml.safe_load(EXAMPLE.read_text()))
    validate_config(config)
    kinds = config["available_node_types"]
    workers = [kind for name, kind in kinds.items() if name != config["head_node_type"]]
    assert sum(kind["max_workers"] for kind in workers) <= config["max_workers"]
    assert {"trains", "generates"} <= {resource for kind in workers for resource in kind["resources"]}
    with pytest.raises(jsonschema.ValidationError, match="head_node_typ"):  # it does look
        validate_config(config | {"head_node_typ": "controller"})
