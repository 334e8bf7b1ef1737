"""TensorBoard's charts are of what runs write."""

import re

import pytest
from tensorboard.compat.proto import summary_pb2
from tensorboard.plugins.custom_scalar import layout_pb2

from async_dqn.agents import table
from async_dqn.run.metrics import TensorBoardWriter, metric_fields
from async_dqn.run.tensorboard_layout import layout
from async_dqn.system.process_meter import METER_FIELDS


@pytest.mark.parametrize("agent", table.TABLE)
def test_every_chart_shows_something_that_is_written_and_the_agent_s_own_metrics_are_shown(agent):
    metrics = table.find(agent).metrics
    (value,) = summary_pb2.Summary.FromString(layout(metrics)).value
    assert value.metadata.plugin_data.plugin_name == "custom_scalars"
    categories = layout_pb2.Layout.FromString(value.tensor.string_val[0]).category
    assert categories[0].title == "Learning"
    written = [*metric_fields(metrics), *METER_FIELDS, "staleness_max", "cycle_percent/gradient"]
    tags = [tag for category in categories for chart in category.chart for tag in chart.multiline.tag]
    for tag in tags:
        assert any(re.search(tag, name) for name in written), tag
    for name in metrics:
        assert any(re.search(tag, name) for tag in tags), name


def test_it_is_in_the_run_s_event_file(tmp_path):
    writer = TensorBoardWriter(tmp_path)
    writer.write_layout(layout(["entropy"]))
    writer.close()
    (file,) = tmp_path.iterdir()
    assert b"custom_scalars" in file.read_bytes()
