"""TensorBoard's "Custom Scalars": the charts that tell how a run goes, what matters most first."""

from collections.abc import Sequence

from tensorboard.plugins.custom_scalar import layout_pb2, summary

_CHARTS = {  # category -> title -> tags, as regular expressions
    "Learning": {
        "mean return of the last 100 games": ["mean_return_100"],
        "loss": ["loss"],
    },
    "Speed": {
        "agent steps a second, in all and of each worker": ["steps_per_second"],
        "minibatches and updates a second": ["minibatches_per_second", "updates_per_second"],
    },
    "Asynchrony": {
        "staleness of updates, mean": ["staleness_mean"],
        "staleness of updates, greatest": ["staleness_max"],
        "age of experience that crosses to the learner, mean": ["data_age_mean"],
        "where each worker's time goes, %": ["cycle_percent/.*"],
    },
    "Machine": {
        "cores used by each worker": ["cores_used"],
        "memory of each worker, MB": ["resident_mb"],
    },
}


def layout(agent_metrics: Sequence[str]) -> bytes:
    """The layout, as a serialized summary, with a chart for each of the agent's own metrics."""
    learning = _CHARTS["Learning"] | {name.replace("_", " "): [name] for name in agent_metrics}
    categories = [
        layout_pb2.Category(
            title=category,
            chart=[
                layout_pb2.Chart(title=title, multiline=layout_pb2.MultilineChartContent(tag=_whole(tags)))
                for title, tags in charts.items()
            ],
        )
        for category, charts in (_CHARTS | {"Learning": learning}).items()
    ]
    return summary.pb(layout_pb2.Layout(category=categories)).SerializeToString()


def _whole(tags: list[str]) -> list[str]:
    return [f"^{tag}$" for tag in tags]
