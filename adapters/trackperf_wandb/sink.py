"""The sink: into the user's W&B run where there is one, else into a run of our own."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING, Any, Final

from trackperf import exits
from trackperf.codec import plain
from trackperf_wandb.client import Options, begin, live_run, mode_of, require, require_key, start_service
from trackperf_wandb.joined import JoinedRun
from trackperf_wandb.own import OwnRun
from trackperf_wandb.rows import (
    ALERTS,
    CONFIG,
    RESUME,
    STEP,
    TIME,
    alert_text,
    alerts_json,
    config_of,
    own_key,
    parse_alerts,
    section_of,
    summary_values,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trackperf.record import Alert, Point, RunInfo, RunSummary, Status

__all__ = ["WandbSink"]

_log = logging.getLogger("trackperf")

_LEVELS: Final = {"notice": "INFO", "warning": "WARN"}
_WAIT_S: Final = 300
_ALERTS: Final = 1000


class WandbSink:
    """
    Writes into the user's W&B run, as a guest, or else into a run of its own.

    A run of its own is finished with the status of the training; the user's is left open. What W&B has taken
    is in a file of its own on this machine, so that nothing needs to be sent twice: where the server does not
    answer, `wandb sync` sends that file later.
    """

    name = "wandb"

    def __init__(
        self,
        *,
        project: str | None = None,
        entity: str | None = None,
        group: str | None = None,
        job_type: str | None = None,
        mode: str | None = None,
        run: Any | None = None,
        join: bool = True,
    ) -> None:
        """
        Args:
            project: project of a run of our own; as W&B is set (`WANDB_PROJECT`) when not given, and so on.

            entity: user or team that it belongs to.

            group: group that it is shown in.

            job_type: what it is, within the group.

            mode: `online`, `offline`, `shared` or `disabled`.

            run: the W&B run to write into; the live one, `wandb.run`, when not given.

            join: False for a run of our own also where the user has one: beside his, in its group.

        Raises:
            MissingDependencyError: `wandb` is not installed.

            SinkError: W&B has no such mode, or knows no key for its server.
        """
        self._wandb = require("the W&B sink")
        self._given = run
        self._join = join
        user = self._user_run()
        # Who has W&B switched off for himself wants none of ours either, unless he asks for it.
        off = mode is None and user is not None and bool(getattr(user, "disabled", False))
        asked = "disabled" if off else mode_of(self._wandb, mode)
        if asked in ("online", "shared") and user is None:
            require_key(self._wandb)
        if asked != "disabled":
            start_service(self._wandb)
            # W&B's exit hook ends its runs: ours must come before it.
            exits.come_first()
        self._options = Options(mode=asked, project=project, entity=entity, group=group, job_type=job_type)
        self._target: OwnRun | JoinedRun | None = None
        self._sections: set[str] = set()
        self._alerts: list[Alert] = []
        self._extra: dict[str, Any] = {}
        self._dropped = 0
        self._pid = os.getpid()

    @property
    def run(self) -> Any | None:
        """The W&B run that is written to; None before it is known, and where W&B is switched off."""
        return self._target.run if self._target else None

    def open(self, run: RunInfo) -> None:
        """
        Join the user's run, or begin one.

        Raises:
            OSError: the folder of W&B's files cannot be written.
        """
        self._pid = os.getpid()
        self._run = run
        # Asked again: who calls `wandb.init` after `trackperf.init` has a run by now.
        user = self._user_run()
        if self._options.mode == "disabled":
            _log.info("trackperf: W&B is switched off; nothing is written to it")
            return
        if user is not None and self._join and not getattr(user, "disabled", False):
            self._target = JoinedRun(user, run.prefix, at_finish=self._early_summary)
            user.config.update({CONFIG: config_of(run, joined=True)}, allow_val_change=True)
        else:
            self._target = OwnRun(self._begin(run, user))
        exits.come_first()
        target = self._target.run
        for hidden in (STEP, TIME, RESUME):
            target.define_metric(hidden, hidden=True)
        if run.resume_step is not None:
            self._extra = {RESUME: int(run.resume_step)}
            before = parse_alerts(target.summary.get(ALERTS))
            self._alerts = [alert for alert in before if alert.step <= run.resume_step]

    def write(self, points: Sequence[Point]) -> None:
        """
        Hand points to W&B.

        Raises:
            RuntimeError: the user has finished the run.
        """
        target = self._ready()
        if target is None:
            return
        target.require_live()
        for point in points:
            self._define(target, point)
            dropped = target.log(point, self._extra)
            self._extra = {}
            if dropped and not self._dropped:
                _log.warning("trackperf: values that are no finite numbers are not written to W&B")
            self._dropped += dropped

    def alert(self, alert: Alert) -> None:
        """
        Keep an alert with the run, and have W&B tell people when it was raised.

        Raises:
            RuntimeError: the user has finished the run.
        """
        target = self._ready()
        if target is None:
            return
        target.require_live()
        self._alerts = [*self._alerts, alert][-_ALERTS:]
        target.run.summary.update({ALERTS: alerts_json(self._alerts)})
        if alert.state == "raised":
            target.run.alert(
                title=f"trackperf: {alert.rule}",
                text=alert_text(alert),
                level=_LEVELS[alert.level],
                wait_duration=_WAIT_S,
            )

    def close(self, summary: RunSummary, status: Status) -> None:
        """Write the summary; finish a run of our own, leave the user's open."""
        target = self._ready()
        self._target = None
        if target is None or target.gone:
            return
        self._write_summary(target, summary, status)
        if isinstance(target, OwnRun):
            target.close(status, "\n".join(f"{alert.rule}: {alert_text(alert)}" for alert in summary.alerts))
        else:
            target.close()
            if target.lost:
                _log.warning(
                    "trackperf: %d points were lost: your W&B run has too few rows for them", target.lost
                )
        if self._dropped:
            _log.warning("trackperf: %d values were no finite numbers; W&B has not got them", self._dropped)

    def _ready(self) -> OwnRun | JoinedRun | None:
        return self._target if os.getpid() == self._pid else None

    def _user_run(self) -> Any | None:
        return self._given if self._given is not None else live_run()

    def _begin(self, run: RunInfo, user: Any | None) -> Any:
        options = self._options
        if user is not None and not getattr(user, "disabled", False):
            options = Options(
                mode="offline" if user.offline else options.mode,
                project=options.project or user.project or None,
                entity=options.entity or user.entity or None,
                group=options.group or user.group or user.id,
                job_type=options.job_type or "trackperf",
            )
        config = {**plain(run.config), CONFIG: config_of(run, joined=False)}
        return begin(self._wandb, run, config, options)

    def _define(self, target: OwnRun | JoinedRun, point: Point) -> None:
        """Let each section have our steps as its x axis, once."""
        for key in point.values:
            shown = own_key(key, self._run.prefix) if isinstance(target, JoinedRun) else key
            section = section_of(shown)
            if section not in self._sections:
                self._sections.add(section)
                target.run.define_metric(section, step_metric=STEP)

    def _write_summary(self, target: OwnRun | JoinedRun, summary: RunSummary, status: Status | None) -> None:
        info = config_of(self._run, joined=isinstance(target, JoinedRun))
        if dict(target.run.config.get(CONFIG) or {}) != info:
            target.run.config.update({CONFIG: info}, allow_val_change=True)
        target.run.summary.update(summary_values(summary, status, self._run.prefix))

    def _early_summary(self) -> None:
        """Write what is known when the user finishes his run before trackperf's; how it ends is not."""
        target, live = self._target, exits.live()
        if target is not None and len(live) == 1:
            self._write_summary(target, live[0].summary(), None)
