"""Tests of one agent follow each other, so that one process computes once what they share."""

from pathlib import Path


def pytest_collection_modifyitems(items):
    places = [place for place, item in enumerate(items) if item.path.parent == Path(__file__).parent]
    ordered = sorted((items[place] for place in places), key=lambda item: item.callspec.params["agent_name"])
    for place, item in zip(places, ordered, strict=True):
        items[place] = item
