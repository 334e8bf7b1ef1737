"""Tests of async_dqn.run.tensorboard_layout: its charts are of what runs write."""

import re

from tensorboard.compat.proto import summary_pb2
from tensorboard.plugins.custom_scalar import layout_pb2

from async_dqn.run.csv_log import METRIC_FIELDS
from async_dqn.run.metrics import TensorBoardWriter
from async_dqn.run.tensorboard_layout import layout
from async_dqn.system.process_meter import METER_FIELDS


def parsed():
    (value,) = summary_pb2.Summary.FromString(layout()).value
    assert value.metadata.plugin_data.plugin_name == "custom_scalars"
    return layout_pb2.Layout.FromString(value.tensor.string_val[0])


def test_learning_comes_first():
    first = parsed().category[0]
    assert (first.title, first.chart[0].title) == ("Learning", "mean return of the last 100 games")


def test_every_chart_shows_something_that_is_written():
    written = [*METRIC_FIELDS, *METER_FIELDS, "staleness_max", "cycle_percent/gradient"]
    tags = [tag for category in parsed().category for chart in category.chart for tag in chart.multiline.tag]
    assert len(tags) >= 10
    for tag in tags:
        assert any(re.search(tag, name) for name in written), tag


def test_it_is_in_the_run_s_event_file(tmp_path):
    writer = TensorBoardWriter(tmp_path)
    writer.write_layout(layout())
    writer.close()
    (file,) = tmp_path.iterdir()
    assert b"custom_scalars" in file.read_bytes()
